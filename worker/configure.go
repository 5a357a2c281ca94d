package worker

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

// Configure returns a copy of cfg whose IsFailure, RetryDelayFunc, ErrorHandler and GroupAggregator are wrapped, so
// that asynq handles tasks with locks as the package comment says. Tasks without locks are not affected. Call Configure
// once per Worker: servers with different settings need Workers of their own. With a nil Worker, Configure returns cfg.
//
// The functions of cfg get the handler's own error and the author's MaxRetry. For tasks with locks, the calls differ
// from those of asynq alone:
//
//	a snooze         calls none of the functions. Only the snooze after the loss of a lock calls RetryDelayFunc
//	RetryDelayFunc   is called when the handler has ended, before ErrorHandler and IsFailure, because the lock is
//	                 reserved for the delay. A panic calls RetryDelayFunc twice, first with an error of this package
//	IsFailure        is called once more if the last attempt ends by a timeout, a panic or a crash, because asynq still
//	                 sees the spare retry. If IsFailure then returns true, asynq charges that retry too, and Retried
//	                 shows one more than the author's MaxRetry. IsFailure may also be called with
//	                 asynq.ErrLeaseExpired before an attempt that follows a crash
//	ErrorHandler     is also called after a crash of the last attempt
func (w *Worker) Configure(cfg asynq.Config) asynq.Config {
	if w == nil {
		return cfg
	}
	isFailure, delay, handler := cfg.IsFailure, cfg.RetryDelayFunc, cfg.ErrorHandler
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	w.delay.Store(&delay)
	w.places.Store(int64(places(cfg.Concurrency)))

	counts := func(err error) bool {
		if isFailure == nil {
			return err != nil
		}
		return isFailure(original(err))
	}
	if isFailure != nil {
		w.counts.Store(&isFailure)
	}
	cfg.IsFailure = func(err error) bool {
		_, snoozed := as[*snoozeError](err)
		return !snoozed && counts(err)
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if snoozed, ok := as[*snoozeError](err); ok {
			return snoozed.delay
		}
		if re, ok := as[*retryError](err); ok {
			return re.delay
		}
		// asynq does not pass the task's ID. So a header copied from another task of the same type is not noticed here,
		// and makes one retry of this task early.
		env, ok, eerr := envelope.Open(context.Background(), w.ring.OpenKnown,
			envelope.Task{Type: task.Type(), Headers: task.Headers()})
		if ok && eerr == nil && n == env.Retries {
			// The author's last attempt is over.
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
	}
	return cfg
}

// places returns how many tasks of a server may wait in place: a quarter of concurrency, rounded up, but 0 if
// concurrency is 1.
func places(concurrency int) int {
	if concurrency < 1 {
		concurrency = runtime.NumCPU() // as asynq does
	}
	if concurrency == 1 {
		return 0
	}
	return (concurrency + 3) / 4
}

// failed is the ErrorHandler that Configure sets. It passes err to handler, the user's ErrorHandler, unless err is a
// snooze or handler has already had err. It frees the locks of a task that ends without a middleware.
func (w *Worker) failed(ctx context.Context, task *asynq.Task, err error, handler asynq.ErrorHandler) {
	tell := func(ctx context.Context, err error) {
		if handler != nil {
			handler.HandleError(ctx, task, err)
		}
	}
	id, inTask := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	limit, _ := asynq.GetMaxRetry(ctx)
	if ae, ok := as[*archiveSnoozeError](err); ok {
		text := err.Error()
		ae.kept.Store(&text)
	}
	if _, snoozed := as[*snoozeError](err); snoozed {
		return
	}
	if !carries(task) || !inTask {
		tell(ctx, err)
		return
	}
	job := envelope.Job(queue, id)
	opened, ok, eerr := w.trusted(context.WithoutCancel(ctx),
		envelope.Task{Job: job, Type: task.Type(), Headers: task.Headers()})
	if eerr != nil {
		w.cfg.Logger.Warn("worker: cannot verify the locks of a failed task; the keeper will free them",
			"job", job, "task", task.Type(), "err", eerr)
	}
	if !ok {
		tell(ctx, err)
		return
	}
	env := opened.Envelope
	ctx = withRetries(ctx, budget(env, limit), limit)
	if fe, ok := as[*finalError](err); ok {
		if !fe.told {
			tell(ctx, fe.err)
		}
		return // the middleware has settled the locks
	}
	if retried <= budget(env, limit) {
		w.failedOutside(ctx, task, err)
	}
	tell(ctx, original(err))
	switch {
	case errors.Is(err, asynq.RevokeTask), errors.Is(err, asynq.SkipRetry), retried < budget(env, limit):
	case retried >= limit:
		// asynq archives the task now. Perhaps no attempt will settle the locks: the deadline had passed when asynq
		// took the task, or the attempt no longer waits to learn what asynq does. The user's ErrorHandler may be slow,
		// so the release comes after its call.
		w.releaseIdle(ctx, queue, id, env.Tokens, reasonFailed)
	case errors.Is(err, asynq.ErrLeaseExpired):
		// asynq has lost its lease on the task and writes nothing. asynq's recoverer takes up the task.
	default:
		w.archive(ctx, queue, id, err.Error(), env.Tokens)
	}
}
