package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// waitPoll is the pause between two looks at a busy lock that is waited for in
// place.
const waitPoll = 500 * time.Millisecond

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
			a.w.cfg.Logger.Info("worker: task put back without charge",
				"job", a.job(), "task", a.task.Type(), "delay", pb.delay, "cause", pb.err)
			return err
		}
		// asynq would charge or archive the task. Wait here instead.
		t := time.NewTimer(waitPoll)
		select {
		case <-t.C:
		case <-a.ctx.Done():
			t.Stop()
			return errors.Join(context.Cause(a.ctx), pb.err)
		}
	}
}

// canPutBack reports whether asynq will take the task back without charge.
func (a *attempt) canPutBack() bool {
	if a.w.delay.Load() == nil {
		if !a.w.warned.Swap(true) {
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
		lock, err := a.w.locks.Resume(ctx, token, joblock.ForJob(a.job()))
		if err != nil {
			lock, err = a.gone(ctx, token, err)
		}
		if lock != nil {
			locks = append(locks, lock)
			continue
		}
		if err == nil {
			a.release(locks, reasonSkipped)
			a.w.releaseIdle(ctx, a.queue, a.id, a.tokens[i:], reasonSkipped)
			return nil
		}
		if pb := a.putBack(err); pb != nil {
			a.park(locks, a.w.hold(0))
			return pb
		}
		a.locks = locks
		return a.settle(fmt.Errorf("worker: lock %q: %w", token.Key(), err))
	}
	a.locks = locks
	return nil
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
	log := a.w.cfg.Logger.With("job", a.job(), "task", a.task.Type(), "key", token.Key(), "cause", err)
	if e.Code == joblock.CodeAlreadyReleased && (e.Reason == reasonDone || e.Reason == reasonRevoked) {
		// By this job, or by one that its handler had handed the lock over to?
		st, err := a.w.locks.Status(ctx, token.Key())
		if err != nil {
			return nil, err
		}
		if st.Job == a.job() {
			log.Info("worker: the job is over already, its duplicate delivery is skipped")
			return nil, nil
		}
	}
	log.Warn("worker: the lock is gone", "policy", a.w.cfg.Gone)
	switch a.w.cfg.Gone {
	case Skip:
		return nil, nil
	case Fail:
		return nil, err
	}
	return a.reacquire(ctx, token)
}

// reacquire takes the lock anew under the token's owner, so that later attempts
// can resume it, and by way of Park, so that it is bound to the job and outlives
// a crash of this process like any job's lock.
func (a *attempt) reacquire(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	lock, err := a.w.locks.TryAcquire(ctx, token.Key(), joblock.Owner(token.Owner()), joblock.TTL(token.TTL()))
	if err != nil {
		return nil, err
	}
	token, err = lock.Park(ctx, joblock.ParkOptions{Hold: a.w.hold(0), Job: a.job()})
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	return a.w.locks.Resume(ctx, token, joblock.ForJob(a.job()))
}

// putBack returns the error that puts the task back without charge, if err is
// nothing but somebody in the way, or a store that does not answer; nil otherwise.
func (a *attempt) putBack(err error) error {
	var e *joblock.Error
	if !errors.As(err, &e) {
		return nil
	}
	delay := a.w.cfg.PutBack
	switch e.Code {
	case joblock.CodeBusy, joblock.CodeHeld:
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
