package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/joblock"
)

// This file deals with the spare retry, which the package comment explains. A delivery of the spare retry, which must
// not run, looks like a rerun, which must run. So the process in which the author's last attempt ended archives the task
// at once. After a crash no process does. Then asynq delivers the task again, and the task's locks show that nobody has
// settled the last attempt.

const (
	// spareDelay is the delay of the spare retry after a timeout or a panic: time for this Worker to archive the task.
	spareDelay = 10 * time.Second

	// archivePatience is how long the method archive waits until asynq has set the task to retry. After that time,
	// asynq's lease on the task has ended, and asynq no longer writes the task's state.
	archivePatience = 30 * time.Second
)

// The function budget returns the MaxRetry of the task's author. The parameter limit is the MaxRetry in asynq.
func budget(env envelope.Envelope, limit int) int {
	if env.Retries >= 0 && env.Retries < limit {
		return env.Retries
	}
	return limit // there is no spare retry
}

type retriesKey struct{}

type retries struct{ budget, limit int } // as in the type attempt

// withRetries returns a child of ctx with budget and limit for newAttempt. In the child, asynq.GetMaxRetry is budget.
func withRetries(ctx context.Context, budget, limit int) context.Context {
	return context.WithValue(asynqprivate.WithMaxRetry(ctx, budget), retriesKey{}, retries{budget, limit})
}

// archive archives a task that will not run again although asynq has retries left for it, and then frees the locks of
// tokens for reason, in the background. If reason is reasonFailed, that is a task whose last attempt has failed, or whose
// Deadline has passed; of other tasks, archive does nothing. archive waits until asynq shows the task in the state retry
// with a last error equal to text. If the task leaves the state active in any other way, archive does nothing.
func (a *attempt) archive(ctx context.Context, text string, tokens []joblock.Token, reason string) {
	mayRetry := !a.last() && reason == reasonFailed
	a.w.open.background(func() {
		over := time.Now().Add(archivePatience)
		for pause := answerPoll; ; pause = min(2*pause, time.Second) {
			info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
			switch {
			case noTask(err), err == nil && mayRetry && !expired(info):
				return
			case err == nil && info.State == asynq.TaskStateRetry && info.LastErr == text:
				if err = a.w.inspector.ArchiveTask(a.queue, a.id); err == nil {
					if mayRetry {
						a.log().Warn("worker: the deadline of a job has passed: its task is archived, and its retries are not used",
							"deadline", info.Deadline, "retried", info.Retried, "max_retry", a.budget)
					}
					a.releaseIdle(ctx, tokens, reason)
					return
				}
			case err == nil && info.State != asynq.TaskStateActive:
				return
			}
			if time.Now().After(over) {
				a.log().Warn("worker: could not archive a task that will not run again", "err", err)
				return
			}
			time.Sleep(pause)
		}
	})
}

// expired reports whether the Deadline of the task has passed. asynq then calls no handler for the task, however many
// retries are left.
func expired(info *asynq.TaskInfo) bool {
	return !info.Deadline.IsZero() && !time.Now().Before(info.Deadline)
}

// The method bounce returns nil if this attempt must run the task. Otherwise the author's last attempt is over, and
// nobody has run the archived task again. The method then frees the task's locks, and returns the error with which
// asynq archives the task.
func (a *attempt) bounce() error {
	counts := a.w.counts.Load()                                   // if nil, asynq charges every end of an attempt
	uncharged := a.last() && a.retried < a.limit && counts != nil // asynq may not have charged a crash
	if !a.spent() && !uncharged {
		return nil
	}
	last := a.lastErr()
	crashed := last == asynq.ErrLeaseExpired.Error()
	switch {
	case strings.HasPrefix(last, nextjob.SpentText), strings.Contains(last, nextjob.ArchiveText):
		return nil // somebody has run the archived task
	case !a.spent():
		if !crashed || (*counts)(asynq.ErrLeaseExpired) {
			return nil
		}
	case a.w.delay.Load() == nil:
		// Without Configure nobody has archived the task.
	case !crashed, !a.unsettledEnd():
		return nil
	}
	err := &finalError{err: errors.New(last), spent: true, told: !crashed}
	if crashed {
		err.err = asynq.ErrLeaseExpired // for errors.Is
	}
	a.releaseInOrder(a.ctx, a.tokens, reasonFailed)
	return err
}

// unsettledEnd reports whether the previous attempt, which has crashed, was the author's last attempt and no rerun. The
// last attempt leaves the task the locks of its enqueue; a rerun has acquired the locks again. If the handler released
// a lock early, both cases look alike, and the result is true.
func (a *attempt) unsettledEnd() bool {
	keys := make([]string, len(a.tokens))
	for i, token := range a.tokens {
		keys[i] = token.Key()
	}
	locks, err := a.w.locks.Status(context.WithoutCancel(a.ctx), keys...)
	if err != nil {
		return true // without the store the task cannot run now
	}
	for i, lock := range locks {
		if lock.State == joblock.StateForeign {
			return true // nobody who can tell is asked here, and the task must not run once more than its author allows
		}
		token := a.tokens[i]
		anew := door.IdentityOf(token).Fence != 0 && lock.First > door.IdentityOf(token).Fence
		unsettled := (lock.Locked() || lock.Ended == joblock.EndedLapsed) && !anew
		if lock.Job == a.job && lock.Owner == token.Digest() && (unsettled || lock.Ended == joblock.EndedReleased) {
			return true
		}
	}
	return false
}

func (a *attempt) lastErr() string {
	info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
	if err != nil {
		a.log().Warn("worker: cannot look up a task's last error", "err", err)
		return "the last error is not known"
	}
	return info.LastErr
}

// finalError wraps the error of the author's last attempt or of a rerun, or an error that matches asynq.SkipRetry.
// Every finalError matches asynq.SkipRetry, so that asynq archives the task and does not use the spare retry.
type finalError struct {
	err   error
	spent bool // the author's last attempt was over before the attempt that failed
	told  bool // the user's ErrorHandler has already been called with err
}

func (e *finalError) Error() string {
	if e.spent {
		return nextjob.SpentText + e.err.Error()
	}
	return e.err.Error()
}

func (e *finalError) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }
