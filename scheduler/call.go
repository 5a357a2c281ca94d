package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// queuePoll is how long OverlapQueue and OverlapNewest wait between two calls of enqueue while the task of an earlier
// tick is not done.
const queuePoll = 2 * time.Second

// unclearFor is how long a Task calls enqueue again because of errTaskUnclear. Within that time the keeper of package
// worker has freed the lock that a dead node has left behind: after a minute and a round of checks.
const unclearFor = 2 * time.Minute

// grace is how long a function may go on after the end of its context before the execution counts as an overrun.
const grace = 5 * time.Second

// call calls the job's function, and repeats failed attempts while retries are left. It returns the number of attempts
// and the error of the last one. If the function goes on for longer than grace after its context has ended, other than
// by the end of Run, call calls overrun with the cause, and with nil when the function has returned.
func (j *job) call(ctx context.Context, tick Tick, logger *slog.Logger, overrun func(cause error)) (attempts int, err error) {
	ctx = WithTick(ctx, tick)
	var unclear time.Time // of the first errTaskUnclear
	for pause := j.retryFirst; ; pause = min(2*pause, j.retryMost) {
		attempts++
		err = j.attempt(ctx, tick, logger, overrun)
		for {
			if errors.Is(err, errTaskUnclear) {
				if unclear.IsZero() {
					unclear = time.Now()
					logger.Warn("scheduler: outcome of an enqueue unknown; repeating it until it is known whether the task exists", "job", j.name, "tick", tick.At, "err", err)
				}
				if time.Since(unclear) >= unclearFor {
					break
				}
			} else if !errors.Is(err, errTaskOverlaps) {
				break
			} else if !j.Overlap.Waits() && tick.Cause != CauseBackfill {
				return attempts, err
			}
			if sleep.For(ctx, queuePoll) != nil {
				return attempts, err
			}
			err = j.attempt(ctx, tick, logger, overrun)
		}
		if err == nil || attempts > j.retries || sleep.For(ctx, pause) != nil {
			return attempts, err
		}
		logger.Warn("scheduler: the function failed and is called again", "job", j.name, "tick", tick.At, "attempt", attempts, "err", err)
	}
}

// attempt calls the function once, in a goroutine of its own, and waits until it ends by return, panic or
// runtime.Goexit.
func (j *job) attempt(ctx context.Context, tick Tick, logger *slog.Logger, overrun func(cause error)) error {
	if j.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, j.timeout, timeoutError(j.timeout))
		defer cancel()
	}
	err := errors.New("scheduler: the function ended its goroutine")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
				logger.Error("scheduler: the function panicked", "job", j.name, "tick", tick.At, "panic", p, "stack", string(debug.Stack()))
			}
		}()
		if err = j.fn(ctx, tick); j.task {
			err = taskResult(tick, err)
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		awaitEnd(ended, context.Cause(ctx), overrun)
	}
	if cause, ok := context.Cause(ctx).(timeoutError); ok && err != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// awaitEnd waits for the end of a function whose context has ended with cause. See job.call for overrun.
func awaitEnd(ended <-chan struct{}, cause error, overrun func(error)) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
		return
	case <-timer.C:
	}
	if !errors.Is(cause, ErrStopped) { // Config.Grace covers ErrStopped
		overrun(cause)
		defer overrun(nil)
	}
	<-ended
}

// The errors of a Task whose function has returned ErrHeld.
var (
	// errTaskOverlaps means that the task of an earlier tick holds the lock that the present task needs.
	errTaskOverlaps = errors.New("scheduler: the task of an earlier tick is not done")

	// errTaskUnclear means that the lock is reserved for the task of this tick. An earlier enqueue of the task has failed,
	// is under way or has died with its node, so the task may not exist.
	errTaskUnclear = errors.New("scheduler: the lock is reserved for the task of this tick, which may not exist")
)

// taskResult converts the error of the function of a Task. It joins errTaskUnclear to an ErrHeld if the lock is
// reserved for this tick's own task, and otherwise errTaskOverlaps. Other errors are unchanged.
func taskResult(tick Tick, err error) error {
	var held *joblock.Error
	if !errors.As(err, &held) || !held.Is(joblock.ErrHeld) {
		return err
	}
	if strings.HasSuffix(held.Job, "/"+tick.ID()) {
		return errors.Join(errTaskUnclear, err)
	}
	return errors.Join(errTaskOverlaps, err)
}

// timeoutError is the cause with which a function's context ends after Timeout. It matches context.DeadlineExceeded,
// the context's Err.
type timeoutError time.Duration

func (d timeoutError) Error() string {
	return "scheduler: running for longer than " + time.Duration(d).String()
}

func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }
