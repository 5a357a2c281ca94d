package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqctx"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Reasons that a release leaves in the lock's record. A later delivery of the
// same task reads them: a job that is done is not run again.
const (
	reasonDone    = "job done"
	reasonRevoked = "job revoked"
	reasonFailed  = "job failed"
	reasonGone    = "job gone"
	reasonSkipped = "job skipped"
	reasonStarted = "job started"
	reasonPutBack = "job put back"
	reasonOver    = "attempt over" // of a lock that the task does not carry
)

// attempt is one delivery of one task that needs locks: those that it carries, or
// one that it takes for this attempt.
type attempt struct {
	w      *Worker
	ctx    context.Context // asynq's, with the true retry budget
	task   *asynq.Task
	id     string
	queue  string
	tokens []joblock.Token // in the order of keys
	asked  []joblock.Token // the same, in the order of the envelope

	// Of tokens, those with a shorter life than the job: locks given up when the
	// handler starts, and locks taken only then.
	untilStart, fromStart []joblock.Token

	taken    []string      // keys of fromStart whose locks this attempt was the first to take
	startsAt asynq.Handler // where untilStart is given up; nil before any handler is called
	started  bool          // it was

	retried int // retries charged before this attempt
	budget  int // the retries the author of the task asked for
	limit   int // asynq's own count: one more, if the task has a spare one

	locks joblock.Locks
}

func (w *Worker) newAttempt(ctx context.Context, task *asynq.Task) (*attempt, error) {
	a := &attempt{w: w, ctx: ctx, task: task}
	var ok [4]bool
	a.id, ok[0] = asynq.GetTaskID(ctx)
	a.queue, ok[1] = asynq.GetQueueName(ctx)
	a.retried, ok[2] = asynq.GetRetryCount(ctx)
	a.limit, ok[3] = asynq.GetMaxRetry(ctx)
	if slices.Contains(ok[:], false) {
		return nil, invalid("the context is not that of an asynq server")
	}
	a.budget = a.limit
	if r, ok := ctx.Value(retriesKey{}).(retries); ok { // inside Middleware
		a.budget, a.limit = r.budget, r.limit
	}
	return a, nil
}

// carry makes the attempt that of a task with an envelope.
func (a *attempt) carry(env envelope.Envelope) error {
	a.tokens, a.asked, a.budget = slices.Clone(env.Tokens), env.Tokens, budget(env, a.limit)
	a.untilStart, a.fromStart = env.UntilStart, env.FromStart
	a.ctx = withRetries(withEnvelope(a.ctx, a.tokens), a.budget, a.limit)
	// One order everywhere, so that two tasks with overlapping keys cannot wait
	// for each other.
	slices.SortFunc(a.tokens, func(x, y joblock.Token) int { return strings.Compare(x.Key(), y.Key()) })
	for i, token := range a.tokens[1:] {
		if token.Key() == a.tokens[i].Key() {
			// It would find itself in its own way at every attempt, and be put back
			// for ever.
			return invalid("the task carries two tokens of key %q", token.Key())
		}
	}
	return nil
}

// budget returns the retries that the author of a task asked for, of which asynq
// knows limit.
func budget(env envelope.Envelope, limit int) int {
	if env.Retries >= 0 && env.Retries < limit {
		return env.Retries
	}
	return limit // without a spare one
}

func withRetries(ctx context.Context, budget, limit int) context.Context {
	return context.WithValue(asynqctx.WithMaxRetry(ctx, budget), retriesKey{}, retries{budget, limit})
}

// left is how long it is until asynq's time for the attempt is up.
func (a *attempt) left() time.Duration {
	deadline, ok := a.ctx.Deadline()
	if !ok {
		return driver.MaxPeriod
	}
	return time.Until(deadline)
}

func (a *attempt) job() string { return envelope.Job(a.queue, a.id) }

