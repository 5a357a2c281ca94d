package core

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/dice"
)

// The type backoff makes pauses of about the time step, which grows to a second.
type backoff struct{ step time.Duration }

// newRetryPause returns the pauses between attempts while the store does not answer.
func newRetryPause() *backoff { return &backoff{20 * time.Millisecond} }

// The method next returns a pause: from half of the present step to the whole step. The step grows by half each time.
func (b *backoff) next() time.Duration {
	d := b.step/2 + dice.N(b.step/2+1)
	b.step = min(b.step+b.step/2, time.Second)
	return d
}

// The method wait sleeps for the next pause. If ctx ends first, wait returns false.
func (b *backoff) wait(ctx context.Context) bool {
	select {
	case <-time.After(b.next()):
		return true
	case <-ctx.Done():
		return false
	}
}
