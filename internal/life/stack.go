package life

// GrowStack makes the stack of the calling goroutine large enough for a Redis call, in one step. Without it the small stack
// of a new goroutine grows in two or three steps, deep within the call, and each step copies the whole stack.
//
//go:noinline
func GrowStack() {
	if never { // the frame has room for the argument, which is never written
		wide(room{})
	}
}

// room is the stack space that a call of package redisstore needs, and a little more.
type room [10 << 10]byte

var never bool

//go:noinline
func wide(room) {}
