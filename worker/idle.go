package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// releaseIdle frees those locks of tokens that are bound to the attempt's task and that nobody holds. Call releaseIdle
// if the task will not run again. Until Close, releaseIdle checks a held lock again when the lease has ended, and any
// lock after Config.Snooze if the store did not answer.
func (a *attempt) releaseIdle(ctx context.Context, tokens []joblock.Token, reason string) {
	if len(tokens) == 0 {
		return
	}
	if i := slices.IndexFunc(tokens, a.inSequence); i >= 0 && a.halts(reason) {
		a.haltIdle(ctx, tokens[i])
		tokens = slices.Delete(slices.Clone(tokens), i, i+1)
	} else if i >= 0 {
		if slot, found, _ := a.findSlot(ctx, a.sequence.Limit); found { // after an error the keeper frees the slot
			tokens = slices.Clone(tokens)
			tokens[i] = slot
			a.moveTo(slot)
		}
	}
	ctx = a.w.next.In(context.WithoutCancel(ctx))
	// ForJob: a handler may have handed the lock over to another job.
	opts := []joblock.ReleaseOption{joblock.IfIdle(), joblock.Reason(reason), joblock.ForJob(a.job)}
	for i, err := range door.Of(a.w.locks).Release(ctx, tokens, opts) {
		token := tokens[i]
		e, failed := as[*joblock.Error](err)
		switch {
		case !failed:
		case errors.Is(err, joblock.ErrNotOwner) && a.inSequence(token):
			a.leaveLine(ctx, token, reason)
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

// The method recheck repeats releaseIdle for one token, in the background after the pause, unless the task lives
// because somebody has run the archived task. If Close ends the pause, the lock stays reserved, and a warning is
// logged.
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
		case err != nil, !sts[0].Locked(), sts[0].Job != a.job:
			return
		}
		if over, _ := a.whatBecame(ctx, ""); over != "" {
			a.releaseIdle(ctx, []joblock.Token{token}, reason)
		}
	})
}
