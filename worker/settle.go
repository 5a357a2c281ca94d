package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// The reasons with which this package releases locks. joblock's Status shows the reasons.
const (
	reasonDone    = "job done"
	reasonRevoked = "job revoked"
	reasonFailed  = "job failed"
	reasonHeld    = "job failed: had its key for longer than Config.MaxHold"
	reasonGone    = "job gone"
	reasonSkipped = "job skipped"
	reasonStarted = "job started"
	reasonSnoozed = "job snoozed"
	reasonOver    = "attempt over" // for a lock that the task does not carry: of WithoutOverlapping, or a mark
)

const (
	// answerWait bounds how long whatBecame waits until asynq has written the new state of a task whose context has
	// ended. asynq writes at once unless Redis is slow. After Worker.Close, answerWait also bounds the method rerun.
	answerWait = 2 * time.Second
	answerPoll = 50 * time.Millisecond
)

// The method settle releases or parks a.locks by the rules of the package comment. The result is the error for asynq.
func (a *attempt) settle(err error) error {
	if a.ctx.Err() != nil {
		a.settleAbandoned()
		return err
	}
	snoozed, ok := as[*snoozeError](err)
	switch {
	case ok: // from WithoutOverlapping, or from snoozeForLoss
		a.backOut(a.locks, a.w.reservation(snoozed.delay))
		if _, archiving := as[*archiveSnoozeError](err); !archiving && !a.canSnooze() {
			return a.snoozeByArchive(snoozed)
		}
		return err
	case err == nil:
		a.finish(a.done(), reasonDone)
		return nil
	case errors.Is(err, asynq.RevokeTask):
		a.finish(a.done(), reasonRevoked)
		return err
	case errors.Is(err, asynq.SkipRetry), a.last():
		a.finish(a.ctx, failedReason(err))
		return &finalError{err: err, spent: a.spent()}
	}
	delay := a.w.retryDelay(a.retried, err, a.task)
	if err != errPanicked { // after a panic asynq does not get the result, so Worker.failed decides
		if late := a.tooLong(a.ctx, a.tokens, delay, err); late != nil {
			a.finish(a.ctx, reasonHeld)
			return &finalError{err: late, spent: a.spent()}
		}
	}
	a.park(a.locks, a.w.reservation(delay))
	return &retryError{err, delay}
}

// snoozeForLoss returns an error that snoozes the task for the delay of a retry, if the handler has returned err
// because a lock was lost. The parameter ctx is the handler's context. The result is nil if Configure was not called,
// if a.ctx has ended, if err matches asynq.SkipRetry or asynq.RevokeTask, or if MaxRenew or StopRenewing was the cause
// of the loss.
func (a *attempt) snoozeForLoss(ctx context.Context, err error) *snoozeError {
	lost := func(lock *joblock.Lock) bool {
		err := lock.Err()
		return errors.Is(err, joblock.ErrLost) && !errors.Is(err, door.ErrNotRenewed)
	}
	due := errors.Is(err, joblock.ErrLost) || errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), joblock.ErrLost)
	if !due || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) ||
		a.ctx.Err() != nil || a.w.delay.Load() == nil || !slices.ContainsFunc(a.locks, lost) {
		return nil
	}
	return &snoozeError{err: err, delay: a.w.retryDelay(a.retried, err, a.task)}
}

// settleAbandoned settles the locks of an attempt whose context has ended, by timeout, shutdown, cancellation or lost
// asynq lease: the context does not tell which. So settleAbandoned asks the Inspector whether the task will run again.
func (a *attempt) settleAbandoned() {
	var text string
	late := errors.Is(a.ctx.Err(), context.DeadlineExceeded)
	if (a.last() || late) && a.w.delay.Load() != nil && a.sequence == nil { // the key of a sequence stays until the task is archived
		text = a.ctx.Err().Error()
	}
	if over, delay := a.whatBecame(context.WithoutCancel(a.ctx), text); over != "" {
		a.finish(a.ctx, over)
	} else {
		a.park(a.locks, a.w.reservation(delay))
	}
}

// whatBecame asks the Inspector whether the attempt's task will run again. If the task will not run, the result over is
// the reason for the release of the locks. If the task will run, over is "", and delay is the time until the run, or 0
// if asynq has not answered or still shows the task as active after answerWait.
//
// The parameter archive is "", or the last error of a task in the state retry that this Worker is about to archive if
// this was the last attempt, or if the task's Deadline has passed: such a task will not run.
func (a *attempt) whatBecame(ctx context.Context, archive string) (over string, delay time.Duration) {
	deadline := time.Now().Add(answerWait)
	for {
		info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
		switch {
		case noTask(err):
			return reasonGone, 0
		case err != nil:
			a.log().Warn("worker: cannot look up the task of an ended attempt; its locks stay reserved", "err", err)
			return "", 0
		case snoozedInArchive(info):
			return "", 0
		case info.State == asynq.TaskStateArchived,
			archive != "" && info.State == asynq.TaskStateRetry && info.LastErr == archive && (a.last() || expired(info)):
			return reasonFailed, 0
		case info.State == asynq.TaskStateCompleted:
			return reasonGone, 0
		case info.State != asynq.TaskStateActive:
			return "", max(0, time.Until(info.NextProcessAt))
		case time.Now().After(deadline):
			return "", 0 // another attempt runs
		}
		if sleep.For(ctx, answerPoll) != nil {
			return "", 0
		}
	}
}

