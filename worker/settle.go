package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// Reasons that Status shows for locks released here.
const (
	reasonDone    = "job done"
	reasonRevoked = "job revoked"
	reasonFailed  = "job failed"
	reasonGone    = "job gone"
	reasonSkipped = "job skipped"
	reasonStarted = "job started"
	reasonSnoozed = "job snoozed"
	reasonOver    = "attempt over" // of a lock that the task does not carry
)

const (
	// answerWait is how long to wait until asynq has written what it does with a task whose
	// context has ended. It writes at once, so this covers a slow Redis.
	answerWait = 2 * time.Second
	answerPoll = 50 * time.Millisecond
)

// settle gives the locks back, or parks them for the next attempt, after the handler has
// ended with err. It returns the error for asynq.
func (a *attempt) settle(err error) error {
	if a.ctx.Err() != nil {
		a.settleAbandoned()
		return err
	}
	var snoozed *snoozeError
	switch {
	case errors.As(err, &snoozed): // a lock that WithoutOverlapping wants is busy
		if a.started {
			a.park(a.locks, a.w.reservation(snoozed.delay))
		} else {
			a.backOut(a.locks, a.w.reservation(snoozed.delay))
		}
		var ae *archiveSnoozeError // on its way there already, by WithoutOverlapping
		if !errors.As(err, &ae) && !a.w.canSnooze(a) {
			return a.w.snoozeByArchive(a, snoozed)
		}
		return err
	case err == nil:
		a.finish(a.done(), reasonDone)
		return nil
	case errors.Is(err, asynq.RevokeTask):
		a.finish(a.done(), reasonRevoked)
		return err
	case errors.Is(err, asynq.SkipRetry), a.last():
		a.finish(a.ctx, reasonFailed)
		return &finalError{err: err, spent: a.spent()}
	}
	delay := a.w.retryDelay(a.retried, err, a.task)
	a.park(a.locks, a.w.reservation(delay))
	return &retryError{err: err, delay: delay}
}

// snoozeForLoss returns the error that snoozes a task whose handler has failed with err
// because a lock was lost, by ForceRelease or with the store's data. ctx is the handler's.
// The pause is that of a retry, however often this happens: asynq counts no snoozes, and
// the job is not to blame. The result is nil
//
//   - for an error that has nothing to do with the loss,
//   - if the handler says that the task must not be tried again, and
//   - for a lock that was held for longer than joblock.Config.MaxRenew.
func (a *attempt) snoozeForLoss(ctx context.Context, err error) *snoozeError {
	lost := func(lock *joblock.Lock) bool {
		err := lock.Err()
		return errors.Is(err, joblock.ErrLost) && !errors.Is(err, door.ErrNotRenewed)
	}
	switch {
	case err == nil, a.ctx.Err() != nil, a.w.delay.Load() == nil, !slices.ContainsFunc(a.locks, lost):
		return nil
	case errors.Is(err, asynq.SkipRetry), errors.Is(err, asynq.RevokeTask):
		return nil
	case errors.Is(err, joblock.ErrLost):
	case errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), joblock.ErrLost):
	default:
		return nil
	}
	return &snoozeError{err: err, delay: a.w.retryDelay(a.retried, err, a.task)}
}

// settleAbandoned is for an attempt that asynq no longer waits for. Timeout, shutdown,
// cancellation and a lost lease look the same from here, so the Inspector is asked. What
// asynq does follows from the end of the context, not from the handler's result.
func (a *attempt) settleAbandoned() {
	text := "" // of a retry that is never to run
	if a.last() && a.w.delay.Load() != nil {
		text = a.ctx.Err().Error()
	}
	if over, delay := a.w.whatBecame(context.WithoutCancel(a.ctx), a.queue, a.id, text); over != "" {
		a.finish(a.ctx, over)
	} else {
		a.park(a.locks, a.w.reservation(delay))
	}
}

// whatBecame returns the reason to release the locks of a task that will not run again, or
// "" and the time until it runs. If asynq does not answer before ctx ends the task counts
// as one that will run: its reservation ends by itself. If archive is not "", a task that
// asynq has set to retry with this error will not run.
func (w *Worker) whatBecame(ctx context.Context, queue, id, archive string) (over string, delay time.Duration) {
	deadline := time.Now().Add(answerWait)
	for {
		info, err := w.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			return reasonGone, 0
		case err != nil:
			w.cfg.Logger.Warn("worker: cannot tell what became of the task, its lock stays reserved",
				"job", envelope.Job(queue, id), "err", err)
			return "", 0
		case snoozedInArchive(info):
			return "", 0
		case info.State == asynq.TaskStateArchived:
			return reasonFailed, 0
		case info.State == asynq.TaskStateCompleted:
			return reasonGone, 0
		case archive != "" && info.State == asynq.TaskStateRetry && info.LastErr == archive:
			return reasonFailed, 0
		case info.State != asynq.TaskStateActive:
			return "", max(0, time.Until(info.NextProcessAt))
		case time.Now().After(deadline):
			return "", 0 // active again, in another attempt
		}
		if sleep.For(ctx, answerPoll) != nil {
			return "", 0
		}
	}
}

