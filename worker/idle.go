package worker

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// releaseIdle frees each lock of tokens if nobody holds the lock, and if the lock is bound to the attempt's task. Call
// releaseIdle if the task will not run again. The parameter reason is the reason that Status shows.
//
// A lock that somebody holds is left to its holder, and is checked again when the lease has ended. If the store does
// not answer, the lock is checked again after Config.Snooze. These checks are in the background, until Close.
func (a *attempt) releaseIdle(ctx context.Context, tokens []joblock.Token, reason string) {
	if len(tokens) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	// ForJob: a handler may have handed the lock over to another job.
	opts := []joblock.ReleaseOption{joblock.IfIdle(), joblock.Reason(reason), joblock.ForJob(a.job())}
	for i, err := range door.Of(a.w.locks).Release(ctx, tokens, opts) {
		token := tokens[i]
		e, failed := as[*joblock.Error](err)
		switch {
		case !failed:
		case isGone(err), errors.Is(err, joblock.ErrClosed):
		case errors.Is(err, joblock.ErrBusy):
			a.recheck(ctx, e.Remaining+time.Millisecond, token, reason)
		case errors.Is(err, joblock.ErrUnavailable):
			a.recheck(ctx, a.w.cfg.Snooze, token, reason)
		default:
			a.log().Warn("worker: could not release the lock of a task", "key", token.Key(), "err", err)
		}
	}
}

// The method recheck repeats releaseIdle for one token, in the background, when the time in the parameter pause is
// over. If the task then lives, because somebody has run the archived task, recheck does nothing. If Close ends the
// pause, the lock stays reserved, and a warning is logged.
func (a *attempt) recheck(ctx context.Context, pause time.Duration, token joblock.Token, reason string) {
	job, done := door.JobDone(ctx)
	ctx = a.w.open.closing
	if done {
		ctx = door.WithJobDone(ctx, job)
	}
	a.w.open.background(func() {
		if sleep.For(ctx, pause) != nil {
			a.log().Warn("worker: the Worker was closed before the lock of an ended task could be freed; the lock stays reserved",
				"key", token.Key())
			return
		}
		sts, err := a.w.locks.Status(ctx, token.Key())
		switch {
		case errors.Is(err, joblock.ErrUnavailable):
			a.recheck(ctx, a.w.cfg.Snooze, token, reason)
			return
		case err != nil, !sts[0].Locked(), sts[0].Job != a.job():
			return
		}
		if over, _ := a.whatBecame(ctx, ""); over != "" {
			a.releaseIdle(ctx, []joblock.Token{token}, reason)
		}
	})
}
