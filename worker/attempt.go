package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The type attempt is one delivery of a task that carries locks, or that WithoutOverlapping acquires a lock for. This
// file has the part of the attempt before the handler, and settle.go the part after the handler.
type attempt struct {
	w     *Worker
	ctx   context.Context // asynq's context; GetMaxRetry returns budget
	task  *asynq.Task
	id    string
	queue string

	tokens     []joblock.Token // the carried tokens, sorted by key
	asked      []joblock.Token // the carried tokens, in the order of the envelope
	untilStart []joblock.Token // the part of tokens whose locks are released when the handler starts
	fromStart  []joblock.Token // the part of tokens whose locks are acquired when the handler starts

	taken    []string      // the keys of fromStart whose locks this attempt was the first to acquire
	startsAt asynq.Handler // the handler at which untilStart is released; nil for Middleware itself
	started  bool          // untilStart was released

	retried int // the retries charged before this attempt
	budget  int // the MaxRetry of the task's author
	limit   int // the MaxRetry in asynq: budget, plus 1 if the task has a spare retry

	locks joblock.Locks // the locks that this attempt holds
}

func (w *Worker) newAttempt(ctx context.Context, task *asynq.Task) (*attempt, error) {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return nil, invalid("the context does not come from an asynq server")
	}
	a := &attempt{w: w, ctx: ctx, task: task, id: id}
	a.queue, _ = asynq.GetQueueName(ctx)
	a.retried, _ = asynq.GetRetryCount(ctx)
	a.limit, _ = asynq.GetMaxRetry(ctx)
	a.budget = a.limit
	if r, ok := ctx.Value(retriesKey{}).(retries); ok { // inside Middleware
		a.budget, a.limit = r.budget, r.limit
	}
	return a, nil
}

// The method carry sets the tokens and the retries from env.
func (a *attempt) carry(env envelope.Envelope) error {
	a.tokens, a.asked, a.budget = slices.Clone(env.Tokens), env.Tokens, budget(env, a.limit)
	a.untilStart, a.fromStart = env.UntilStart, env.FromStart
	a.ctx = withRetries(withEnvelope(a.ctx, env), a.budget, a.limit)
	// Attempts resume in the order of keys. So of two attempts with common keys one gets all locks, instead of each
	// getting some.
	slices.SortFunc(a.tokens, func(x, y joblock.Token) int { return strings.Compare(x.Key(), y.Key()) })
	for i, token := range a.tokens[1:] {
		if token.Key() == a.tokens[i].Key() {
			// The second token would find the lock busy at every attempt.
			return invalid("the task carries two tokens of key %q", token.Key())
		}
	}
	return nil
}

// The method left returns the time until the attempt's deadline.
func (a *attempt) left() time.Duration {
	deadline, ok := a.ctx.Deadline()
	if !ok {
		return driver.MaxPeriod
	}
	return time.Until(deadline)
}

func (a *attempt) job() string { return envelope.Job(a.queue, a.id) }

func (a *attempt) log() *slog.Logger {
	return a.w.cfg.Logger.With("job", a.job(), "task", a.task.Type())
}

// holder returns the parameter who, followed by the number of the attempt. Status and List show the result as the
// holder. A rerun beyond the budget counts as the last attempt.
func (a *attempt) holder(who string) string {
	tries := fmt.Sprintf(" attempt %d/%d", a.retried+1, max(a.retried, a.budget)+1)
	who = who[:min(len(who), driver.MaxLabelBytes-len(tries))]
	return strings.ToValidUTF8(who, "") + tries
}

// The method last reports whether a failure of this attempt is final.
func (a *attempt) last() bool { return a.retried >= a.budget }

// The method spent reports whether this attempt is beyond the retries of the task's author.
func (a *attempt) spent() bool { return a.retried > a.budget }

// mayCarry reports whether the task carries locks. Outside of Middleware the seal is not verified.
func (a *attempt) mayCarry() bool {
	if env, found := a.ctx.Value(envelopeKey{}).(envelope.Envelope); found {
		return len(env.Tokens) > 0
	}
	return carries(a.task)
}

// refuse returns the result of an attempt that begins after Close. asynq does not wait for the goroutine to start, so
// asynq may call the handler even after Shutdown.
func (a *attempt) refuse() error {
	err := workerClosed()
	if a.canSnooze() {
		return a.w.snooze(err)
	}
	// asynq would charge or archive the task for an error now. A context that has ended puts the task back into the
	// queue, and asynq ends the context when the server is shut down.
	<-a.ctx.Done()
	return context.Cause(a.ctx)
}

