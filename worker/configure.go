package worker

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
)

// Configure returns cfg with IsFailure, RetryDelayFunc, ErrorHandler and GroupAggregator
// wrapped, so that asynq handles tasks with locks as the package comment says. Tasks
// without locks are not affected. Call Configure once per Worker: servers with different
// settings need Workers of their own. A nil Worker returns cfg as it is.
//
// The functions of cfg are called with the handler's own error and the author's MaxRetry.
// For a task with locks they see what they would see with asynq alone, but for this:
//
//	a snooze         none of them is called. Only if the handler says that its lock was
//	                 lost, RetryDelayFunc is, for the pause
//	RetryDelayFunc   is called when the handler has ended, before ErrorHandler and
//	                 IsFailure: the lock is reserved for the delay. After a panic it is
//	                 called twice, first with a stand-in for the error that asynq makes
//	IsFailure        is called once more if the last attempt ends by a timeout, a panic or
//	                 a crash: asynq does not know that it was the last, and sets the task
//	                 to the spare retry. If IsFailure returns true that is counted, and
//	                 Retried shows one more than the author's MaxRetry. It may also be
//	                 asked about asynq.ErrLeaseExpired before an attempt that follows a crash
//	ErrorHandler     hears of a crash on the last attempt; asynq alone tells nobody
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
		var snoozed *snoozeError
		return !errors.As(err, &snoozed) && counts(err)
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		var snoozed *snoozeError
		if errors.As(err, &snoozed) {
			return snoozed.delay
		}
		var re *retryError
		if errors.As(err, &re) {
			return re.delay
		}
		// Nothing here says which task it is. So a task that has copied its header from
		// another of its type has one retry that comes early.
		env, ok, eerr := envelope.Open(context.Background(), w.ring.OpenKnown,
			envelope.Task{Type: task.Type(), Headers: task.Headers()})
		if ok && eerr == nil && n == env.Retries {
			// Its last true attempt is over, whether or not that counts.
			if errors.Is(err, asynq.ErrLeaseExpired) {
				return 0 // by a crash: it comes back only to be archived
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

// places returns how many tasks of a server may wait in place: a quarter, rounded up, so
// that the others go on; none if there is only one.
func places(concurrency int) int {
	if concurrency < 1 {
		concurrency = runtime.NumCPU() // as asynq does
	}
	if concurrency == 1 {
		return 0
	}
	return (concurrency + 3) / 4
}

// failed passes an error on to the user's ErrorHandler, unless it is a snooze or known
// there, and frees the locks of a task that ends without a middleware.
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
	var ae *archiveSnoozeError
	if errors.As(err, &ae) {
		text := err.Error()
		ae.kept.Store(&text)
	}
	var snoozed *snoozeError
	if errors.As(err, &snoozed) {
		return
	}
	if _, carries := task.Headers()[envelope.Header]; !carries || !inTask {
		tell(ctx, err)
		return
	}
	job := envelope.Job(queue, id)
	opened, ok, eerr := w.trusted(context.WithoutCancel(ctx),
		envelope.Task{Job: job, Type: task.Type(), Headers: task.Headers()})
	if eerr != nil {
		w.cfg.Logger.Warn("worker: cannot tell what a task carries that has failed, its locks are left to the keeper",
			"job", job, "task", task.Type(), "err", eerr)
	}
	if !ok {
		tell(ctx, err)
		return
	}
	env := opened.Envelope
	ctx = withRetries(ctx, budget(env, limit), limit)
	var fe *finalError
	if errors.As(err, &fe) {
		if !fe.told {
			tell(ctx, fe.err)
		}
		return // settled by the middleware
	}
	if retried <= budget(env, limit) {
		w.failedOutside(ctx, task, err)
	}
	tell(ctx, original(err))
	switch {
	case errors.Is(err, asynq.RevokeTask), errors.Is(err, asynq.SkipRetry), retried < budget(env, limit):
	case retried >= limit:
		// asynq archives it now. If no attempt is running, none will settle its
		// locks: its deadline had passed when it came out of the queue, or the
		// attempt gave up waiting for asynq's answer. That answer may take as long as
		// the user's handler above, so this comes after it.
		w.releaseIdle(ctx, queue, id, env.Tokens, reasonFailed)
	case errors.Is(err, asynq.ErrLeaseExpired):
		// asynq has lost the task, and writes nothing: its recoverer finds it.
	default:
		w.archive(ctx, queue, id, err.Error(), env.Tokens)
	}
}
