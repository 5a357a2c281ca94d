// Package reuse calls functions in goroutines that are used again. The stack of a new goroutine has to grow for every
// call to Redis, which costs more than all else that such a call needs besides its round trip.
package reuse

import "time"

// idleTime is how long a goroutine waits for its next function.
const idleTime = 50 * time.Millisecond

// Pool is goroutines that are used again. Make a Pool with New.
type Pool struct {
	idle chan func() // unbuffered: goroutines that have nothing to do receive from it
}

// New returns a Pool without goroutines.
func New() Pool { return Pool{make(chan func())} }

// Go calls f in a goroutine, at once. When the channel done is closed, goroutines without a function end.
func (p Pool) Go(done <-chan struct{}, f func()) {
	select {
	case p.idle <- f:
	default:
		go p.work(done, f)
	}
}

// work calls f, and then what else Go has to call within idleTime.
func (p Pool) work(done <-chan struct{}, f func()) {
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	for {
		f()
		timer.Reset(idleTime)
		select {
		case f = <-p.idle:
		case <-timer.C:
			return
		case <-done:
			return
		}
	}
}
