// Package crew runs functions in goroutines that serve again: the stack of such a goroutine has already grown. For a
// call of Redis, the growth takes longer than all else that a new goroutine costs.
package crew

import (
	"context"
	"time"
)

// idle is how long a goroutine waits for its next function. A tenth of a second is long enough for a busy process, and
// short enough for tests that look for goroutines left behind.
const idle = 100 * time.Millisecond

// Crew has the goroutines. Make a Crew with New.
type Crew struct {
	next    chan func() // to a goroutine that waits
	closing context.Context
}

// New returns a Crew. When closing ends, the goroutines that wait for a function end.
func New(closing context.Context) *Crew { return &Crew{make(chan func()), closing} }

// Go calls f in another goroutine. Go does not wait. The number of goroutines has no bound.
func (c *Crew) Go(f func()) {
	select {
	case c.next <- f: // a goroutine waits
	default:
		go c.serve(f)
	}
}

// serve calls f, and then the functions of later calls of Go, until none has come for the time idle.
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