// run resumes the locks, calls next, and settles the locks. The error is for asynq.
func (a *attempt) run(next asynq.Handler) error {
	if err := a.bounce(); err != nil {
		return err
	}
	if err := a.resumeAll(); err != nil {
		return err
	}
	if a.locks == nil {
		return nil // the task succeeds without a call of next
	}
	if err := a.ctx.Err(); err != nil {
		// asynq has moved on and would ignore the handler's result.
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
			// The handler panics. No recover: asynq reports the place of the panic. asynq gets the panic, not the
			// result of settle.
			_ = a.settle(errors.New("the handler panicked"))
		}
	}()
	err := next.ProcessTask(ctx, a.task)
	finished = true
	if snoozed := a.snoozeForLoss(ctx, err); snoozed != nil {
		if a.canSnooze() {
			a.logSnoozed(snoozed)
		}
		err = snoozed
	}
	return a.settle(err)
}

// The method handed returns the locks in the order of the hand-over, so that joblock.FromContext returns the same lock
// as at the enqueue.
func (a *attempt) handed() joblock.Locks {
	var locks joblock.Locks
	for _, token := range a.asked {
		if lock, ok := a.locks.ByKey(token.Key()); ok {
			locks = append(locks, lock)
		}
	}
	return locks
}

// limitOverrun ends the renewal of the locks when Config.Overrun has passed since the end of the attempt's context: a
// handler that hangs must not hold its locks for ever. The caller calls the returned function when the handler returns.
func (a *attempt) limitOverrun() (returned func()) {
	running, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(a.ctx, func() {
		if sleep.For(running, a.w.cfg.Overrun) != nil {
			return
		}
		a.log().Warn("worker: handler still runs long after the end of its context; its locks are no longer renewed",
			"overrun", a.w.cfg.Overrun)
		for _, lock := range a.locks {
			lock.StopRenewing()
		}
	})
	return func() {
		stop()
		cancel()
	}
}

// waitPoll is the pause of a task that waits in place, between two calls of the locks' store.
const waitPoll = 500 * time.Millisecond

// resumeAll resumes all locks of the task and sets a.locks. After an error the attempt holds no lock. If the task
// succeeds without a call of the handler, resumeAll returns nil and leaves a.locks nil.
func (a *attempt) resumeAll() error {
	for {
		err := a.tryResumeAll()
		snoozed, ok := as[*snoozeError](err)
		if !ok {
			return err
		}
		if a.canSnooze() {
			a.logSnoozed(snoozed)
			return err
		}
		if a.spent() && a.canSnoozeByArchive() {
			return a.snoozeByArchive(snoozed)
		}
		// asynq would charge or archive the task for an error, so the task waits in place.
		if sleep.For(a.ctx, waitPoll) != nil {
			return errors.Join(context.Cause(a.ctx), snoozed.err)
		}
	}
}

func (a *attempt) tryResumeAll() error {
	// A call that the end of a.ctx cuts short may resume a lock that nobody settles. joblock bounds each call.
	ctx := context.WithoutCancel(a.ctx)
	tokens := slices.DeleteFunc(slices.Clone(a.tokens), func(t joblock.Token) bool { return slices.Contains(a.untilStart, t) })
	resumed, errs := a.resume(ctx, tokens)
	locks := slices.DeleteFunc(slices.Clone(resumed), func(lock *joblock.Lock) bool { return lock == nil })
	for i, token := range tokens {
		if resumed[i] != nil {
			continue
		}
		lock, err := a.gone(ctx, token, errs[i])
		if lock != nil {
			locks = append(locks, lock)
			continue
		}
		if err == nil {
			a.behind(func() {
				a.end(ctx, locks, reasonSkipped)
				without := func(t joblock.Token) bool { _, held := locks.ByKey(t.Key()); return held }
				a.releaseIdle(ctx, slices.DeleteFunc(slices.Clone(a.tokens), without), reasonSkipped)
			})
			return nil
		}
		if snoozed := a.w.snooze(err); snoozed != nil {
			a.park(locks, a.w.reservation(0))
			return snoozed
		}
		a.locks = locks
		return a.settle(fmt.Errorf("worker: lock %q: %w", token.Key(), err))
	}
	if a.startsAt == nil {
		if snoozed := a.start(ctx); snoozed != nil {
			a.behind(func() { a.backOut(locks, a.w.reservation(0)) })
			return snoozed
		}
		a.started = true
	}
	a.locks = locks
	return nil
}

// The method resume resumes tokens in one batch. A lock is nil if its token could not be resumed.
func (a *attempt) resume(ctx context.Context, tokens []joblock.Token) (joblock.Locks, []error) {
	in := door.Of(a.w.locks)
	opts := []joblock.ResumeOption{
		joblock.ForJob(a.job()), joblock.Holder(a.holder(in.Settings().Holder)), joblock.Reserve(a.w.cfg.Reserve),
	}
	locks, errs := in.Resume(ctx, tokens, opts)
	return locks.(joblock.Locks), errs
}