// holder labels a lock of this attempt for people, with who has it: Status and List
// have no other way to tell how often the job was tried. One beyond the budget is its
// own last.
func (a *attempt) holder(who string) string {
	tries := fmt.Sprintf(" attempt %d/%d", a.retried+1, max(a.retried, a.budget)+1)
	who = who[:min(len(who), driver.MaxLabelBytes-len(tries))]
	return strings.ToValidUTF8(who, "") + tries
}

// last reports whether a failure of this attempt is final.
func (a *attempt) last() bool { return a.retried >= a.budget }

// spent reports whether this is a delivery beyond the true retries.
func (a *attempt) spent() bool { return a.retried > a.budget }

// run is the whole life of the attempt.
func (a *attempt) run(next asynq.Handler) error {
	if err := a.bounce(); err != nil {
		return err
	}
	if err := a.resumeAll(); err != nil {
		return err
	}
	if a.locks == nil {
		return nil // skipped
	}
	if err := a.ctx.Err(); err != nil {
		// asynq moved on while the locks were being taken. A handler would only
		// learn that it is late, and its result would not count.
		a.settleAbandoned()
		return err
	}
	ctx, stop := a.handed().Context(a.ctx)
	defer stop()
	if len(a.untilStart) > 0 {
		ctx = context.WithValue(ctx, startKey{}, a)
	}
	defer a.limitOverrun()()

	finished := false
	defer func() {
		if !finished {
			// A panic is passing through. It is not recovered here, because asynq
			// reports where it came from. What settle returns is for asynq, which
			// hears of the panic instead.
			_ = a.settle(errPanicked)
		}
	}()
	err := next.ProcessTask(ctx, a.task)
	finished = true
	if pb := a.deprived(ctx, err); pb != nil {
		if a.canPutBack() {
			a.tellPutBack(pb)
		}
		err = pb
	}
	return a.settle(err)
}

// deprived returns the error that puts the task back without charge, if its handler has
// failed with err because a lock of its own was lost: by ForceRelease, or with the data
// of the store. ctx is the handler's. An error that has nothing to do with the loss is
// the handler's own; so is its word that the task is not to be tried again, and so is the
// loss of a lock that it has held for longer than joblock.Config.MaxHold. The task is
// back when it would be after a failure, however often that happens: asynq counts no
// put-backs, and a fault outside is none of the job's.
func (a *attempt) deprived(ctx context.Context, err error) *putBackError {
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
	return &putBackError{err: err, delay: a.w.retryDelay(a.retried, err, a.task)}
}

// handed returns the locks in the order in which they were handed over, so that the
// first is the handler's as it was the request's.
func (a *attempt) handed() joblock.Locks {
	place := make(map[string]int, len(a.asked))
	for i, token := range a.asked {
		place[token.Key()] = i
	}
	return slices.SortedFunc(slices.Values(a.locks), func(x, y *joblock.Lock) int {
		return cmp.Compare(place[x.Key()], place[y.Key()])
	})
}

var errPanicked = errors.New("the handler panicked")

// limitOverrun stops renewing Config.Overrun after the attempt's context ended:
// a handler that hangs must not hold its lock for ever. It returns the undo.
func (a *attempt) limitOverrun() func() {
	done := make(chan struct{})
	stop := context.AfterFunc(a.ctx, func() {
		t := time.NewTimer(a.w.cfg.Overrun)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			a.w.cfg.Logger.Warn("worker: handler runs on after its context ended, its lock is left to lapse",
				"job", a.job(), "task", a.task.Type(), "overrun", a.w.cfg.Overrun)
			for _, lock := range a.locks {
				lock.StopRenewing()
			}
		}
	})
	return func() {
		stop()
		close(done)
	}
}

// lastErr returns the text of the error that the task failed with last.
func (w *Worker) lastErr(queue, id string) string {
	info, err := w.inspector.GetTaskInfo(queue, id)
	if err != nil {
		w.cfg.Logger.Warn("worker: cannot tell what a task failed with", "job", envelope.Job(queue, id), "err", err)
		return "the reason is not known"
	}
	return info.LastErr
}
