package worker

import (
	"cmp"
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

// attempt is one delivery of a task that needs locks: those that it carries, or one that
// WithoutOverlapping takes. Its beginning, up to the handler, is in this file; its end is
// in settle.go.
type attempt struct {
	w      *Worker
	ctx    context.Context // asynq's, with the true retry budget
	task   *asynq.Task
	id     string
	queue  string
	tokens []joblock.Token // in the order of keys
	asked  []joblock.Token // the same, in the order of the envelope

	// Some of tokens: untilStart are given up when the handler starts, fromStart are taken
	// only then.
	untilStart, fromStart []joblock.Token

	taken    []string      // keys of fromStart whose locks this attempt was the first to take
	startsAt asynq.Handler // where untilStart is given up; nil for Middleware itself
	started  bool          // untilStart was given up

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

// carry sets what the envelope says: tokens and retries.
func (a *attempt) carry(env envelope.Envelope) error {
	a.tokens, a.asked, a.budget = slices.Clone(env.Tokens), env.Tokens, budget(env, a.limit)
	a.untilStart, a.fromStart = env.UntilStart, env.FromStart
	a.ctx = withRetries(withEnvelope(a.ctx, env), a.budget, a.limit)
	// One order everywhere, so that two tasks with overlapping keys cannot wait
	// for each other.
	slices.SortFunc(a.tokens, func(x, y joblock.Token) int { return strings.Compare(x.Key(), y.Key()) })
	for i, token := range a.tokens[1:] {
		if token.Key() == a.tokens[i].Key() {
			// The task would find its own lock busy at every attempt.
			return invalid("the task carries two tokens of key %q", token.Key())
		}
	}
	return nil
}

// left returns the time until the attempt's deadline.
func (a *attempt) left() time.Duration {
	deadline, ok := a.ctx.Deadline()
	if !ok {
		return driver.MaxPeriod
	}
	return time.Until(deadline)
}

func (a *attempt) job() string { return envelope.Job(a.queue, a.id) }

// holder returns the label of a lock: who has it, and at which attempt. Status and List
// show the number of attempts nowhere else. A rerun beyond the budget counts as the last
// attempt.
func (a *attempt) holder(who string) string {
	tries := fmt.Sprintf(" attempt %d/%d", a.retried+1, max(a.retried, a.budget)+1)
	who = who[:min(len(who), driver.MaxLabelBytes-len(tries))]
	return strings.ToValidUTF8(who, "") + tries
}

// last reports whether a failure of this attempt is final.
func (a *attempt) last() bool { return a.retried >= a.budget }

// spent reports whether this is a delivery beyond the author's retries.
func (a *attempt) spent() bool { return a.retried > a.budget }

// mayCarry reports whether the task carries locks, as far as is known.
func (a *attempt) mayCarry() bool {
	if env, found := a.ctx.Value(envelopeKey{}).(envelope.Envelope); found {
		return len(env.Tokens) > 0
	}
	return carries(a.task)
}

// refuse ends an attempt that begins after Close. asynq may call the handler even after
// Shutdown: it does not wait for the goroutine to start.
func (a *attempt) refuse() error {
	err := workerClosed()
	if a.w.canSnooze(a) {
		return a.w.snooze(err)
	}
	// asynq would charge or archive the task. But it ends the context when the server is
	// shut down.
	<-a.ctx.Done()
	return context.Cause(a.ctx)
}

// run is the whole life of the attempt.
func (a *attempt) run(next asynq.Handler) error {
	if err := a.w.bounce(a); err != nil {
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
			// The handler panics. There is no recover here, because asynq reports where
			// the panic came from. asynq hears of that, and not of what settle returns.
			_ = a.settle(errPanicked)
		}
	}()
	err := next.ProcessTask(ctx, a.task)
	finished = true
	if snoozed := a.snoozeForLoss(ctx, err); snoozed != nil {
		if a.w.canSnooze(a) {
			a.w.tellSnoozed(a, snoozed)
		}
		err = snoozed
	}
	return a.settle(err)
}

// handed returns the locks in the order of the hand-over: joblock.FromContext returns the
// same one as in the request.
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

// limitOverrun ends the renewal of the locks if the handler still runs when Config.Overrun
// has passed since the end of the attempt's context: a handler that hangs must not hold
// them for ever. The returned function undoes this.
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

// waitPoll is the pause between two tries of a task that waits in place.
const waitPoll = 500 * time.Millisecond

// resumeAll takes the locks of the task, all or none. If the task succeeds without being
// run, it returns nil, and a.locks is nil.
func (a *attempt) resumeAll() error {
	for {
		err := a.tryResumeAll()
		var snoozed *snoozeError
		if !errors.As(err, &snoozed) {
			return err
		}
		if a.w.canSnooze(a) {
			a.w.tellSnoozed(a, snoozed)
			return err
		}
		if a.spent() && a.w.canSnoozeByArchive(a) {
			return a.w.snoozeByArchive(a, snoozed)
		}
		// asynq would charge or archive the task. Wait here instead.
		if sleep.For(a.ctx, waitPoll) != nil {
			return errors.Join(context.Cause(a.ctx), snoozed.err)
		}
	}
}

func (a *attempt) tryResumeAll() error {
	// The attempt's end must not cut this short: it would be unknown whether a lock was
	// resumed, and nobody would settle it. joblock bounds each call.
	ctx := context.WithoutCancel(a.ctx)
	locks := make(joblock.Locks, 0, len(a.tokens))
	for i, token := range a.tokens {
		if slices.Contains(a.untilStart, token) {
			continue
		}
		lock, err := a.resume(ctx, token)
		if err != nil {
			lock, err = a.gone(ctx, token, err)
		}
		if lock != nil {
			locks = append(locks, lock)
			continue
		}
		if err == nil {
			a.behind(func() {
				a.end(ctx, locks, reasonSkipped)
				a.w.releaseIdle(ctx, a.queue, a.id, slices.Concat(a.tokens[i:], a.untilStart), reasonSkipped)
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

// resume takes the lock of token for this attempt.
func (a *attempt) resume(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	return a.w.locks.Resume(ctx, token, joblock.ForJob(a.job()), joblock.Holder(a.holder(door.Of(a.w.locks).Settings().Holder)), joblock.Reserve(a.w.cfg.Reserve))
}

// gone decides what to do after Resume has refused token with err. If lock and error are
// nil, the task succeeds without being run.
func (a *attempt) gone(ctx context.Context, token joblock.Token, err error) (*joblock.Lock, error) {
	var e *joblock.Error
	if !errors.As(err, &e) || !isGone(err) {
		return nil, err
	}
	if errors.Is(err, joblock.ErrNotOwner) {
		if err := a.elsewhere(ctx, token); err != nil {
			return nil, err
		}
	}
	log := a.w.cfg.Logger.With("job", a.job(), "task", a.task.Type(), "key", token.Key(), "cause", err)
	if e.Ended == joblock.EndedDone {
		over, err := a.duplicate(ctx, token)
		if err != nil {
			return nil, err
		}
		if over {
			log.Info("worker: the job is over already, its duplicate delivery is skipped")
			return nil, nil
		}
	}
	policy, level := a.w.cfg.Gone, slog.LevelWarn
	if slices.Contains(a.fromStart, token) {
		policy, level = Reacquire, slog.LevelDebug // nobody has taken it yet
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
		level = slog.LevelDebug // it comes here again and again, until it gets the lock
	}
	log.Log(ctx, level, "worker: the lock is gone", "policy", policy)
	return lock, err
}

// duplicate is for a job that is done, as the record of token's lock says. It reports
// whether asynq delivers the job again only because it has not heard of that. If asynq has
// the task as completed, somebody has run it again.
func (a *attempt) duplicate(ctx context.Context, token joblock.Token) (bool, error) {
	sts, err := a.w.locks.Status(ctx, token.Key())
	if err != nil {
		return false, err
	}
	if sts[0].Job != a.job() {
		return false, nil // its handler had handed the lock over to another job
	}
	info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return true, nil
	case err != nil:
		return false, &ownError{
			fmt.Sprintf("cannot ask asynq for the task: %s", err),
			&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Key: token.Key(), Err: err},
		}
	}
	return info.CompletedAt.IsZero(), nil
}

// elsewhere returns an error that snoozes the task if another job has the lock under the
// same token: a handler has handed it over, or handoff is replacing that job by this one.
func (a *attempt) elsewhere(ctx context.Context, token joblock.Token) error {
	sts, err := a.w.locks.Status(ctx, token.Key())
	if err != nil {
		return err
	}
	st := sts[0]
	if !st.Locked() || st.Owner != token.Digest() {
		return nil
	}
	e := &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: token.Key(), Holder: st.Holder, Job: st.Job, Remaining: st.Reserved}
	if st.State == joblock.StateHeld {
		e.Code, e.Remaining = joblock.CodeOf(joblock.ErrBusy), st.Remaining
	}
	return &ownError{fmt.Sprintf("the lock is with job %s", st.Job), e}
}

// reacquire takes the lock anew under the token's owner, so that later attempts can resume
// it. It then parks and resumes the lock, because that binds the lock to the job and lets
// it outlive a crash of this process.
func (a *attempt) reacquire(ctx context.Context, token joblock.Token) (*joblock.Lock, error) {
	// The key may be one of the toolkit's own: of a permit, or of a job that waits for
	// another.
	lock, err := a.w.locks.TryAcquire(ctx, token.Key(), door.OwnKey[joblock.Option](),
		joblock.Owner(door.IdentityOf(token).Owner), joblock.TTL(door.IdentityOf(token).TTL))
	if err != nil {
		return nil, err
	}
	token, err = lock.Park(ctx, joblock.Reserve(a.w.reservation(0)), joblock.ForJob(a.job()))
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	return a.resume(ctx, token)
}

// start gives up the locks that the task has until its handler starts. If one is gone the
// task runs all the same: the lock only kept other jobs from being enqueued, and an earlier
// attempt may have given it up. start returns an error that snoozes the task in two cases.
// Somebody holds the lock to replace this task, which must not run then. Or the store does
// not answer: other jobs would be refused while the handler runs, for nothing.
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
		a.w.cfg.Logger.Warn("worker: could not release a lock that a task has until it starts",
			"job", a.job(), "task", a.task.Type(), "key", token.Key(), "err", err)
	}
	return nil
}
