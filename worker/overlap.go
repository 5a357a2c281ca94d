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

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

const (
	defaultMaxWait = 3 * time.Second

	// shortWait is how long a task waits in place if all places are taken.
	shortWait = 500 * time.Millisecond

	// waitShare is the share of the remaining time that a task may wait in place. Nobody knows the time that the task
	// needs to run. A task that begins too late is worse than a task that is snoozed.
	waitShare = 0.1

	// lastShare replaces waitShare for a task that cannot be snoozed.
	lastShare = 0.5
)

// OverlapOption changes what WithoutOverlapping does.
type OverlapOption func(*overlap)

// Limit lets up to n tasks with the same key run at a time. Package limit has the bounds of n.
func Limit(n int) OverlapOption {
	return func(o *overlap) { o.limit = &n }
}

// MaxWait sets the longest wait in place for a busy key; with 0 a task does not wait. Need also bounds the wait. A
// waiting task occupies one worker of the server's Concurrency. The default:
//
//	DropIfBusy, FailIfBusy                                             0
//	fewer than a quarter (rounded up) of the server's tasks wait       3 s
//	otherwise, while locks are held for short times                    half a second
//	otherwise, while locks are held for long                           0
func MaxWait(d time.Duration) OverlapOption {
	return func(o *overlap) { o.maxWait = &d }
}

// Need sets how much time a task needs for its run. A task that waits in place is snoozed when only d is left before
// the deadline. Default nine tenths of the time that is left when the wait begins.
func Need(d time.Duration) OverlapOption {
	return func(o *overlap) { o.need = &d }
}

// DropIfBusy lets a task whose key is busy succeed without a call of the handler.
func DropIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = dropIfBusy } }

// FailIfBusy makes the attempt of a task whose key is busy fail. asynq charges the attempt, and archives the task after
// the last attempt. The error matches joblock.ErrHeld or joblock.ErrTimeout.
func FailIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = failIfBusy } }

// WithoutOverlapping returns an asynq.MiddlewareFunc that runs tasks with the same key one at a time, or several at a
// time with Limit. The function key returns the key of a task, or "" if the task needs no lock. The middleware acquires
// the lock when a task is about to run, and releases the lock when the attempt ends, also by a panic. The package
// comment says what happens to a task whose key is busy.
//
// The handler's context ends if the lock is lost. joblock.FromContext returns the lock of WithoutOverlapping, also
// if the task carries locks. joblock.LocksFromContext(ctx).ByKey returns a lock that the task carries.
//
// Attempts fail with joblock.ErrInvalid if the key is not valid, if an option is out of bounds, if the task carries a
// lock on the key only until the task starts (handoff.UntilStarted), or if the key function, the next handler, an
// option or the Worker is nil.
func (w *Worker) WithoutOverlapping(key func(*asynq.Task) string, opts ...OverlapOption) asynq.MiddlewareFunc {
	o := &overlap{w: w, key: key}
	switch {
	case w == nil:
		o.err = invalid("WithoutOverlapping was called on a nil Worker")
	case key == nil:
		o.err = invalid("WithoutOverlapping was given a nil key function")
	case slices.ContainsFunc(opts, func(opt OverlapOption) bool { return opt == nil }):
		o.err = invalid("WithoutOverlapping was given a nil option")
	default:
		for _, opt := range opts {
			opt(o)
		}
		if o.maxWait != nil && *o.maxWait < 0 {
			o.err = invalid("MaxWait is %s, must not be negative", *o.maxWait)
		}
		if o.need != nil && *o.need < 0 {
			o.err = invalid("Need is %s, must not be negative", *o.need)
		}
	}
	return func(next asynq.Handler) asynq.Handler { return &overlapHandler{o, next} }
}

// overlapHandler is the handler that WithoutOverlapping returns. startsAt recognises the type.
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

// ifBusy is the policy for a task whose key stays busy.
type ifBusy uint8

const (
	snoozeIfBusy ifBusy = iota
	dropIfBusy
	failIfBusy
)

// The type overlap is one use of WithoutOverlapping.
type overlap struct {
	w       *Worker
	key     func(*asynq.Task) string
	limit   *int           // nil without the option Limit
	maxWait *time.Duration // nil without the option MaxWait
	need    *time.Duration // nil without the option Need
	ifBusy  ifBusy
	err     error // an argument of WithoutOverlapping is invalid
	pace    pace
}

