package worker

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

const (
	// How long to wait for asynq to write down what it did with a task whose
	// context has ended. It does so at once, so this covers a slow Redis.
	verdictWait = 2 * time.Second
	verdictPoll = 50 * time.Millisecond
)

// settle gives the locks back, or keeps them for the next attempt, after the
// handler has ended with err. It returns what asynq is to be told.
func (a *attempt) settle(err error) error {
	if a.ctx.Err() != nil {
		a.settleAbandoned()
		return err
	}
	var pb *putBackError
	switch {
	case errors.As(err, &pb): // a lock that WithoutOverlapping wants is busy
		a.park(a.locks, a.w.hold(pb.delay))
		return err
	case err == nil:
		a.finish(reasonDone)
		return nil
	case errors.Is(err, asynq.RevokeTask):
		a.finish(reasonRevoked)
		return err
	case errors.Is(err, asynq.SkipRetry), a.last():
		a.finish(reasonFailed)
		return &finalError{err: err, spent: a.spent()}
	}
	delay := a.w.retryDelay(a.retried, err, a.task)
	a.park(a.locks, a.w.hold(delay))
	return &retryError{err: err, delay: delay}
}

// settleAbandoned is for an attempt that asynq no longer waits for. Timeout,
// shutdown, cancellation and a lost lease look the same from here, so the
// Inspector is asked. While this runs nothing is returned to asynq, so its
// verdict is on the end of the context and not on the handler's result.
func (a *attempt) settleAbandoned() {
	if over, delay := a.w.verdict(context.WithoutCancel(a.ctx), a.queue, a.id); over != "" {
		a.finish(over)
	} else {
		a.park(a.locks, a.w.hold(delay))
	}
}

// verdict returns the reason to release the locks of a task that will not run
// again, or "" and how long it is until it does. A task that cannot be asked
// about, or not before ctx ends, will run again: its reservation ends by itself.
func (w *Worker) verdict(ctx context.Context, queue, id string) (over string, delay time.Duration) {
	deadline := time.Now().Add(verdictWait)
	for {
		info, err := w.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			return reasonGone, 0
		case err != nil:
			w.cfg.Logger.Warn("worker: cannot tell what became of the task, its lock stays reserved",
				"job", envelope.Job(queue, id), "err", err)
			return "", 0
		case info.State == asynq.TaskStateArchived:
			return reasonFailed, 0
		case info.State == asynq.TaskStateCompleted:
			return reasonGone, 0
		case info.State != asynq.TaskStateActive:
			return "", max(0, time.Until(info.NextProcessAt))
		case time.Now().After(deadline):
			return "", 0 // active again, in another attempt
		}
		if !sleep(ctx, verdictPoll) {
			return "", 0
		}
	}
}

// finish frees all locks of a task that will not run again: those that this
// attempt holds, and those it never got hold of.
func (a *attempt) finish(reason string) {
	a.release(a.locks, reason)
	a.w.releaseIdle(a.ctx, a.queue, a.id, a.unsettled(), reason)
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

// release gives locks back. What fails is logged and otherwise left to the
// Locker's background clean-up and to the end of the reservation: the handler's
// result stands.
func (a *attempt) release(locks joblock.Locks, reason string) {
	for _, lock := range locks {
		a.report(lock, "release", lock.ReleaseWith(a.ctx, reason))
	}
}

// park keeps locks for the next attempt.
func (a *attempt) park(locks joblock.Locks, hold time.Duration) {
	ctx := context.WithoutCancel(a.ctx)
	for _, lock := range locks {
		_, err := lock.Park(ctx, joblock.ParkOptions{Hold: hold, Job: a.job()})
		if errors.Is(err, joblock.ErrUnavailable) {
			lock.StopRenewing() // the reservation made before stands
		}
		a.report(lock, "park", err)
	}
}

func (a *attempt) report(lock *joblock.Lock, op string, err error) {
	switch joblock.CodeOf(err) {
	case "", joblock.CodeAlreadyReleased, joblock.CodeNotOwner:
		return // the handler itself has released it, or handed it over
	}
	msg := "worker: could not " + op + " the lock of a task"
	if errors.Is(err, joblock.ErrLost) {
		msg = "worker: the lock of a task was lost before its attempt was over"
	}
	a.w.cfg.Logger.Warn(msg,
		"job", a.job(), "task", a.task.Type(), "key", lock.Key(), "fence", lock.Fence(), "err", err)
}
