package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqctx"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// The spare retry: asynq archives a task that has no retries left before it asks whether an
// error counts. So handoff enqueues a task that carries locks with one retry more than its
// author asked for, and a busy lock on the last attempt does not cost the job.
//
// The price: if the author's last attempt ends without a middleware, by a timeout, a panic
// or a crash, asynq sets the task to retry. It must then be archived, as by asynq alone,
// and not run. Such a delivery could not be told from that of an archived task that
// somebody has run again, which must run each time. So the process in which the attempt
// ended archives the task at once. After a crash there is no such process. Then the task
// comes back, and its lock shows that nobody has settled it.

const (
	// spareDelay is the delay of the spare retry. By then the task was archived, unless the
	// process has died since.
	spareDelay = 10 * time.Second

	// archivePatience is how long to wait until asynq has written what it did with the
	// task. After that asynq's lease on the task is over, and it may not write any more.
	archivePatience = 30 * time.Second
)

// budget returns the retries that the author of a task asked for. limit is asynq's count.
func budget(env envelope.Envelope, limit int) int {
	if env.Retries >= 0 && env.Retries < limit {
		return env.Retries
	}
	return limit // without a spare one
}

type retriesKey struct{}

// retries are the retries of a task that carries locks: budget as its author asked for,
// limit as asynq was told.
type retries struct{ budget, limit int }

func withRetries(ctx context.Context, budget, limit int) context.Context {
	return context.WithValue(asynqctx.WithMaxRetry(ctx, budget), retriesKey{}, retries{budget, limit})
}

// archive archives a task whose last attempt is over, once asynq has set it to retry with
// the error text, and frees its locks. It returns at once; Close waits.
func (w *Worker) archive(ctx context.Context, queue, id, text string, tokens []joblock.Token) {
	w.open.more()
	go func() {
		defer w.open.end()
		over := time.Now().Add(archivePatience)
		for pause := answerPoll; ; pause = min(2*pause, time.Second) {
			info, err := w.inspector.GetTaskInfo(queue, id)
			switch {
			case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
				return
			case err == nil && info.State == asynq.TaskStateRetry && info.LastErr == text:
				if err = w.inspector.ArchiveTask(queue, id); err == nil {
					w.releaseIdle(ctx, queue, id, tokens, reasonFailed)
					return
				}
			case err == nil && info.State != asynq.TaskStateActive:
				return
			}
			if time.Now().After(over) {
				w.cfg.Logger.Warn("worker: could not archive a task whose last attempt is over",
					"job", envelope.Job(queue, id), "err", err)
				return
			}
			time.Sleep(pause)
		}
	}()
}

// bounce is for a delivery that may be the spare retry: the one that package handoff adds
// to the author's retries. It returns the error with which to archive the task, or nil if
// the task must run.
func (w *Worker) bounce(a *attempt) error {
	uncounted := w.counts.Load() // nil where every end of an attempt is charged
	switch {
	case a.spent():
	case a.last() && a.retried < a.limit && uncounted != nil:
		// A crash of this attempt may not have been charged.
	default:
		return nil
	}
	last := w.lastErr(a.queue, a.id)
	crashed := last == asynq.ErrLeaseExpired.Error()
	switch {
	case strings.HasPrefix(last, spentPrefix), strings.Contains(last, archiveSnoozeText):
		return nil // it was archived, and somebody wants it to run
	case !a.spent():
		if !crashed || (*uncounted)(asynq.ErrLeaseExpired) {
			return nil
		}
	case w.delay.Load() == nil:
		// Without Configure nobody has archived it.
	case !crashed, !w.unsettledEnd(a):
		return nil
	}
	err := &finalError{err: errors.New(last), spent: true, told: !crashed}
	if crashed {
		err.err = asynq.ErrLeaseExpired // the very value, for errors.Is
	}
	w.releaseIdle(a.ctx, a.queue, a.id, a.tokens, reasonFailed)
	return err
}

// unsettledEnd reports whether the attempt that crashed was the author's last one, and not
// a rerun by hand. Then the locks are still those of the enqueue, and nobody has freed
// them; a rerun has taken them anew. If a handler has given its lock back early the two
// look alike, and it counts as the last one.
func (w *Worker) unsettledEnd(a *attempt) bool {
	keys := make([]string, len(a.tokens))
	for i, token := range a.tokens {
		keys[i] = token.Key()
	}
	locks, err := w.locks.Status(context.WithoutCancel(a.ctx), keys...)
	if err != nil {
		return true // it could not run now, whoever has asked for it
	}
	for i, lock := range locks {
		token := a.tokens[i]
		anew := door.IdentityOf(token).Fence != 0 && lock.First > door.IdentityOf(token).Fence
		switch {
		case lock.Job != a.job() || lock.Owner != token.Digest():
		case lock.Ended == joblock.EndedReleased:
			return true
		case (lock.Locked() || lock.Ended == joblock.EndedLapsed) && !anew:
			return true
		}
	}
	return false
}

// lastErr returns the text of the task's last error.
func (w *Worker) lastErr(queue, id string) string {
	info, err := w.inspector.GetTaskInfo(queue, id)
	if err != nil {
		w.cfg.Logger.Warn("worker: cannot tell what a task failed with", "job", envelope.Job(queue, id), "err", err)
		return "the reason is not known"
	}
	return info.LastErr
}

// finalError is a handler's error on the last attempt. It matches asynq.SkipRetry, because
// asynq believes that one retry is left.
type finalError struct {
	err   error
	spent bool // beyond the true retries
	told  bool // the ErrorHandler has heard of it before
}

// spentPrefix marks, in a task's last error, that it was archived on a delivery beyond the
// author's retries. asynq keeps the count of retries when somebody runs an archived task
// again. Without the mark such a run would be archived again.
const spentPrefix = "worker: no retries left: "

func (e *finalError) Error() string {
	if e.spent {
		return spentPrefix + e.err.Error()
	}
	return e.err.Error()
}

func (e *finalError) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }
