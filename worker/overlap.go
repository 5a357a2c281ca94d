package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hibiken/asynq"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

const defaultMaxWait = 3 * time.Second

// waitShare is the part of its timeout that a task may wait in place. Nobody knows how long
// it needs to run, and a task that begins too late is worse than one that is snoozed.
// lastShare is for a task that cannot be snoozed.
const (
	waitShare = 0.1
	lastShare = 0.5
)

// shortWait is how long a task waits in place if all places are taken.
const shortWait = 500 * time.Millisecond

// OverlapOption changes what WithoutOverlapping does.
type OverlapOption func(*overlap)

// Limit lets up to n tasks with the same key run at a time; see package limit.
func Limit(n int) OverlapOption {
	return func(o *overlap) { o.limit, o.limited = n, true }
}

// MaxWait sets the longest wait in place for a busy key; 0 means not to wait. Need bounds it
// too. A task that waits takes up one of the server's Concurrency. The default:
//
//	DropIfBusy, FailIfBusy                           0
//	fewer than a quarter of the server's tasks wait  3 s
//	more do, and locks are held for short times      half a second
//	more do, and locks are held for long             0
func MaxWait(d time.Duration) OverlapOption {
	return func(o *overlap) { o.maxWait, o.hasWait = d, true }
}

// Need sets how much of its timeout a task must have left when it begins. A task that waits
// in place is snoozed when no more than that is left. Default nine tenths.
func Need(d time.Duration) OverlapOption {
	return func(o *overlap) { o.need, o.hasNeed = d, true }
}

// DropIfBusy makes a task whose key is busy succeed without being run.
func DropIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = dropIfBusy } }

// FailIfBusy makes the attempt of a task whose key is busy fail by asynq's rules: it is
// charged, and on the last attempt the task is archived. The error matches
// joblock.ErrHeld or joblock.ErrTimeout.
func FailIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = failIfBusy } }

// WithoutOverlapping returns an asynq.MiddlewareFunc that runs tasks with the same key one
// at a time, or a few at a time with Limit. key returns the key for a task; "" means that
// it needs no lock. The lock is taken when a task is about to run, and released when the
// attempt ends, also by a panic. The package comment says what happens to a task whose key
// is busy.
//
// The handler's context carries the lock, and ends as with Middleware. Inside Middleware
// this is the innermost lock, the one that joblock.FromContext returns. Find a lock that
// the task carries by its key, with joblock.LocksFromContext(ctx).ByKey.
//
// Attempts fail with joblock.ErrInvalid if the key is not valid, if an option is out of
// bounds, if the task carries this lock only until it starts (handoff.UntilStarted), or if
// the key function, the next handler, an option or the Worker is nil.
func (w *Worker) WithoutOverlapping(key func(*asynq.Task) string, opts ...OverlapOption) asynq.MiddlewareFunc {
	o := &overlap{w: w, key: key}
	switch {
	case w == nil:
		o.err = invalid("WithoutOverlapping of a nil Worker")
	case key == nil:
		o.err = invalid("WithoutOverlapping was given a nil key function")
	case slices.ContainsFunc(opts, func(opt OverlapOption) bool { return opt == nil }):
		o.err = invalid("WithoutOverlapping was given a nil option")
	default:
		for _, opt := range opts {
			opt(o)
		}
		if !o.hasWait && o.ifBusy == snoozeIfBusy {
			o.maxWait = defaultMaxWait
		}
		if o.maxWait < 0 {
			o.err = invalid("MaxWait is %s, must not be negative", o.maxWait)
		}
		if o.need < 0 {
			o.err = invalid("Need is %s, must not be negative", o.need)
		}
	}
	return func(next asynq.Handler) asynq.Handler { return &overlapHandler{o, next} }
}

// overlapHandler runs tasks with next when they have their lock. Middleware recognises it
// by its type.
type overlapHandler struct {
	o    *overlap
	next asynq.Handler
}

func (h *overlapHandler) ProcessTask(ctx context.Context, task *asynq.Task) error {
	if h.next == nil {
		return invalid("WithoutOverlapping was given a nil handler")
	}
	return h.o.process(ctx, task, h)
}

// ifBusy is what to do with a task whose key stays busy.
type ifBusy uint8

const (
	snoozeIfBusy ifBusy = iota
	dropIfBusy
	failIfBusy
)

// overlap is one use of WithoutOverlapping.
type overlap struct {
	w       *Worker
	key     func(*asynq.Task) string
	limit   int
	limited bool // Limit was given
	maxWait time.Duration
	hasWait bool
	need    time.Duration
	hasNeed bool
	ifBusy  ifBusy
	err     error // of its arguments

	pace pace
}

// process handles one delivery of a task: it asks for the task's key, takes the lock if one
// is to be taken, calls the handler and releases the lock.
func (o *overlap) process(ctx context.Context, task *asynq.Task, h *overlapHandler) error {
	if o.err != nil {
		return o.err
	}
	key := o.key(task)
	carried, err := false, error(nil)
	if key != "" {
		carried, err = o.carried(ctx, task, key)
	}
	switch {
	case err != nil:
		return err
	case key == "", carried:
		if err := startAt(ctx, h); err != nil {
			return err
		}
		return h.next.ProcessTask(ctx, task)
	}
	a, err := o.w.newAttempt(ctx, task)
	if err != nil {
		return err
	}
	o.w.outOfOrder(a)
	if !o.w.open.begin() {
		return a.refuse()
	}
	defer o.w.open.end()
	lock, err := o.take(a, key)
	if lock == nil {
		o.w.startedTooEarly(ctx, err)
		return err
	}
	a.locks = joblock.Locks{lock}
	// No recover: asynq reports where a panic came from.
	defer a.release(a.locks, reasonOver)
	if err := startAt(ctx, h); err != nil {
		return err
	}
	ctx, stop := lock.Context(ctx)
	defer stop()
	defer a.limitOverrun()()
	defer func(start time.Time) { o.pace.ended(time.Since(start)) }(time.Now())
	return h.next.ProcessTask(ctx, task)
}

