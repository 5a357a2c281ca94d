package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
)

// waitPoll is the pause between two looks at a busy lock that is waited for in
// place.
const waitPoll = 500 * time.Millisecond

// busyPause is the longest pause before a task is tried again that found an
// attempt of its own in the way. That one is most likely about to be settled: its
// server was shut down, or its time was up. One that works on is met again and
// again at this pace, but there is at most one task per such attempt, unlike for a
// key that many want. asynq counts no put-backs, so there is nothing to let the
// pause grow by.
const busyPause = 2 * time.Second

// resumeAll takes the locks of the task, all or none. It leaves a.locks nil
// without an error when the handler is not to be called and the task succeeds.
func (a *attempt) resumeAll() error {
	for {
		err := a.tryResumeAll()
		var pb *putBackError
		if !errors.As(err, &pb) {
			return err
		}
		if a.canPutBack() {
			a.tellPutBack(pb)
			return err
		}
		if a.spent() && a.byArchive() {
			return a.viaArchive(pb)
		}
		// asynq would charge or archive the task. Wait here instead.
		if !sleep(a.ctx, waitPoll) {
			return errors.Join(context.Cause(a.ctx), pb.err)
		}
	}
}

// canPutBack reports whether asynq will take the task back without charge.
func (a *attempt) canPutBack() bool {
	if a.w.delay.Load() == nil {
		if !a.w.told.configure.Swap(true) {
			a.w.cfg.Logger.Warn("worker: Configure was not applied to the server's asynq.Config; busy locks are waited for in place")
		}
		return false
	}
	return a.retried < a.limit
}

func (a *attempt) tryResumeAll() error {
	// Not to be cut short by the attempt's end: whether a lock was resumed would
	// be unknown, and nobody would settle it. joblock bounds each call.
	ctx := context.WithoutCancel(a.ctx)
	locks := make(joblock.Locks, 0, len(a.tokens))
	for i, token := range a.tokens {
		if slices.Contains(a.untilStart, token) {
			continue
		}
		lock, err := a.resume(ctx, token)
		if err != nil {
			lock, err = a.gone(ctx, token, err)
		}
		if lock != nil {
			locks = append(locks, lock)
			continue
		}
		if err == nil {
			a.behind(func() {
				a.end(ctx, locks, reasonSkipped)
				a.w.releaseIdle(ctx, a.queue, a.id, slices.Concat(a.tokens[i:], a.untilStart), reasonSkipped)
			})
			return nil
		}
		if pb := a.putBack(err); pb != nil {
			a.park(locks, a.w.hold(0))
			return pb
		}
		a.locks = locks
		return a.settle(fmt.Errorf("worker: lock %q: %w", token.Key(), err))
	}
	if a.startsAt == nil {
		if pb := a.start(ctx); pb != nil {
			a.behind(func() { a.backOut(locks, a.w.hold(0)) })
			return pb
		}
		a.started = true
	}
	a.locks = locks
	return nil
}

// resume takes the lock of token for this attempt.
func (a *attempt) resume(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	return a.w.locks.Resume(ctx, token, joblock.ForJob(a.job()), joblock.Holder(a.holder(a.w.locks.Holder())), joblock.Reserve(a.w.cfg.Hold))
}

// gone decides what to do about a token that Resume refused with err. A nil lock
// without an error means that the task is not to run.
func (a *attempt) gone(ctx context.Context, token joblock.Token, err error) (*joblock.Lock, error) {
	var e *joblock.Error
	if !errors.As(err, &e) {
		return nil, err
	}
	switch e.Code {
	case joblock.CodeNotFound, joblock.CodeNotOwner, joblock.CodeAlreadyReleased:
	default:
		return nil, err
	}
	if e.Code == joblock.CodeNotOwner {
		if err := a.elsewhere(ctx, token); err != nil {
			return nil, err
		}
	}
	log := a.w.cfg.Logger.With("job", a.job(), "task", a.task.Type(), "key", token.Key(), "cause", err)
	if e.Code == joblock.CodeAlreadyReleased && e.Ended == joblock.EndedDone {
		over, err := a.duplicate(ctx, token)
		if err != nil {
			return nil, err
		}
		if over {
			log.Info("worker: the job is over already, its duplicate delivery is skipped")
			return nil, nil
		}
	}
	policy, level := a.w.cfg.Gone, slog.LevelWarn
	if slices.Contains(a.fromStart, token) {
		policy, level = Reacquire, slog.LevelDebug // nobody has taken it yet
	}
	var lock *joblock.Lock
	switch policy {
	case Skip:
		err = nil
	case Fail:
	case Reacquire:
		if lock, err = a.reacquire(ctx, token); err == nil && slices.Contains(a.fromStart, token) {
			a.taken = append(a.taken, token.Key())
		}
	}
	if a.putBack(err) != nil {
		level = slog.LevelDebug // it comes by here until it gets the lock
	}
	log.Log(ctx, level, "worker: the lock is gone", "policy", policy)
	return lock, err
}