// done returns a context for releasing the locks of a job that is done or revoked: it must
// not run again, even if it is delivered again.
func (a *attempt) done() context.Context { return door.WithJobDone(a.ctx, a.job()) }

// finish frees all locks of a task that will not run again: those that this attempt holds,
// and those that it never got.
func (a *attempt) finish(ctx context.Context, reason string) {
	a.behind(func() {
		a.end(ctx, a.locks, reason)
		a.w.releaseIdle(ctx, a.queue, a.id, a.unsettled(), reason)
	})
}

// unsettled returns the tokens whose locks may still be reserved for the job.
func (a *attempt) unsettled() []joblock.Token {
	var left []joblock.Token
	for _, token := range a.tokens {
		lock, held := a.locks.ByKey(token.Key())
		if !held || !errors.Is(lock.Err(), joblock.ErrAlreadyReleased) {
			left = append(left, token)
		}
	}
	return left
}

// settleWait is how long asynq waits for the locks' store at the end of an attempt. A store
// that answers takes a small part of it. One that does not may delay the release, but not
// the job's result: the attempt's time would run out, and asynq would never hear of it.
const settleWait = time.Second

// behind calls settle, which settles the attempt's locks, and waits for it: for settleWait
// at most, and never until the attempt's deadline. Then settle goes on in the background;
// Close waits for it. Meanwhile the locks are held or reserved, so a next attempt is
// snoozed.
func (a *attempt) behind(settle func()) {
	if a.ctx.Err() != nil {
		settle() // asynq has moved on
		return
	}
	settled := make(chan struct{})
	a.w.open.more()
	go func() {
		defer a.w.open.end()
		defer close(settled)
		settle()
	}()
	t := time.NewTimer(min(settleWait, a.left()/2))
	defer t.Stop()
	select {
	case <-settled:
	case <-t.C:
	}
}

func (a *attempt) release(locks joblock.Locks, reason string) {
	a.behind(func() { a.end(a.ctx, locks, reason) })
}

// end releases locks, all at the same time: a store can batch the calls, and one that does
// not answer costs the time of one. A failure is logged, and left to the Locker's clean-up
// in the background and to the end of the reservation: the handler's result stands.
func (a *attempt) end(ctx context.Context, locks joblock.Locks, reason string) {
	atOnce(locks, func(lock *joblock.Lock) { a.report(lock, "release", lock.Release(ctx, joblock.Reason(reason))) })
}

// park keeps locks for the next attempt.
func (a *attempt) park(locks joblock.Locks, reserve time.Duration) {
	ctx := context.WithoutCancel(a.ctx)
	a.behind(func() {
		atOnce(locks, func(lock *joblock.Lock) {
			_, err := lock.Park(ctx, joblock.Reserve(reserve), joblock.ForJob(a.job()))
			if errors.Is(err, joblock.ErrUnavailable) {
				lock.StopRenewing() // the reservation made before stands
			}
			a.report(lock, "park", err)
		})
	})
}

// backOut gives back the locks of an attempt whose handler does not start. Locks that this
// attempt was the first to take are released: while the task waits anybody may have them. A
// lock that an earlier attempt has run under stays the job's.
func (a *attempt) backOut(locks joblock.Locks, reserve time.Duration) {
	for _, lock := range locks {
		if slices.Contains(a.taken, lock.Key()) {
			a.release(joblock.Locks{lock}, reasonSnoozed)
		} else {
			a.park(joblock.Locks{lock}, reserve)
		}
	}
}

// atOnce calls f for all of list at the same time, and waits.
func atOnce[T any](list []T, f func(T)) {
	if len(list) == 1 {
		f(list[0])
		return
	}
	var calls sync.WaitGroup
	for _, v := range list {
		calls.Go(func() { f(v) })
	}
	calls.Wait()
}

func (a *attempt) report(lock *joblock.Lock, op string, err error) {
	if joblock.CodeOf(err) == "" || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrNotOwner) {
		return // the handler itself has released it, or handed it over
	}
	msg := "worker: could not " + op + " the lock of a task"
	if errors.Is(err, joblock.ErrLost) {
		msg = "worker: the lock of a task was lost before its attempt was over"
	}
	a.w.cfg.Logger.Warn(msg,
		"job", a.job(), "task", a.task.Type(), "key", lock.Key(), "fence", lock.Fence(), "err", err)
}

// retryError is a handler's error with retries left. It carries the delay that
// the lock's reservation was computed from, so that asynq uses the same one.
type retryError struct {
	err   error
	delay time.Duration
}

func (e *retryError) Error() string { return e.err.Error() }

func (e *retryError) Unwrap() error { return e.err }
