package crew

// Grow makes the stack of the calling goroutine large enough for a call of Redis, in one step. The stack of a new goroutine
// is small. Without Grow it grows in two or three steps, deep within the call, and each step moves all that is there.
//
//go:noinline
func Grow() {
	if never { // the frame has room for the argument, and nobody writes to that room
		wide(room{})
	}
}

// room is what a call of package redisstore takes of the stack, and a little more.
type room [10 << 10]byte

var never bool

//go:noinline
func wide(room) {}