// duplicate tells whether asynq delivers a job once more that is done, as the record of
// token's lock says: asynq has not heard of it then. A task that asynq knows to be
// completed comes again because somebody wants it to run again.
func (a *attempt) duplicate(ctx context.Context, token joblock.Token) (bool, error) {
	st, err := a.w.locks.Status(ctx, token.Key())
	if err != nil {
		return false, err
	}
	if st.Job != a.job() {
		return false, nil // its handler had handed the lock over to that one
	}
	info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return true, nil
	case err != nil:
		return false, &joblock.Error{Code: joblock.CodeUnavailable, Op: "inspect the task", Key: token.Key(), Err: err}
	}
	return info.CompletedAt.IsZero(), nil
}

// elsewhere tells, by an error that puts the task back, that the lock of token is
// not gone but with another job under the same token: a handler has handed it over,
// or handoff is putting this task in the place of that one.
func (a *attempt) elsewhere(ctx context.Context, token joblock.Token) error {
	st, err := a.w.locks.Status(ctx, token.Key())
	if err != nil || !st.Locked() || st.Owner != token.Digest() {
		return err
	}
	e := &joblock.Error{
		Code: joblock.CodeHeld, Op: "resume", Key: token.Key(), Holder: st.Holder, Job: st.Job, Remaining: st.Reserved,
	}
	if st.State == joblock.StateHeld {
		e.Code, e.Remaining = joblock.CodeBusy, st.Remaining
	}
	return e
}

// reacquire takes the lock anew under the token's owner, so that later attempts
// can resume it, and by way of Park, so that it is bound to the job and outlives
// a crash of this process like any job's lock.
func (a *attempt) reacquire(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	// The key may be the toolkit's own: a permit, or that of a job which waits for another.
	lock, err := a.w.locks.TryAcquire(ctx, token.Key(), door.OwnKey[joblock.Option](),
		joblock.Owner(token.Owner()), joblock.TTL(token.TTL()))
	if err != nil {
		return nil, err
	}
	token, err = lock.Park(ctx, joblock.ParkOptions{Hold: a.w.hold(0), Job: a.job()})
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	return a.resume(ctx, token)
}

// putBack returns the error that puts the task back without charge, if err is
// nothing but somebody in the way, or a store that does not answer; nil otherwise.
func (a *attempt) putBack(err error) *putBackError {
	var e *joblock.Error
	if !errors.As(err, &e) {
		return nil
	}
	delay := a.w.cfg.PutBack
	switch e.Code {
	case joblock.CodeBusy:
		delay = min(delay, e.Remaining, busyPause)
	case joblock.CodeHeld, joblock.CodeTimeout:
		delay = min(delay, e.Remaining)
	case joblock.CodeUnavailable, joblock.CodeClosed:
	default:
		return nil
	}
	// asynq cuts delays to whole seconds. The jitter keeps tasks that were put
	// back together from coming back together.
	delay = max(delay, time.Second)
	delay += rand.N(delay/4 + 1)
	return &putBackError{err: err, delay: delay}
}

func (a *attempt) tellPutBack(pb *putBackError) {
	a.w.cfg.Logger.Info("worker: task put back without charge",
		"job", a.job(), "task", a.task.Type(), "delay", pb.delay, "cause", pb.err)
}
