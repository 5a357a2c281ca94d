package joblock

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/dice"
)

// newRetryPause paces attempts while the store does not answer.
func newRetryPause() *backoff { return newBackoff(20*time.Millisecond, time.Second) }

type backoff struct{ cur, max time.Duration }

func newBackoff(first, most time.Duration) *backoff {
	return &backoff{cur: max(first, time.Millisecond), max: max(most, time.Millisecond)}
}

// next returns a pause: half to the whole of a step that grows by half each time.
func (b *backoff) next() time.Duration {
	d := b.cur/2 + dice.N(b.cur/2+1)
	b.cur = min(b.cur+b.cur/2, b.max)
	return d
}

// wait sleeps for the next pause. It returns false when ctx ends before.
func (b *backoff) wait(ctx context.Context) bool {
	select {
	case <-time.After(b.next()):
		return true
	case <-ctx.Done():
		return false
	}
}