// The method done returns a context in which a release records that the job is done. A duplicate then does not run.
func (a *attempt) done() context.Context { return door.WithJobDone(a.ctx, a.job) }

// The method finish releases a.locks and all other locks that the task carries. The task will not run again. For a task
// of a sequence, finish does not wait: all these locks are released in the background, when asynq has written the end of
// the task. See the method inOrder.
func (a *attempt) finish(ctx context.Context, reason string) {
	settle := func() {
		halted := a.halts(reason) && a.halt(ctx)
		a.end(ctx, a.ending(halted), reason)
		a.releaseIdle(ctx, a.unsettled(halted), reason)
	}
	if a.sequence != nil && a.ctx.Err() == nil {
		a.inOrder(settle, func(delay time.Duration) { a.park(a.locks, a.w.reservation(delay)) })
		return
	}
	a.behind(settle)
}

// The method ending returns a.locks without the lock of a sequence that the job has halted.
func (a *attempt) ending(halted bool) joblock.Locks {
	if !halted {
		return a.locks
	}
	key := a.sequence.Token.Key()
	return slices.DeleteFunc(slices.Clone(a.locks), func(lock *joblock.Lock) bool { return lock.Key() == key })
}

// The method unsettled returns those of a.tokens whose locks neither this attempt nor the handler has released. The
// token of a sequence that the job has halted is left out.
func (a *attempt) unsettled(halted bool) []joblock.Token {
	var left []joblock.Token
	for _, token := range a.tokens {
		if halted && a.inSequence(token) {
			continue
		}
		lock, held := a.locks.ByKey(token.Key())
		if !held || !errors.Is(lock.Err(), joblock.ErrAlreadyReleased) {
			left = append(left, token)
		}
	}
	return left
}

// settleWait bounds how long the locks' store may delay a handler's result. If a store that hangs delayed the result
// until the attempt's deadline, asynq would ignore the result.
const settleWait = time.Second

// The method behind calls the function settle in a goroutine, and waits for the return at most settleWait, and at most
// half of the time until the attempt's deadline. If a.ctx has ended, behind waits without a bound. Until settle has
// returned, the locks are held or reserved, so the next attempt is snoozed. Worker.Close waits for settle.
func (a *attempt) behind(settle func()) {
	if a.ctx.Err() != nil {
		settle() // asynq does not wait for the result
		return
	}
	settled := make(chan struct{})
	a.w.open.background(func() {
		defer close(settled)
		settle()
	})
	sleep.AtMost(min(settleWait, a.left()/2), settled)
}

func (a *attempt) release(locks joblock.Locks, reason string) {
	a.behind(func() { a.end(a.ctx, locks, reason) })
}

// The method end releases locks together. An error is only logged: the Locker repeats a release that had no answer.
func (a *attempt) end(ctx context.Context, locks joblock.Locks, reason string) {
	for i, err := range door.Of(a.w.locks).End(a.w.next.In(ctx), locks, reason) {
		a.report(locks[i], "release", err)
	}
}

// The method park parks locks for the next attempt, reserved for the time in the parameter reserve. Errors are logged.
func (a *attempt) park(locks joblock.Locks, reserve time.Duration) {
	ctx := context.WithoutCancel(a.ctx)
	a.behind(func() {
		opts := []joblock.ParkOption{joblock.Reserve(reserve), joblock.ForJob(a.job)}
		_, errs := door.Of(a.w.locks).Park(ctx, locks, func(int) []joblock.ParkOption { return opts })
		for i, err := range errs {
			if errors.Is(err, joblock.ErrUnavailable) {
				locks[i].StopRenewing() // the reservation that the attempt already has remains in force
			}
			a.report(locks[i], "park", err)
		}
	})
}

// backOut gives back the locks of a task that is snoozed. The locks in a.taken are released if the task has not
// started: while the task waits, others may have these locks. All other locks are parked, reserved for the time in the
// parameter reserve.
func (a *attempt) backOut(locks joblock.Locks, reserve time.Duration) {
	var taken, others joblock.Locks
	for _, lock := range locks {
		if !a.started && slices.Contains(a.taken, lock.Key()) {
			taken = append(taken, lock)
		} else {
			others = append(others, lock)
		}
	}
	if len(taken) > 0 {
		a.release(taken, reasonSnoozed)
	}
	if len(others) > 0 {
		a.park(others, reserve)
	}
}

func (a *attempt) report(lock *joblock.Lock, op string, err error) {
	if joblock.CodeOf(err) == "" || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrNotOwner) {
		return // the handler itself released the lock or handed the lock over
	}
	msg := "worker: could not " + op + " the lock of a task"
	if errors.Is(err, joblock.ErrLost) {
		msg = "worker: the lock of a task was lost before the end of the attempt"
	}
	a.log().Warn(msg, "key", lock.Key(), "fence", lock.Fence(), "err", err)
}

// retryError is the handler's error on an attempt that is not the last. asynq must retry the task after the time in the
// field delay, because the locks' reservation was computed from that time.
type retryError struct {
	error
	delay time.Duration
}

func (e *retryError) Unwrap() error { return e.error }