// The method process handles one delivery. It acquires a lock if the task needs a lock, calls h.next and releases the
// lock.
func (o *overlap) process(ctx context.Context, task *asynq.Task, h *overlapHandler) error {
	if o.err != nil {
		return o.err
	}
	key := o.key(task)
	ready, err := key == "", error(nil)
	if !ready {
		ready, err = o.carried(ctx, task, key)
	}
	if err != nil {
		return err
	}
	if ready {
		if err := startAt(ctx, h); err != nil {
			return err
		}
		return h.next.ProcessTask(ctx, task)
	}
	a, err := o.w.newAttempt(ctx, task)
	if err != nil {
		return err
	}
	a.outOfOrder()
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
	// No recover: asynq reports the place of a panic.
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

// The method carried reports whether the task carries the lock on key or a permit of key: such a task would wait for
// its own lock. The method fails if the task gives that lock up when the task starts: the next job would need the key
// free while this task would need the lock. asynq charges the attempt.
func (o *overlap) carried(ctx context.Context, task *asynq.Task, key string) (bool, error) {
	env, err := o.w.carriedBy(ctx, task)
	if err != nil {
		return false, err
	}
	wanted := func(t joblock.Token) bool {
		if o.limit != nil {
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

// The method take returns the lock, or else a nil lock and the attempt's result for asynq, which may be nil.
func (o *overlap) take(a *attempt, key string) (*joblock.Lock, error) {
	latest := o.latest(a)
	for {
		lock, err := o.acquire(a, key, latest)
		if err == nil && a.ctx.Err() == nil {
			return lock, nil
		}
		if err == nil {
			a.release(joblock.Locks{lock}, reasonOver) // asynq would ignore the handler's result
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
		case a.canSnooze():
			a.logSnoozed(snoozed)
			return nil, snoozed
		case a.canSnoozeByArchive() && (busy(err) || late):
			mark, err := a.mark()
			if err != nil && !late && errors.Is(err, joblock.ErrUnavailable) {
				break // wait in place for the store first
			}
			a.logUnmarked(err)
			return nil, a.archiveAndRerun(snoozed, mark)
		case late:
			return nil, fmt.Errorf("worker: waited in place for as long as the task's time allows: %w", err)
		}
		if sleep.For(a.ctx, min(waitPoll, time.Until(latest))) != nil { // the store does not answer
			return nil, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

func busy(err error) bool {
	return errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrTimeout)
}

// The method latest returns the time at which the task must stop waiting in place.
func (o *overlap) latest(a *attempt) time.Time {
	left := a.left()
	switch {
	case o.need != nil:
		left -= *o.need
	case o.ifBusy == snoozeIfBusy && !a.canSnooze() && !a.canSnoozeByArchive():
		left = time.Duration(lastShare * float64(left))
	default:
		left = time.Duration(waitShare * float64(left))
	}
	return time.Now().Add(left)
}

// The method acquire acquires the lock. If the lock is busy, acquire waits in place. A task that should be snoozed, but
// cannot be, waits until the time latest. Any other task waits as long as MaxWait allows, but not beyond latest.
func (o *overlap) acquire(a *attempt, key string, latest time.Time) (*joblock.Lock, error) {
	job := strings.Map(func(r rune) rune { // a label has no control characters
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, a.job())
	holder, acquire := joblock.Holder(a.holder(job)), o.w.locks.Acquire
	if o.limit != nil {
		acquire = limit.New(o.w.locks, *o.limit).Acquire
	}
	lock, err := acquire(a.ctx, key, holder, joblock.MaxWait(0))
	if !busy(err) {
		return lock, err
	}
	wait := time.Until(latest)
	if o.ifBusy != snoozeIfBusy || a.canSnooze() || a.canSnoozeByArchive() {
		switch {
		case o.maxWait != nil:
			wait = min(wait, *o.maxWait)
		case o.ifBusy != snoozeIfBusy || wait <= 0:
			wait = 0
		case o.w.enterWait():
			defer o.w.waiting.Add(-1)
			wait = min(wait, defaultMaxWait)
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

// enterWait reports whether one more task may wait in place. If so, enterWait counts the task in w.waiting.
func (w *Worker) enterWait() bool {
	if places := w.places.Load(); w.waiting.Add(1) > places && places >= 0 {
		w.waiting.Add(-1)
		return false
	}
	return true
}

// giveUp returns the result of an attempt under DropIfBusy or FailIfBusy, whose key is busy.
func (o *overlap) giveUp(a *attempt, err error) error {
	if o.ifBusy == failIfBusy {
		return fmt.Errorf("worker: %w", err)
	}
	a.log().Info("worker: task dropped", "cause", err)
	return nil
}

// outOfOrder logs that a task with locks has reached WithoutOverlapping before Middleware.
func (a *attempt) outOfOrder() {
	if _, inside := a.ctx.Value(envelopeKey{}).(envelope.Envelope); inside || !a.mayCarry() || a.w.told.order.Swap(true) {
		return
	}
	a.log().Error("worker: a task that carries locks has reached WithoutOverlapping before Middleware: " +
		"the mux needs Use(w.Middleware) first; while such a task waits, its locks are not renewed, and asynq archives the task if its key is busy on the last attempt")
}
