package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// resumer resumes the locks of an attempt.
type resumer struct{ *carrier }

// resumeAll resumes the locks of r.tokens into r.locks. On error the resumed locks are settled. If the task must
// succeed without a call of the handler, resumeAll returns nil and leaves r.locks nil.
func (r resumer) resumeAll() error {
	for {
		err := r.resumeOnce()
		snoozed, ok := errors.AsType[*verdict.Snooze](err)
		if !ok {
			return err
		}
		if r.canSnooze() {
			r.logSnoozed(snoozed)
			return err
		}
		if r.tries.Spent() && r.canSnoozeByArchive() {
			return r.snoozeByArchive(snoozed)
		}
		// asynq would charge or archive the task for an error, so the task waits in place.
		if sleep.For(r.ctx, waitPoll) != nil {
			return errors.Join(context.Cause(r.ctx), snoozed.Err)
		}
	}
}

// resumeOnce is one try of resumeAll.
func (r resumer) resumeOnce() error {
	// A call that the end of r.ctx cuts short may resume a lock that no attempt settles. joblock bounds each call.
	ctx := context.WithoutCancel(r.ctx)
	if snoozed := r.heldBack(ctx, keysOf(r.tokens), r.tokens); snoozed != nil {
		return snoozed
	}
	if snoozed := r.awaitPrev(); snoozed != nil {
		return snoozed
	}
	if r.sequence != nil && r.sequence.Waits {
		if slot, found, _ := r.findSlot(ctx, r.mostSlots(ctx)); found { // an error shows up below
			r.moveTo(slot)
		}
	}
	tokens := r.tokens
	if len(r.untilStart) > 0 {
		tokens = slices.DeleteFunc(slices.Clone(tokens), func(t joblock.Token) bool { return slices.Contains(r.untilStart, t) })
	}
	resumed, errs := r.resume(ctx, tokens)
	locks := slices.DeleteFunc(slices.Clone(resumed), func(lock *core.Lock) bool { return lock == nil })
	handedOn := false
	for i, token := range tokens {
		if resumed[i] != nil {
			continue
		}
		if slices.Contains(r.newest, token) { // before Config.OnLockLost decides
			if _, over := r.overtaken(ctx); errors.Is(over, ErrSuperseded) {
				r.locks = locks
				return settler(r).settle(over)
			}
		}
		lock, err := r.gone(ctx, token, errs[i])
		if err == errHandedOn {
			handedOn = true
			continue
		}
		if lock != nil {
			locks = append(locks, lock)
			continue
		}
		if err == nil {
			r.behind(func() {
				r.end(ctx, locks, verdict.ReasonSkipped)
				without := func(t joblock.Token) bool { _, held := locks.ByKey(t.Key()); return held }
				freer(r).free(ctx, slices.DeleteFunc(slices.Clone(r.tokens), without), verdict.ReasonSkipped)
			})
			return nil
		}
		snoozed := r.w.snooze(err)
		if snoozed != nil && slices.Contains(r.fromStart, token) {
			// Check now, and not only once the task has the lock: a job may run for longer than the record is kept.
			if _, over := r.overtaken(ctx); errors.Is(over, ErrSuperseded) {
				snoozed, err = nil, over
			}
		}
		if snoozed != nil {
			r.park(locks, r.w.reservation(0))
			return snoozed
		}
		r.locks = locks
		return settler(r).settle(fmt.Errorf("worker: lock %q: %w", token.Key(), err))
	}
	if handedOn {
		r.locks = locks
		steps, _ := r.chained.following()
		err := settler(r).handOn(steps, false)
		r.locks = nil
		return err
	}
	if snoozed := r.early(); snoozed != nil {
		r.park(locks, r.w.reservation(snoozed.Delay))
		return snoozed
	}
	if r.startsAt == nil {
		switch err := r.start(ctx); {
		case errors.Is(err, ErrSuperseded):
			r.locks = locks
			return settler(r).settle(err)
		case err != nil:
			r.behind(func() { r.backOut(locks, r.w.reservation(0)) })
			return err
		}
		r.started = true
	}
	r.locks = locks
	return nil
}
