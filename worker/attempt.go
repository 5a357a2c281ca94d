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

// The type attempt is one delivery of a task that carries locks, or for which WithoutOverlapping acquires a lock. File
// attempt.go has what happens before the handler is called, and file settle.go what happens when the handler has ended.
type attempt struct {
	w     *Worker
	ctx   context.Context // asynq's context, or a child; after the method carry, asynq.GetMaxRetry(ctx) is budget
	task  *asynq.Task
	id    string
	queue string
	job   string // "queue/id"

	tokens     []joblock.Token // the tokens that the task carries, sorted by key
	asked      []joblock.Token // the same tokens, in the order in which the task's author handed the locks over
	untilStart []joblock.Token // of tokens: those whose locks the task has only until the task starts
	fromStart  []joblock.Token // of tokens: those whose locks an attempt acquires before the handler is called

	sequence *envelope.Sequence // nil if the task is not part of a sequence
	members  int                // of how many tasks of a group the task was made; 0 if it is no aggregate

	called   bool          // in WithoutOverlapping: the task was run before the end of its pause, because its turn is near
	taken    []string      // the keys of those fromStart locks that this attempt has acquired, and not resumed
	startsAt asynq.Handler // the handler at which the untilStart locks are released; nil: Middleware releases them
	started  bool          // the method start has succeeded

	retried int // the retries charged before this attempt
	budget  int // the MaxRetry of the task's author
	limit   int // the MaxRetry in asynq: budget, plus 1 if the task has a spare retry

	locks joblock.Locks // the locks that this attempt has resumed or acquired
}

func (w *Worker) newAttempt(ctx context.Context, task *asynq.Task) (*attempt, error) {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return nil, invalid("the context does not come from an asynq server")
	}
	a := &attempt{w: w, ctx: ctx, task: task, id: id}
	a.queue, _ = asynq.GetQueueName(ctx)
	a.job = envelope.Job(a.queue, id)
	a.retried, _ = asynq.GetRetryCount(ctx)
	a.limit, _ = asynq.GetMaxRetry(ctx)
	a.budget = a.limit
	if r, ok := ctx.Value(retriesKey{}).(retries); ok { // inside Middleware
		a.budget, a.limit = r.budget, r.limit
	}
	return a, nil
}

