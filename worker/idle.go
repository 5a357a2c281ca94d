package worker

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// releaseIdle frees the locks of a task that has ended without a middleware. A lock with a lease is checked again when
// the lease has ended. An attempt that still runs will settle the lock. If the process is dead or the handler hangs,
// the lease ends.
func (w *Worker) releaseIdle(ctx context.Context, queue, id string, tokens []joblock.Token, reason string) {
	ctx = context.WithoutCancel(ctx)
	job := envelope.Job(queue, id)
	atOnce(tokens, func(token joblock.Token) {
		// ForJob: a handler may have handed the lock over to another job.
		err := w.locks.Release(ctx, token, joblock.IfIdle(), joblock.Reason(reason), joblock.ForJob(job))
		e, failed := as[*joblock.Error](err)
		switch {
		case !failed:
		case isGone(err), errors.Is(err, joblock.ErrClosed):
		case errors.Is(err, joblock.ErrBusy):
			w.recheck(ctx, e.Remaining+time.Millisecond, queue, id, token, reason)
		case errors.Is(err, joblock.ErrUnavailable):
			w.recheck(ctx, w.cfg.Snooze, queue, id, token, reason)
		default:
			w.cfg.Logger.Warn("worker: could not release the lock of a task", "job", job, "key", token.Key(), "err", err)
		}
	})
}

// recheck repeats releaseIdle for one token after pause, unless somebody has run the archived task again by then. Close
// ends the pause; then the lock stays as it is.
func (w *Worker) recheck(ctx context.Context, pause time.Duration, queue, id string, token joblock.Token, reason string) {
	leave := func() {
		w.cfg.Logger.Warn("worker: the Worker was closed before the lock of an ended task could be freed; the lock stays reserved",
			"job", envelope.Job(queue, id), "key", token.Key())
	}
	if !w.open.begin() {
		leave()
		return
	}
	go func() {
		defer w.open.end()
		job, done := door.JobDone(ctx)
		ctx := w.open.closing
		if done {
			ctx = door.WithJobDone(ctx, job)
		}
		if sleep.For(ctx, pause) != nil {
			leave()
			return
		}
		sts, err := w.locks.Status(ctx, token.Key())
		switch {
		case errors.Is(err, joblock.ErrUnavailable):
			w.recheck(ctx, w.cfg.Snooze, queue, id, token, reason)
			return
		case err != nil, !sts[0].Locked(), sts[0].Job != envelope.Job(queue, id):
			return
		}
		if over, _ := w.whatBecame(ctx, queue, id, ""); over != "" {
			w.releaseIdle(ctx, queue, id, []joblock.Token{token}, reason)
		}
	}()
}
