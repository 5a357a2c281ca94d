// Package crew runs functions in goroutines that are reused, because their stacks have already grown. For a Redis call,
// growing the stack takes longer than everything else that a new goroutine costs.
package crew

import (
	"context"
	"time"
)

// idle is how long a goroutine waits for its next function: long enough for a busy process, and short enough for tests
// that look for leaked goroutines.
const idle = 100 * time.Millisecond

// Crew has the goroutines. Make a Crew with New.
type Crew struct {
	next    chan func() // to a goroutine that waits
	closing context.Context
}

// New returns a Crew. When closing ends, its idle goroutines end.
func New(closing context.Context) *Crew { return &Crew{make(chan func()), closing} }

// Go calls f in another goroutine and does not wait. The number of goroutines is unbounded.
func (c *Crew) Go(f func()) {
	select {
	case c.next <- f: // a goroutine waits
	default:
		go c.serve(f)
	}
}

// serve calls f, and then the functions of later calls of Go, until none has come for idle.
func (c *Crew) serve(f func()) {
	wait := time.NewTimer(idle)
	defer wait.Stop()
	for {
		f()
		wait.Reset(idle)
		select {
		case f = <-c.next:
		case <-wait.C:
			return
		case <-c.closing.Done():
			return
		}
	}
}
