package core

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/dice"
)

// backoff makes pauses of about step, which grows to a second.
type backoff struct{ step time.Duration }

// newRetryPause returns the pauses between attempts while the store does not answer.
func newRetryPause() *backoff { return &backoff{20 * time.Millisecond} }

// next returns a pause between half of the present step and the whole step. The step grows by half each time.
func (b *backoff) next() time.Duration {
	d := b.step/2 + dice.N(b.step/2+1)
	b.step = min(b.step+b.step/2, time.Second)
	return d
}

// wait sleeps for the next pause. If ctx ends first, wait returns false.
func (b *backoff) wait(ctx context.Context) bool {
	select {
	case <-time.After(b.next()):
		return true
	case <-ctx.Done():
		return false
	}
}