// The method gone handles err, with which Locker.Resume has refused token. The result is a lock, or the error of the
// attempt. If both results are nil, the task succeeds without a call of the handler.
func (a *attempt) gone(ctx context.Context, token joblock.Token, err error) (*joblock.Lock, error) {
	e, ok := as[*joblock.Error](err)
	if !ok || !isGone(err) {
		return nil, err
	}
	if errors.Is(err, joblock.ErrNotOwner) {
		if err := a.elsewhere(ctx, token); err != nil {
			return nil, err
		}
	}
	log := a.log().With("key", token.Key(), "cause", err)
	if e.Ended == joblock.EndedDone {
		over, err := a.duplicate(ctx, token)
		if err != nil {
			return nil, err
		}
		if over {
			log.Info("worker: a duplicate delivery of a finished job succeeds without a run")
			return nil, nil
		}
	}
	policy, level := a.w.cfg.Gone, slog.LevelWarn
	if slices.Contains(a.fromStart, token) {
		policy, level = Reacquire, slog.LevelDebug // an earlier attempt has not acquired the lock yet
	}
	var lock *joblock.Lock
	switch policy {
	case Skip:
		err = nil
	case Fail:
	case Reacquire:
		if lock, err = a.reacquire(ctx, token); err == nil && slices.Contains(a.fromStart, token) {
			a.taken = append(a.taken, token.Key())
		}
	}
	if a.w.snooze(err) != nil {
		level = slog.LevelDebug // each attempt logs this record until the task gets the lock
	}
	log.Log(ctx, level, "worker: the lock is gone", "policy", policy)
	return lock, err
}

// The method duplicate is for a token whose lock's record says that a job is done. The method reports whether this
// attempt is a duplicate delivery of that job. If asynq has a completion time for the task, somebody has run the
// completed task again, and duplicate returns false.
func (a *attempt) duplicate(ctx context.Context, token joblock.Token) (bool, error) {
	sts, err := a.w.locks.Status(ctx, token.Key())
	if err != nil {
		return false, err
	}
	if sts[0].Job != a.job() {
		return false, nil // the handler handed the lock over to another job
	}
	info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
	switch {
	case noTask(err):
		return true, nil
	case err != nil:
		return false, &ownError{
			fmt.Sprintf("cannot ask asynq for the task: %s", err),
			&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Key: token.Key(), Err: err},
		}
	}
	return info.CompletedAt.IsZero(), nil
}

// If token's lock is bound to another job, the method elsewhere returns an error that snoozes the task: a handler handed
// the lock over, or handoff is replacing the other job by this one. elsewhere returns an error of Status unchanged.
func (a *attempt) elsewhere(ctx context.Context, token joblock.Token) error {
	sts, err := a.w.locks.Status(ctx, token.Key())
	if err != nil {
		return err
	}
	st := sts[0]
	if !st.Locked() || st.Owner != token.Digest() {
		return nil
	}
	e := &joblock.Error{Key: token.Key(), Holder: st.Holder, Job: st.Job}
	e.Code, e.Remaining = joblock.CodeOf(joblock.ErrHeld), st.Reserved
	if st.State == joblock.StateHeld {
		e.Code, e.Remaining = joblock.CodeOf(joblock.ErrBusy), st.Remaining
	}
	return &ownError{fmt.Sprintf("the lock is with job %s", st.Job), e}
}

// reacquire acquires the lock again under the owner token in the parameter token, so that later attempts can resume the
// lock. A park then binds the lock to the job, so that the lock outlives a crash of this process.
func (a *attempt) reacquire(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	// OwnKey: the key may be one of the toolkit's keys, for a permit or for a job that waits for another job.
	lock, err := a.w.locks.TryAcquire(ctx, token.Key(), door.OwnKey[joblock.Option](),
		joblock.Owner(door.IdentityOf(token).Owner), joblock.TTL(door.IdentityOf(token).TTL))
	if err != nil {
		return nil, err
	}
	token, err = lock.Park(ctx, joblock.Reserve(a.w.reservation(0)), joblock.ForJob(a.job()))
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	locks, errs := a.resume(ctx, []joblock.Token{token})
	return locks[0], errs[0]
}

// The method start releases the locks of untilStart. A lock that is gone does not matter: the lock only kept other jobs
// from being enqueued, and an earlier attempt may have released the lock. start returns an error that snoozes the task
// in two cases:
//
//   - somebody holds the lock in order to replace this task: the task must not run
//   - the store does not answer: while the handler runs, other jobs would be refused without need
func (a *attempt) start(ctx context.Context) error {
	for _, token := range a.untilStart {
		err := a.w.locks.Release(ctx, token, joblock.IfIdle(), joblock.Reason(reasonStarted), joblock.ForJob(a.job()))
		if errors.Is(err, joblock.ErrNotOwner) {
			err = a.elsewhere(ctx, token)
		}
		if joblock.CodeOf(err) == "" || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrNotFound) {
			continue
		}
		if snoozed := a.w.snooze(err); snoozed != nil {
			return snoozed
		}
		a.log().Warn("worker: could not release a lock that a task has until it starts", "key", token.Key(), "err", err)
	}
	return nil
}
