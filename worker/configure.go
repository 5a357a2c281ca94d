package worker

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// Configure returns a copy of cfg whose IsFailure, RetryDelayFunc, ErrorHandler and GroupAggregator are wrapped. With
// that copy, asynq handles tasks with locks as the package comment says; tasks without locks are not affected. Call
// Configure once per Worker: each server needs a Worker of its own. With a nil Worker, Configure returns cfg.
//
// If cfg has a GroupAggregator, Configure lowers a larger or unlimited GroupMaxSize to 512, for all groups of the
// server: asynq then makes several tasks of a larger group. See Groups in the package comment.
//
// The functions of cfg get the handler's own error. In ErrorHandler, asynq.GetMaxRetry returns the author's MaxRetry.
// For tasks with locks, these functions are not called at the same times as by asynq alone:
//
//	a snooze         calls no function, except that a snooze after the loss of a lock calls RetryDelayFunc
//	RetryDelayFunc   is called before ErrorHandler and IsFailure if the handler returns an error before the author's
//	                 last attempt, because the lock is reserved for the delay. A panic before that attempt calls
//	                 RetryDelayFunc twice: the first call has an error of this package
//	IsFailure        is also called when the last attempt ends by a timeout, a panic or a crash, because asynq still
//	                 has the spare retry. If IsFailure returns true, asynq charges the spare retry: TaskInfo.Retried
//	                 is then one more than the author's MaxRetry. After a crash, IsFailure may be called a second
//	                 time with asynq.ErrLeaseExpired
//	ErrorHandler     is also called after a crash of the last attempt
func (w *Worker) Configure(cfg asynq.Config) asynq.Config {
	if w == nil {
		return cfg
	}
	isFailure, delay, handler := cfg.IsFailure, cfg.RetryDelayFunc, cfg.ErrorHandler
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	if handler == nil {
		handler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) {})
	}
	w.delay.Store(&delay)
	w.places.Store(int64(places(cfg.Concurrency)))
	w.checkInterval.Store(int64(cmp.Or(max(0, cfg.TaskCheckInterval), time.Second))) // asynq's default

	if isFailure == nil {
		isFailure = func(err error) bool { return err != nil }
	} else {
		w.counts.Store(&isFailure)
	}
	cfg.IsFailure = func(err error) bool {
		_, snoozed := errors.AsType[*verdict.Snooze](err)
		return !snoozed && isFailure(verdict.Original(err))
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if snoozed, ok := errors.AsType[*verdict.Snooze](err); ok {
			return snoozed.Delay
		}
		if re, ok := errors.AsType[*verdict.Retry](err); ok {
			return re.Delay
		}
		// asynq does not pass the task's ID, so a header copied from another task of the same type is not noticed here, and
		// makes one retry of this task early. A header that cannot be read here makes the spare retry late, which is
		// harmless: a worker that can read it archives the task at the next delivery.
		env, ok, eerr := envelope.Open(context.Background(), w.ring.OpenKnown,
			envelope.Task{Type: task.Type(), Headers: task.Headers()})
		if ok && eerr == nil && n == env.Retries {
			// The author's last attempt has ended.
			if errors.Is(err, asynq.ErrLeaseExpired) {
				return 0 // after a crash: bounce archives the task at the next delivery
			}
			return spareDelay
		}
		return delay(n, err, task)
	}
	cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		w.failed(ctx, task, err, handler)
	})
	if cfg.GroupAggregator != nil {
		cfg.GroupAggregator = aggregator{w, cfg.GroupAggregator}
		if cfg.GroupMaxSize > maxGroup {
			w.cfg.Logger.Warn("worker: GroupMaxSize was lowered, because the task of a group carries the locks of all members",
				"from", cfg.GroupMaxSize, "to", maxGroup)
		}
		if cfg.GroupMaxSize <= 0 || cfg.GroupMaxSize > maxGroup {
			cfg.GroupMaxSize = maxGroup
		}
	}
	return cfg
}

// spareDelay is the delay of the spare retry after a timeout or a panic: time for this Worker to archive the task.
const spareDelay = 10 * time.Second

// places returns how many tasks of a server may wait in place: a quarter of concurrency, rounded up, but 0 if
// concurrency is 1. A concurrency below 1 stands for the number of CPUs, as in asynq.
func places(concurrency int) int {
	if concurrency < 1 {
		concurrency = runtime.NumCPU()
	}
	if concurrency == 1 {
		return 0
	}
	return (concurrency + 3) / 4
}
