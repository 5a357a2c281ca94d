package worker

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/joblock"
)

// Configure returns a copy of cfg whose IsFailure, RetryDelayFunc, ErrorHandler and GroupAggregator are wrapped. With
// that copy, asynq handles tasks with locks as the package comment says. Tasks without locks are not affected. Call
// Configure once per Worker: each server needs a Worker of its own. With a nil Worker, Configure returns cfg.
//
// With a GroupAggregator, GroupMaxSize is 512 if it was unlimited or larger, for all groups of the server: asynq then
// makes several tasks of a larger group. See Groups in the package comment.
//
// The functions of cfg get the handler's own error. In ErrorHandler, asynq.GetMaxRetry returns the author's MaxRetry.
// For tasks with locks, the calls of these functions differ from the calls by asynq alone:
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
		_, snoozed := as[*snoozeError](err)
		return !snoozed && isFailure(original(err))
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if snoozed, ok := as[*snoozeError](err); ok {
			return snoozed.delay
		}
		if re, ok := as[*retryError](err); ok {
			return re.delay
		}
		// asynq does not pass the task's ID. So a header copied from another task of the same type is not noticed here,
		// and makes one retry of this task early. A header that cannot be read here makes the spare retry late, which
		// does no harm: a worker that can read it archives the task at the next delivery.
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

// The function places returns how many tasks of a server may wait in place: a quarter of concurrency, rounded up, but 0
// if concurrency is 1. A concurrency below 1 stands for the number of CPUs, as in asynq.
func places(concurrency int) int {
	if concurrency < 1 {
		concurrency = runtime.NumCPU()
	}
	if concurrency == 1 {
		return 0
	}
	return (concurrency + 3) / 4
}

// The method failed is the ErrorHandler that Configure sets. The method calls the user's ErrorHandler, the parameter
// handler, unless err snoozes the task or handler has already received err. If the author's last attempt has failed
// without being settled by Middleware, the method frees the task's locks. The method also archives the task if asynq
// would otherwise use the spare retry, or retry a task whose Deadline has passed.
func (w *Worker) failed(ctx context.Context, task *asynq.Task, err error, handler asynq.ErrorHandler) {
	if ae, ok := as[*archiveSnoozeError](err); ok {
		ae.begins(err.Error())
	}
	if _, snoozed := as[*snoozeError](err); snoozed {
		return
	}
	a, aerr := w.newAttempt(ctx, task)
	if !carries(task) || aerr != nil {
		handler.HandleError(ctx, task, err)
		if aerr == nil && a.inLineTooLate() {
			a.archive(ctx, err.Error(), nil, reasonFailed) // the keeper takes the job out of the line, or frees its key
		}
		return
	}
	env, ok, eerr := w.trusted(context.WithoutCancel(ctx), a.envelopeTask())
	if eerr != nil {
		a.log().Warn("worker: cannot read which locks a failed task carries; the keeper looks after them", "err", eerr)
	}
	if !ok {
		handler.HandleError(ctx, task, err)
		return
	}
	a.budget, a.sequence = budget(env.Envelope, a.limit), env.Sequence
	ctx = withRetries(ctx, a.budget, a.limit)
	if fe, ok := as[*finalError](err); ok {
		if !fe.told {
			handler.HandleError(ctx, task, fe.err)
		}
		return // the middleware has settled the locks
	}
	if !a.spent() {
		a.failedOutside(err)
	}
	handler.HandleError(ctx, task, original(err))
	switch {
	case errors.Is(err, asynq.RevokeTask), errors.Is(err, asynq.SkipRetry):
	case a.retried >= a.limit:
		// asynq archives the task now. Perhaps no attempt will settle the locks: the deadline had passed when asynq
		// took the task, or the attempt waited too long for asynq's write.
		a.releaseInOrder(ctx, env.Tokens, reasonFailed)
	case errors.Is(err, asynq.ErrLeaseExpired):
		// asynq has lost its lease on the task and writes nothing. asynq's recoverer takes up the task.
	case a.last():
		a.archive(ctx, err.Error(), env.Tokens, reasonFailed)
	case a.archiveTooLong(ctx, env.Tokens, err):
	case errors.Is(a.ctx.Err(), context.DeadlineExceeded):
		a.archive(ctx, err.Error(), env.Tokens, reasonFailed)
	}
}

// inLineTooLate reports whether asynq has retries left for a task that has a place or the key with InLine, and whether the
// attempt's time was up before a handler ran. The task of such a job that its Deadline has passed would be retried
// without a call, while those behind wait.
func (a *attempt) inLineTooLate() bool {
	if !a.w.inLine.Load() || a.last() || !errors.Is(a.ctx.Err(), context.DeadlineExceeded) {
		return false
	}
	last := a.lastErr()
	return strings.Contains(last, nextjob.WaitText) || last == asynq.ErrLeaseExpired.Error()
}

// failedOutside logs, once per Worker, that a task was run without its locks. The evidence is an err that is no
// retryError, in which Middleware wraps errors. Middleware may not have wrapped a panic, asynq.ErrLeaseExpired,
// asynq.RevokeTask, an error of joblock, and any error after the end of the attempt's context: these are no evidence.
func (a *attempt) failedOutside(err error) {
	_, marked := as[*retryError](err)
	if marked || a.ctx.Err() != nil || asynq.IsPanicError(err) || errors.Is(err, asynq.ErrLeaseExpired) ||
		errors.Is(err, asynq.RevokeTask) || joblock.CodeOf(err) != "" {
		return
	}
	if !a.w.told.middleware.Swap(true) {
		a.log().Error("worker: a task was run without the locks that it carries: the server's mux needs Use(w.Middleware), first")
	}
}
