package core

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
)

// pauses are the pauses between repeated attempts. They grow from step to about a second.
type pauses struct{ step time.Duration }

// newPauses returns the pauses between attempts while the store does not answer.
func newPauses() *pauses { return &pauses{20 * time.Millisecond} }

// next returns a pause between half of the present step and the whole step. The step grows by half each time.
func (p *pauses) next() time.Duration {
	d := p.step/2 + jitter.N(p.step/2+1)
	p.step = min(p.step+p.step/2, time.Second)
	return d
}

// wait sleeps for the next pause. If ctx ends first, wait returns false.
func (p *pauses) wait(ctx context.Context) bool {
	select {
	case <-time.After(p.next()):
		return true
	case <-ctx.Done():
		return false
	}
}
