package worker

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// failed is the ErrorHandler that Configure sets. It calls the user's ErrorHandler, handler, unless err snoozes the
// task, the job is superseded, or handler has already received err. If the author's last attempt has failed without
// being settled by Middleware, failed frees the task's locks. It also archives the task if asynq would otherwise use
// the spare retry, or retry a task whose Deadline has passed: see verdict.Tries.Failed.
func (w *Worker) failed(ctx context.Context, task *asynq.Task, err error, handler asynq.ErrorHandler) {
	if ae, ok := errors.AsType[*archiveSnoozeError](err); ok {
		ae.begins(err.Error())
	}
	_, snoozed := errors.AsType[*verdict.Snooze](err)
	if snoozed || verdict.IsSuperseded(err) {
		return
	}
	a, aerr := w.newAttempt(ctx, task)
	if !carries(task) || aerr != nil {
		handler.HandleError(ctx, task, err)
		if aerr == nil && w.inLine.Load() && a.tries.TooLate(ctx.Err(), a.lastErr) {
			// The keeper takes the job out of the line, or frees its key.
			freer{&carrier{attempt: a}}.archive(ctx, err.Error(), verdict.ReasonFailed)
		}
		return
	}
	env, ok, eerr := w.trusted(context.WithoutCancel(ctx), a.envelopeTask())
	if eerr != nil {
		a.log().Warn("worker: cannot read which locks a failed task carries; the keeper takes care of them", "err", eerr)
	}
	if !ok {
		handler.HandleError(ctx, task, err)
		return
	}
	c := &carrier{attempt: a, tokens: env.Tokens, sequence: env.Sequence}
	a.tries.Budget = verdict.Budget(env.Envelope, a.tries.Limit)
	ctx = withRetries(ctx, a.tries.Budget, a.tries.Limit)
	if fe, ok := errors.AsType[*verdict.Final](err); ok {
		if !fe.Reported {
			handler.HandleError(ctx, task, fe.Err)
		}
		return // the middleware has settled the locks
	}
	if !a.tries.Spent() && verdict.RanOutside(err, a.ctx.Err()) && !w.logged.middleware.Swap(true) {
		a.log().Error("worker: a task was run without the locks that it carries: the server's mux needs Use(w.Middleware) first")
	}
	handler.HandleError(ctx, task, verdict.Original(err))
	fate := a.tries.Failed(err)
	if fate != verdict.MayRunOn && errors.Is(err, context.DeadlineExceeded) { // it may have waited for a rate
		a.leaveRate(context.WithoutCancel(ctx))
	}
	switch fate {
	case verdict.FreeLocks:
		freer{c}.freeWhenWritten(ctx, c.tokens, verdict.ReasonFailed)
	case verdict.Archive:
		freer{c}.archive(ctx, err.Error(), verdict.ReasonFailed)
	case verdict.MayRunOn:
		switch {
		case c.failedTooLong(ctx, err):
			freer{c}.archive(ctx, err.Error(), verdict.ReasonHeld)
		case a.mayExpire(err):
			freer{c}.archive(ctx, err.Error(), verdict.ReasonFailed)
		}
	}
}

// mayExpire reports whether the next attempt, after this one has failed with err, may be due after the Deadline of the
// task. The context of an attempt ends at the Deadline or before.
func (a *attempt) mayExpire(err error) bool {
	retry, settled := errors.AsType[*verdict.Retry](err)
	return !settled || a.left() <= retry.Delay
}

// failedTooLong reports whether Config.MaxHold forbids a further attempt after asynq itself has ended this one, by a
// timeout or a panic. If the handler has returned err, settle has already decided.
func (c *carrier) failedTooLong(ctx context.Context, err error) bool {
	if _, settled := errors.AsType[*verdict.Retry](err); settled || c.w.cfg.MaxHold == 0 {
		return false
	}
	return c.tooLong(ctx, c.w.retryDelay(c.tries.Retried, err, c.task), err) != nil
}
