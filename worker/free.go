package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// free frees the locks of tokens that are bound to the attempt's task and have no holder. Call free only if the task
// will not run again. Until Close, free tries again for a held lock when its lease has ended, and for all locks after
// Config.Snooze if the store did not answer.
func (f freer) free(ctx context.Context, tokens []joblock.Token, reason string) {
	if len(tokens) == 0 {
		return
	}
	if i := slices.IndexFunc(tokens, f.inSequence); i >= 0 && f.halts(reason) {
		f.keepHalted(ctx, tokens[i])
		tokens = slices.Delete(slices.Clone(tokens), i, i+1)
	} else if i >= 0 {
		if slot, found, _ := f.findSlot(ctx, f.mostSlots(ctx)); found { // after an error the keeper frees the slot
			tokens = slices.Clone(tokens)
			tokens[i] = slot
			f.moveTo(slot)
		}
	}
	ctx = context.WithoutCancel(ctx)
	// Job is set because a handler may have handed the lock over to another job, which keeps it.
	r := core.Release{IfIdle: true, Reason: reason, Job: f.job, Done: verdict.IsDone(reason)}
	for i, err := range f.w.next.Release(ctx, core.Tokens(tokens), r) {
		token := tokens[i]
		e, failed := errors.AsType[*joblock.Error](err)
		switch {
		case !failed:
		case errors.Is(err, joblock.ErrNotOwner) && f.inSequence(token):
			f.leaveLine(ctx, token, reason)
		case verdict.IsGone(err), errors.Is(err, joblock.ErrClosed):
		case errors.Is(err, joblock.ErrBusy):
			f.recheck(e.Remaining+time.Millisecond, token, reason)
		case errors.Is(err, joblock.ErrUnavailable):
			f.recheck(f.w.cfg.Snooze, token, reason)
		default:
			f.log().Warn("worker: could not release the lock of a task", "key", token.Key(), "err", err)
		}
	}
}

// recheck repeats free for one token, in the background after the pause, unless the lock has ended meanwhile, or the task
// lives because an operator has run the archived task. If Close ends the pause, a lock that has not ended stays reserved,
// and a warning is logged.
func (f freer) recheck(pause time.Duration, token joblock.Token, reason string) {
	ctx := f.w.life.Context()
	f.w.life.Go(func() {
		closed := sleep.For(ctx, pause) != nil
		sts, err := f.w.locks.Status(context.WithoutCancel(ctx), token.Key())
		switch {
		case err == nil && (!sts[0].Locked() || sts[0].Job != f.job):
			return
		case closed:
			f.log().Warn("worker: the Worker was closed before the lock of an ended task could be freed; the lock stays reserved",
				"key", token.Key())
			return
		case errors.Is(err, joblock.ErrUnavailable):
			f.recheck(f.w.cfg.Snooze, token, reason)
			return
		case err != nil:
			return
		}
		if f.fate(ctx, "").Over != "" {
			f.free(ctx, []joblock.Token{token}, reason)
		}
	})
}

// freeWhenWritten frees the locks of tokens, as free does, for a task that asynq is about to archive. For a task of a
// sequence, it does so in the background, when asynq has archived the task. If asynq does not archive the task, these
// locks stay reserved for the task.
func (f freer) freeWhenWritten(ctx context.Context, tokens []joblock.Token, reason string) {
	if f.sequence == nil {
		f.free(ctx, tokens, reason)
		return
	}
	f.whenWritten(func() bool { return false }, func() { f.free(ctx, tokens, reason) }, func(time.Duration) {})
}

// haltFor is how long the key of a halted sequence stays reserved for the job that has failed, if no keeper prolongs
// the reservation. asynq keeps an archived task for as long.
const haltFor = 90 * 24 * time.Hour

// keepHalted replaces free for the token of a sequence that halts: the key stays reserved for the job. A job that
// has a place in the key's line instead of the key leaves the line.
func (f freer) keepHalted(ctx context.Context, token joblock.Token) {
	ctx = context.WithoutCancel(ctx)
	err := f.w.next.Reserve(ctx, core.Reservation{Key: token.Key(), Job: f.job, For: haltFor})[0]
	switch {
	case err == nil:
		f.logHalted(token.Key())
	case errors.Is(err, joblock.ErrHeld):
		f.leaveLine(ctx, token, verdict.ReasonFailed)
	case errors.Is(err, joblock.ErrUnavailable):
		f.recheck(f.w.cfg.Snooze, token, verdict.ReasonFailed)
	}
}

func (f freer) logHalted(key string) {
	f.log().Warn("worker: a job has failed for good and halts its sequence: run its task again, or skip it", "key", key)
}
