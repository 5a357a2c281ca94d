package worker

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// tooLong returns verdict.TooLong for the keys of the task, and logs the result unless it is nil. If the store does not
// answer, tooLong returns nil.
func (c *carrier) tooLong(ctx context.Context, delay time.Duration, err error) *verdict.HeldTooLong {
	if c.w.cfg.MaxHold == 0 {
		return nil
	}
	key, held := c.heldFor(ctx)
	late := verdict.TooLong(key, held, delay, c.w.cfg.MaxHold, err)
	if late != nil {
		c.log().Error("worker: job failed for good: it would have its key for longer than Config.MaxHold",
			"key", key, "held", held.Round(time.Millisecond), "next_attempt_in", delay, "max_hold", c.w.cfg.MaxHold, "err", err)
	}
	return late
}

// heldFor returns verdict.Holds for the keys of the task. The key is "" if the task has none. If the store does not
// answer, the key is "", too, and heldFor logs the error.
func (c *carrier) heldFor(ctx context.Context) (key string, held time.Duration) {
	if len(c.tokens) == 0 {
		return "", 0
	}
	all, err := c.w.locks.Status(context.WithoutCancel(ctx), keysOf(c.tokens)...)
	if err != nil {
		c.log().Warn("worker: cannot look up how long a job has had its keys; Config.MaxHold is applied at its next attempt", "err", err)
	}
	return verdict.Holds(c.job, all)
}

func keysOf(tokens []joblock.Token) []string {
	keys := make([]string, len(tokens))
	for i, token := range tokens {
		keys[i] = token.Key()
	}
	return keys
}

// tooLongAfterCrash returns an error if the previous attempt has crashed, and Config.MaxHold has passed: no process
// could decide at the end of that attempt. The task is then archived without a call of the handler.
func (c *carrier) tooLongAfterCrash() error {
	if c.w.cfg.MaxHold == 0 || c.tries.Retried == 0 {
		return nil
	}
	if _, held := c.heldFor(c.ctx); held <= c.w.cfg.MaxHold || c.lastErr() != asynq.ErrLeaseExpired.Error() {
		return nil
	}
	if late := c.tooLong(c.ctx, 0, asynq.ErrLeaseExpired); late != nil {
		return late
	}
	return nil
}