// The method carry copies env into a and a.ctx. The error is joblock.ErrInvalid if two tokens have the same key.
func (a *attempt) carry(env envelope.Envelope) error {
	a.tokens, a.asked, a.budget = slices.Clone(env.Tokens), env.Tokens, budget(env, a.limit)
	a.untilStart, a.fromStart, a.sequence, a.members = env.UntilStart, env.FromStart, env.Sequence, env.Members
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

// The method left returns the time until the attempt's deadline, or driver.MaxPeriod if there is no deadline.
func (a *attempt) left() time.Duration {
	if deadline, ok := a.ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return driver.MaxPeriod
}

func (a *attempt) log() *slog.Logger { return a.w.cfg.Logger.With("job", a.job, "task", a.task.Type()) }

// The method holder returns the holder label of the attempt's locks, such as "host:123 attempt 2/4". The parameter who
// is cut if the label would be too long. A run after the author's last attempt shows two equal numbers.
func (a *attempt) holder(who string) string {
	tries := fmt.Sprintf(" attempt %d/%d", a.retried+1, max(a.retried, a.budget)+1)
	who = who[:min(len(who), driver.MaxLabelBytes-len(tries))]
	return strings.ToValidUTF8(who, "") + tries
}

// The method last reports whether the task's author allows no further attempt after this attempt.
func (a *attempt) last() bool { return a.retried >= a.budget }

// The method spent reports whether the author's last attempt is over: this attempt is the spare retry, or a rerun.
func (a *attempt) spent() bool { return a.retried > a.budget }

// mayCarry reports whether the task carries locks. Outside of Middleware, a forged header counts too.
func (a *attempt) mayCarry() bool {
	if env, found := a.ctx.Value(envelopeKey{}).(envelope.Envelope); found {
		return len(env.Tokens) > 0
	}
	return carries(a.task)
}

// The method refuse snoozes the task of an attempt that begins after Worker.Close. An attempt can begin even after the
// server's Shutdown: asynq does not wait until the goroutine of a task has called the handler.
func (a *attempt) refuse() error {
	if a.canSnooze() {
		return a.w.snooze(workerClosed())
	}
	// asynq would charge or archive the task for an error now. A context that has ended puts the task back into the
	// queue, and asynq ends the context when the server is shut down.
	<-a.ctx.Done()
	return context.Cause(a.ctx)
}

// The method run resumes the locks, calls next, and settles the locks. The result is the error for asynq.
func (a *attempt) run(next asynq.Handler) (err error) {
	defer a.traced(&err, a.tokens...)()
	if err := a.bounce(); err != nil {
		return err
	}
	resume := func() (struct{}, error) { return struct{}{}, a.resumeAll() }
	late := func(struct{}) { a.backOut(a.locks, a.w.reservation(0)) }
	if _, err := inTime(a, a.left()/2, resume, late); err != nil {
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
	if err := a.tooLongAfterCrash(); err != nil {
		return a.settle(err)
	}
	ctx, stop := a.handed().Context(a.ctx)
	defer stop()
	if len(a.untilStart) > 0 {
		ctx = context.WithValue(ctx, startKey{}, a)
	}
	defer a.limitOverrun()()

	began, finished := time.Now(), false
	defer func() {
		if !finished {
			_ = a.settle(errPanicked) // no recover: asynq reports the place of the panic
		}
	}()
	err = next.ProcessTask(ctx, a.task)
	finished = true
	a.took(err, time.Since(began))
	if snoozed := a.snoozeForLoss(ctx, err); snoozed != nil {
		if a.canSnooze() {
			a.logSnoozed(snoozed)
		}
		err = snoozed
	}
	return a.settle(err)
}

// The method handed returns a.locks in the order of a.asked. joblock.FromContext returns the first of these locks.
func (a *attempt) handed() joblock.Locks {
	var locks joblock.Locks
	for _, token := range a.asked {
		if lock, ok := a.locks.ByKey(token.Key()); ok {
			locks = append(locks, lock)
		}
	}
	return locks
}

// limitOverrun makes the attempt stop renewing a.locks when Config.Overrun has passed since the end of a.ctx. So a
// handler that hangs does not hold its locks for ever. Call the returned function when the handler has ended.
func (a *attempt) limitOverrun() (returned func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(a.ctx, func() {
		if sleep.AtMost(a.w.cfg.Overrun, ended) {
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
		close(ended)
	}
}

// waitPoll is the pause between two tries of a task that waits in place for a carried lock or for the store.
const waitPoll = 500 * time.Millisecond

// resumeAll resumes the locks of a.tokens into a.locks. After an error the resumed locks are settled. If the task must
// succeed without a call of the handler, resumeAll returns nil and leaves a.locks nil.
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
	if a.sequence != nil && a.sequence.Waits {
		if slot, found, _ := a.findSlot(ctx, a.sequence.Limit); found { // an error shows up below
			a.moveTo(slot)
		}
	}
	tokens := a.tokens
	if len(a.untilStart) > 0 {
		tokens = slices.DeleteFunc(slices.Clone(tokens), func(t joblock.Token) bool { return slices.Contains(a.untilStart, t) })
	}
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
	if snoozed := a.early(); snoozed != nil {
		a.park(locks, a.w.reservation(snoozed.delay))
		return snoozed
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

// The method resume resumes tokens together. Each token has either a lock or an error, in the order of tokens.
func (a *attempt) resume(ctx context.Context, tokens []joblock.Token) (joblock.Locks, []error) {
	in := door.Of(a.w.locks)
	opts := []joblock.ResumeOption{
		joblock.ForJob(a.job), joblock.Holder(a.holder(in.Settings().Holder)), joblock.Reserve(a.w.cfg.Reserve),
	}
	locks, errs := in.Resume(ctx, tokens, opts)
	return locks.(joblock.Locks), errs
}

// The method gone decides what follows the error err of Locker.Resume for token. The result is a lock that was acquired
// again, or the error that ends the attempt. If both are nil, the task must succeed without a call of the handler.
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
	if a.inSequence(token) {
		return a.lineUp(ctx, token)
	}
	policy, level := a.w.cfg.Gone, slog.LevelWarn
	if a.members > 1 {
		policy = Reacquire // one lost key must not end the work of the others
	}
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

// The method duplicate reports whether this attempt is a duplicate delivery of a job that is done. Call duplicate only
// if the lock of token has ended as joblock.EndedDone. If asynq does not answer, the error is joblock.ErrUnavailable.
func (a *attempt) duplicate(ctx context.Context, token joblock.Token) (bool, error) {
	sts, err := a.w.locks.Status(ctx, token.Key())
	if err != nil {
		return false, err
	}
	if sts[0].Job != a.job {
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
	return info.CompletedAt.IsZero(), nil // with a completion time: somebody runs a completed task again
}

// The method elsewhere is for a token that was refused with joblock.ErrNotOwner. If the token's owner has the lock for
// another job, the error snoozes the task: a handler hands the lock over, or handoff replaces the other job by this
// attempt's job. Any other error is that of Status.
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
		e.Code, e.Remaining = joblock.CodeOf(joblock.ErrBusy), st.Lease
	}
	return &ownError{fmt.Sprintf("the lock is with job %s", st.Job), e}
}

// reacquire acquires the lock of token again under the same owner token, so that later attempts can resume the lock.
// Parked and resumed at once, the lock is bound to the job, and stays reserved for the job if this process crashes.
func (a *attempt) reacquire(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	// OwnKey: the key may be one of the toolkit's keys, for a permit or for a job that waits for another job.
	lock, err := a.w.locks.TryAcquire(ctx, token.Key(), door.OwnKey[joblock.Option](),
		joblock.Owner(door.IdentityOf(token).Owner), joblock.TTL(door.IdentityOf(token).TTL))
	if err != nil {
		return nil, err
	}
	token, err = lock.Park(ctx, joblock.Reserve(a.w.reservation(0)), joblock.ForJob(a.job))
	if err != nil {
		return nil, errors.Join(err, lock.Release(a.w.next.In(ctx)))
	}
	locks, errs := a.resume(ctx, []joblock.Token{token})
	return locks[0], errs[0]
}

// The method start releases the locks of a.untilStart, which only keep other jobs from being enqueued:
//
//	released, or gone                 nil: an earlier attempt may have released the lock
//	held, or bound to another job     an error that snoozes the task, because somebody is replacing the task
//	no answer, or the Locker closed   an error that snoozes the task: the lock would refuse other jobs without need
//	any other error                   logged; nil
func (a *attempt) start(ctx context.Context) error {
	for _, token := range a.untilStart {
		err := a.w.locks.Release(a.w.next.In(ctx), token, joblock.IfIdle(), joblock.Reason(reasonStarted), joblock.ForJob(a.job))
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