// carried reports whether the task carries the lock on key, or a permit of it: it would
// wait for itself. A lock that the task gives up when it starts is an error: the key cannot
// be free for the next job while this one runs under it, and nobody has asked to run
// without a lock. The attempt is charged and tried again, since the program must be
// changed; an archived task can be run by hand then.
func (o *overlap) carried(ctx context.Context, task *asynq.Task, key string) (bool, error) {
	env, err := o.w.carriedBy(ctx, task)
	if err != nil {
		return false, err
	}
	wanted := func(t joblock.Token) bool {
		if o.limited {
			limited, ok := keyspace.Limit(t.Key())
			return ok && limited == key
		}
		return t.Key() == key
	}
	if slices.ContainsFunc(env.UntilStart, wanted) {
		return false, invalid("WithoutOverlapping wants the lock on key %q, which the task gives up when it starts: "+
			"it was enqueued with handoff.UntilStarted; give the two different keys, or enqueue with handoff.KeepLast", key)
	}
	return slices.ContainsFunc(env.Tokens, wanted), nil
}

// take returns the lock, or nil and what the attempt returns to asynq.
func (o *overlap) take(a *attempt, key string) (*joblock.Lock, error) {
	latest := o.latest(a)
	for {
		lock, err := o.acquire(a, key, latest)
		if err == nil && a.ctx.Err() == nil {
			return lock, nil
		}
		if err == nil {
			a.release(joblock.Locks{lock}, reasonOver) // the handler would only learn that it is late
			return nil, context.Cause(a.ctx)
		}
		if busy(err) && o.ifBusy != snoozeIfBusy {
			return nil, o.giveUp(a, err)
		}
		snoozed, late := a.w.snooze(err), !time.Now().Before(latest)
		if busy(err) {
			snoozed.delay = min(snoozed.delay, o.pace.next(o.w.cfg.Snooze))
		}
		switch {
		case snoozed == nil:
			return nil, err
		case a.w.canSnooze(a):
			a.w.tellSnoozed(a, snoozed)
			return nil, snoozed
		case a.w.canSnoozeByArchive(a) && (busy(err) || late):
			mark, err := a.w.mark(a)
			if err != nil && !late && errors.Is(err, joblock.ErrUnavailable) {
				break // the store is away: wait in place first
			}
			if err != nil && !busy(err) { // busy: another process has the mark of this task
				a.w.cfg.Logger.Warn("worker: a task is snoozed by way of asynq's archive, and the keeper does not know of it",
					"job", a.job(), "task", a.task.Type(), "err", err)
			}
			return nil, a.w.archiveAndRerun(a, snoozed, mark)
		case late:
			return nil, fmt.Errorf("worker: waited in place for as long as the task's time allows: %w", err)
		}
		if sleep.For(a.ctx, min(waitPoll, time.Until(latest))) != nil { // the store is away
			return nil, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

func busy(err error) bool {
	return errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrTimeout)
}

// latest returns when the task must stop waiting in place.
func (o *overlap) latest(a *attempt) time.Time {
	left := a.left()
	switch {
	case o.hasNeed:
		left -= o.need
	case o.ifBusy == snoozeIfBusy && !a.w.canSnooze(a) && !a.w.canSnoozeByArchive(a):
		left = time.Duration(lastShare * float64(left))
	default:
		left = time.Duration(waitShare * float64(left))
	}
	return time.Now().Add(left)
}

// acquire takes the lock. It waits for it in place as MaxWait says, or until latest if the
// task cannot be snoozed.
func (o *overlap) acquire(a *attempt, key string, latest time.Time) (*joblock.Lock, error) {
	job := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?' // fit for a label
		}
		return r
	}, a.job())
	holder, acquire := joblock.Holder(a.holder(job)), o.w.locks.Acquire
	if o.limited {
		acquire = limit.New(o.w.locks, o.limit).Acquire
	}
	lock, err := acquire(a.ctx, key, holder, joblock.MaxWait(0))
	if !busy(err) {
		return lock, err
	}
	wait := time.Until(latest)
	if o.ifBusy != snoozeIfBusy || a.w.canSnooze(a) || a.w.canSnoozeByArchive(a) { // else asynq would charge or archive the task
		switch wait = min(wait, o.maxWait); {
		case o.hasWait || wait <= 0:
		case o.w.enterWait():
			defer o.w.waiting.Add(-1)
		case o.pace.brisk():
			wait = min(wait, shortWait)
		default:
			wait = 0
		}
	}
	if wait <= 0 {
		return nil, err
	}
	return acquire(a.ctx, key, holder, joblock.MaxWait(wait))
}

// enterWait reports whether one more task may wait in place, and counts it.
func (w *Worker) enterWait() bool {
	if places := w.places.Load(); w.waiting.Add(1) > places && places >= 0 {
		w.waiting.Add(-1)
		return false
	}
	return true
}

// giveUp drops the task or fails its attempt, because its key is busy.
func (o *overlap) giveUp(a *attempt, err error) error {
	if o.ifBusy == failIfBusy {
		return fmt.Errorf("worker: %w", err)
	}
	o.w.cfg.Logger.Info("worker: task dropped", "job", a.job(), "task", a.task.Type(), "cause", err)
	return nil
}
