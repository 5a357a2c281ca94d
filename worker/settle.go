package worker

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// settler ends an attempt.
type settler struct{ *carrier }

// settle releases or parks s.locks by the rules of the package comment: see verdict.Tries.EndOf. It returns the error
// for asynq.
func (s settler) settle(err error) error {
	if s.ctx.Err() != nil {
		s.abandoned()
		return err
	}
	switch end := s.tries.EndOf(err); end.Settle {
	case verdict.BackOut:
		s.backOut(s.locks, s.w.reservation(end.Snooze.Delay))
		if _, archiving := errors.AsType[*archiveSnoozeError](err); !archiving && !s.canSnooze() {
			return s.snoozeByArchive(end.Snooze)
		}
		return err
	case verdict.Release:
		if steps, added := s.chained.following(); len(steps) > 0 && end.Reason == verdict.ReasonDone {
			return s.handOn(steps, added)
		}
		s.finish(end.Reason)
		return end.Err
	}
	delay := s.w.retryDelay(s.tries.Retried, err, s.task)
	if err != verdict.ErrPanicked { // after a panic asynq does not get the result, so Worker.failed decides
		if late := s.tooLong(s.ctx, delay, err); late != nil {
			s.finish(verdict.ReasonHeld)
			return &verdict.Final{Err: late, Spent: s.tries.Spent()}
		}
	}
	s.park(s.locks, s.w.reservation(delay))
	return &verdict.Retry{Err: err, Delay: delay}
}

// abandoned settles the locks of an attempt whose context has ended, by timeout, shutdown, cancellation or lost asynq
// lease: the context does not say which, so abandoned asks the Inspector whether the task will run again.
func (s settler) abandoned() {
	var text string
	late := errors.Is(s.ctx.Err(), context.DeadlineExceeded)
	if (s.tries.Last() || late) && s.tries.Configured && s.sequence == nil { // the key of a sequence stays until the task is archived
		text = s.ctx.Err().Error()
	}
	if fate := freer(s).fate(context.WithoutCancel(s.ctx), text); fate.Over != "" {
		s.finish(s.whyArchived(fate.Over))
	} else {
		s.park(s.locks, s.w.reservation(fate.Delay))
	}
}

// whyArchived returns reason, or verdict.ReasonHeld if the job has failed with retries left because of Config.MaxHold: asynq
// ended the attempt by a timeout, and Worker.failed archived the task while the handler still ran.
func (s settler) whyArchived(reason string) string {
	if s.w.cfg.MaxHold == 0 || reason != verdict.ReasonFailed || s.tries.Last() {
		return reason
	}
	key, held := s.heldFor(s.ctx)
	if verdict.TooLong(key, held, s.w.retryDelay(s.tries.Retried, s.ctx.Err(), s.task), s.w.cfg.MaxHold, s.ctx.Err()) != nil {
		return verdict.ReasonHeld
	}
	return reason
}

// finish releases s.locks and all other locks that the task carries. The task will not run again. For a task of a
// sequence, and one with handoff.CancelInProgress, finish does not wait: all these locks are released in the background,
// when asynq has recorded the end of the task; see whenWritten.
func (s settler) finish(reason string) {
	ctx := s.ctx
	settle := func() {
		kept := s.halts(reason) && s.halt(ctx) || s.narrow(ctx)
		ending := s.ending(kept)
		if reason == verdict.ReasonDone {
			ending = s.coolDown(ctx, ending)
		}
		s.end(ctx, ending, reason)
		freer(s).free(ctx, s.unsettled(kept), reason)
		s.runNewer()
	}
	if (s.sequence != nil || s.cancel) && s.ctx.Err() == nil {
		atOnce := func() bool { return s.sequence != nil && s.endAtOnce(ctx, reason) }
		freer(s).whenWritten(atOnce, settle, func(delay time.Duration) { s.park(s.locks, s.w.reservation(delay)) })
		return
	}
	s.behind(settle)
}

// endAtOnce releases the only lock of a job of a sequence, if asynq has recorded that the job has succeeded or is
// revoked, and runs the next task, all with one command. It returns false, and nothing has changed, if that cannot be
// done: because the locks and the tasks are not in the same Redis, asynq has not recorded the end yet, the job has
// further locks or a slot other than the first, or has failed.
func (s settler) endAtOnce(ctx context.Context, reason string) bool {
	if verdict.IsFailed(reason) || len(s.tokens) != 1 || len(s.locks) != 1 || s.locks[0].Err() != nil {
		return false
	}
	if _, other := driver.LineOf(s.locks[0].Key()); other {
		return false
	}
	in := (*core.Locker)(s.w.locks)
	release := s.w.batched.Ends(in.Store(), s.queue, s.id)
	if release == nil {
		return false
	}
	r := s.ended(reason)
	r.Releaser = release
	return s.w.next.ReleaseLocks(ctx, s.locks, r)[0] == nil
}

// halt parks the lock of a sequence for this job, which halts the sequence. It returns false if this attempt does not
// hold the lock. Errors are logged: the attempt's own reservation then remains, and the keeper prolongs it.
func (s settler) halt(ctx context.Context) bool {
	lock, ok := s.locks.ByKey(s.sequence.Token.Key())
	if !ok || lock.Err() != nil {
		return false
	}
	_, err := lock.Park(context.WithoutCancel(ctx), core.Park{Reserve: haltFor, Job: s.job})
	if errors.Is(err, joblock.ErrUnavailable) {
		lock.StopRenewing()
	}
	s.report(lock, "park", err)
	freer(s).logHalted(lock.Key())
	return true
}
