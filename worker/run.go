package worker

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// An attempt of a task that carries locks, from top to bottom: begin.go, resume.go, the handler, settle.go.

// run resumes the locks, calls next, and settles the locks. It returns the error for asynq.
func (c *carrier) run(next asynq.Handler) (err error) {
	defer c.traced(&err, c.tokens...)()
	if err := c.bounce(); err != nil {
		return err
	}
	resume := func() (struct{}, error) { return struct{}{}, resumer{c}.resumeAll() }
	late := func(struct{}) { c.backOut(c.locks, c.w.reservation(0)) }
	if _, err := inTime(c.attempt, c.left()/2, resume, late); err != nil {
		return err
	}
	if c.locks == nil {
		return nil // the task succeeds without a call of next
	}
	if err := c.ctx.Err(); err != nil {
		// asynq has moved on and would ignore the handler's result.
		settler{c}.abandoned()
		return err
	}
	if err := c.tooLongAfterCrash(); err != nil {
		return settler{c}.settle(err)
	}
	ctx, stop := c.handed().Context(c.ctx)
	defer stop()
	if len(c.untilStart)+len(c.newest) > 0 {
		ctx = context.WithValue(ctx, startKey{}, c)
	}
	if len(c.tokens) > len(c.untilStart) {
		ctx = context.WithValue(ctx, chainKey{}, c.chained)
	}
	ctx, superseded := c.untilSuperseded(ctx)
	if by := context.Cause(ctx); errors.Is(by, ErrSuperseded) { // since an earlier attempt, or since the job was enqueued
		return c.endSuperseded(superseded(), nil)
	}
	defer c.limitOverrun(c.locks)()
	defer c.inLimits()()

	began, finished := time.Now(), false
	defer func() {
		if finished {
			return
		}
		if by := superseded(); by != nil {
			if p := recover(); p != nil {
				err = c.recovered(by, p)
				return
			}
		}
		_ = settler{c}.settle(verdict.ErrPanicked) // no recover: asynq reports the place of the panic
	}()
	err = next.ProcessTask(ctx, c.task)
	finished = true
	if by := superseded(); by != nil {
		return c.endSuperseded(by, err)
	}
	c.noteDuration(err, time.Since(began))
	if snoozed := c.snoozeForLoss(ctx, err); snoozed != nil {
		if c.canSnooze() {
			c.logSnoozed(snoozed)
		}
		err = snoozed
	}
	return settler{c}.settle(err)
}

// snoozeForLoss returns an error that snoozes the task for the delay of a retry, if the handler has returned err
// because a lock was lost: see verdict.AfterLoss. ctx is the handler's context. It returns nil if Configure was not
// called, or if c.ctx has ended.
func (c *carrier) snoozeForLoss(ctx context.Context, err error) *verdict.Snooze {
	if err == nil || c.ctx.Err() != nil || !c.tries.Configured {
		return nil
	}
	lost := make([]error, len(c.locks))
	for i, lock := range c.locks {
		lost[i] = lock.Err()
	}
	if !verdict.AfterLoss(err, context.Cause(ctx), lost) {
		return nil
	}
	return &verdict.Snooze{Err: err, Delay: c.w.retryDelay(c.tries.Retried, err, c.task)}
}
