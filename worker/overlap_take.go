package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// wait returns the bounds of the waits in place of the attempt's task.
func (o *overlap) wait(a *attempt) verdict.Wait {
	return verdict.Wait{
		IfBusy: o.ifBusy, MaxWait: o.MaxWait,
		CanSnooze: o.ifBusy == verdict.SnoozeIfBusy && (a.canSnooze() || a.canSnoozeByArchive()),
	}
}

// take returns the lock, or a nil lock and the attempt's result for asynq. Both are nil if the task must succeed
// without a call of the handler. A wait in place ends at the time latest.
func (o *overlap) take(a *attempt, key string, wait verdict.Wait, latest time.Time) (*core.Lock, error) {
	for {
		lock, err := o.acquire(a, key, wait, latest)
		if err == nil && a.ctx.Err() == nil {
			return lock, nil
		}
		if err == nil {
			a.release(core.Locks{lock}, verdict.ReasonOver) // asynq would ignore the handler's result
			return nil, context.Cause(a.ctx)
		}
		refused := verdict.Refused{
			Err: err, Snooze: a.w.snooze(err), IfBusy: o.ifBusy, Late: !time.Now().Before(latest),
			Tries: a.tries, Carries: a.mayCarry(),
		}
		next := refused.Next()
		if next > verdict.DropTask && verdict.IsBusy(err) && !o.InLine {
			refused.Snooze.Delay = min(refused.Snooze.Delay, o.pace.next(o.w.cfg.Snooze))
		}
		switch next {
		case verdict.FailTask:
			if verdict.IsBusy(err) {
				err = fmt.Errorf("worker: %w", err)
			}
			return nil, err
		case verdict.DropTask:
			a.log().Info("worker: task dropped", "cause", err)
			return nil, nil
		case verdict.SnoozeTask:
			a.logSnoozed(refused.Snooze)
			return nil, refused.Snooze
		case verdict.ArchiveTask:
			mark, err := a.mark()
			if err != nil && !refused.Late && errors.Is(err, joblock.ErrUnavailable) {
				break // wait in place for the store first
			}
			return nil, a.archiveAndRerun(refused.Snooze, mark, err)
		case verdict.OutOfTime:
			return nil, fmt.Errorf("worker: gave up waiting in place: not enough time left before the task's deadline: %w", err)
		}
		a.canSnooze()                                                   // logs if Configure was not called
		if sleep.For(a.ctx, min(waitPoll, time.Until(latest))) != nil { // the store does not answer
			return nil, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

// acquire acquires the lock. If the lock is busy, acquire waits in place until latest, but no longer than wait allows.
func (o *overlap) acquire(a *attempt, key string, wait verdict.Wait, latest time.Time) (*core.Lock, error) {
	if snoozed := a.heldBack(a.ctx, []string{key}, nil); snoozed != nil {
		return nil, snoozed
	}
	if o.InLine && canLineUp(a) {
		return o.lineUp(a, key)
	}
	job := strings.Map(func(r rune) rune { // a label has no control characters
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, a.job)
	holder, from := joblock.Holder(a.holder(job)), o.w.locks.Acquire
	if o.several() {
		from = limit.New(o.w.locks, o.concurrent(a)).Acquire
	}
	acquire := func(wait time.Duration) (*core.Lock, error) {
		lock, err := from(a.ctx, key, holder, joblock.MaxWait(wait))
		return (*core.Lock)(lock), err
	}
	lock, err := acquire(0)
	if !verdict.IsBusy(err) {
		return lock, err
	}
	entered := false
	enter := func() bool {
		entered = o.w.enterWait()
		return entered
	}
	wait.Brisk = o.pace.brisk()
	longest := wait.InPlace(time.Until(latest), enter)
	if entered {
		defer o.w.waiting.Add(-1)
	}
	if longest <= 0 {
		return nil, err
	}
	return acquire(longest)
}

// enterWait reports whether one more task may wait in place, and then counts the task in w.waiting. The caller must
// subtract the task when the wait ends.
func (w *Worker) enterWait() bool {
	if places := w.places.Load(); w.waiting.Add(1) > places && places >= 0 {
		w.waiting.Add(-1)
		return false
	}
	return true
}
