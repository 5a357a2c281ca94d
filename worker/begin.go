package worker

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// bounce returns nil if this attempt must run the task: see verdict.Tries.Bounce. Otherwise it frees the task's locks,
// and returns the error with which asynq archives the task.
func (c *carrier) bounce() error {
	counts := c.w.counts.Load() // if nil, asynq charges every end of an attempt
	if !c.tries.MayBounce(counts != nil) {
		return nil
	}
	err := c.tries.Bounce(c.lastErr(), func() bool { return (*counts)(asynq.ErrLeaseExpired) }, c.unsettledEnd)
	if err == nil {
		return nil
	}
	freer{c}.freeWhenWritten(c.ctx, c.tokens, verdict.ReasonFailed)
	return err
}

// unsettledEnd returns verdict.Unsettled for the task's locks. If the store does not answer, it returns true, because
// the task cannot run now.
func (c *carrier) unsettledEnd() bool {
	locks, err := c.w.locks.Status(context.WithoutCancel(c.ctx), keysOf(c.tokens)...)
	return err != nil || verdict.Unsettled(c.job, c.tokens, locks)
}
