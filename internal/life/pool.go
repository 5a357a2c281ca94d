package life

import (
	"context"
	"time"
)

// idle is how long a goroutine waits for its next function: long enough for a busy process, and short enough for tests
// that look for leaked goroutines.
const idle = 100 * time.Millisecond

// Pool runs functions in goroutines that are reused, because their stacks have already grown. For a Redis call, growing the
// stack takes longer than everything else that a new goroutine costs. Make a Pool with NewPool.
type Pool struct {
	next    chan func() // to a goroutine that waits
	closing context.Context
}

// NewPool returns a Pool. When closing ends, its idle goroutines end.
func NewPool(closing context.Context) *Pool { return &Pool{make(chan func()), closing} }

// Go calls f in another goroutine and does not wait. The number of goroutines is unbounded.
func (p *Pool) Go(f func()) {
	select {
	case p.next <- f: // a goroutine waits
	default:
		go p.serve(f)
	}
}

// serve calls f, and then the functions of later calls of Go, until none has come for idle.
func (p *Pool) serve(f func()) {
	wait := time.NewTimer(idle)
	defer wait.Stop()
	for {
		f()
		wait.Reset(idle)
		select {
		case f = <-p.next:
		case <-wait.C:
			return
		case <-p.closing.Done():
			return
		}
	}
}
