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
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

const (
	defaultMaxWait = 3 * time.Second

	// shortWait is how long a task waits in place if as many tasks as Worker.places already wait, and if locks are held
	// for short times.
	shortWait = 500 * time.Millisecond

	// calledWait replaces shortWait for a task that the Worker has called: there are few such tasks at a time, and each is
	// near the front of the line.
	calledWait = 1500 * time.Millisecond

	// waitShare is the part of the time until its deadline that a task without the option Need may wait in place. The part
	// is small, because nobody knows how long the task will run, and to run out of time is worse than to be snoozed.
	waitShare = 0.1

	// lastShare replaces waitShare for a task that should be snoozed when its key is busy, but cannot be snoozed.
	lastShare = 0.5
)

// OverlapOption is an option of WithoutOverlapping.
type OverlapOption func(*overlap)

// Limit lets up to n tasks with the same key run at a time, in the whole cluster. Give all servers the same n, from 1
// to limit.Max.
func Limit(n int) OverlapOption {
	return func(o *overlap) { o.limit = &n }
}

// MaxWait sets the longest wait in place for a busy key; with 0 a task does not wait. Need also bounds the wait. A
// waiting task occupies one worker of the server's Concurrency. Without DropIfBusy and FailIfBusy, MaxWait does not
// bound the wait of a task that cannot be snoozed. The default is:
//
//	with DropIfBusy or FailIfBusy                                         0
//	if fewer than a quarter of Concurrency, rounded up, wait in place     3 s
//	otherwise, if locks are held for short times                          half a second, or 1.5 s for a task that was
//	                                                                      snoozed and is run because the key was released
//	otherwise                                                             0
//
// The second line is not for a Concurrency of 1.
func MaxWait(d time.Duration) OverlapOption {
	return func(o *overlap) { o.maxWait = &d }
}

// Need sets how much time a task needs for its run. A wait in place ends when only d is left before the task's
// deadline, but at least a second or a tenth of the time, whichever is shorter. Default: nine tenths of the time that is left when the wait begins. For a task that should be snoozed but
// cannot be, the default is half of the time that is left then.
func Need(d time.Duration) OverlapOption {
	return func(o *overlap) { o.need = &d }
}

// DropIfBusy lets a task succeed without a call of the handler if the key is still busy after the wait in place. With
// DropIfBusy, the default of MaxWait is 0.
func DropIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = dropIfBusy } }

// FailIfBusy makes an attempt fail if the key is still busy after the wait in place. With FailIfBusy, the default of
// MaxWait is 0. As after any error, asynq charges a retry, or archives the task after the last attempt. The error
// matches joblock.ErrHeld, or joblock.ErrTimeout after a wait.
func FailIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = failIfBusy } }

// WithoutOverlapping returns an asynq.MiddlewareFunc that runs tasks with the same key one at a time, or several at a
// time with Limit. The function key returns the key of a task, or "" if the task needs no lock. The middleware acquires
// the lock when a task is about to run, and releases the lock when the attempt ends, also by a panic. The package
// comment says what happens to a task whose key is busy.
//
// If the lock is lost, the handler's context ends with cause joblock.ErrLost. In the handler, joblock.FromContext
// returns the lock of WithoutOverlapping, and joblock.LocksFromContext(ctx).ByKey also finds the locks that the task
// carries.
//
// WithoutOverlapping itself does not fail. Instead each attempt fails with joblock.ErrInvalid if
//
//   - the key that the function key returns is not valid
//   - the task has a lock on that key only until the task starts (handoff.UntilStarted)
//   - an option is nil or out of bounds
//   - the function key, the next handler or the Worker is nil
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
		if o.inLine && (o.limit != nil || o.ifBusy != snoozeIfBusy) {
			o.err = invalid("InLine was combined with Limit, DropIfBusy or FailIfBusy")
		}
		if o.inLine {
			w.inLine.Store(true)
		}
		if o.need != nil && *o.need < 0 {
			o.err = invalid("Need is %s, must not be negative", *o.need)
		}
	}
	return func(next asynq.Handler) asynq.Handler { return &overlapHandler{o, next} }
}

// overlapHandler is the handler that the middleware of WithoutOverlapping makes. The method Worker.startsAt recognises
// the type.
type overlapHandler struct {
	*overlap
	next asynq.Handler
}

func (h *overlapHandler) ProcessTask(ctx context.Context, task *asynq.Task) (result error) {
	o := h.overlap
	switch {
	case h.next == nil:
		return invalid("WithoutOverlapping was given a nil handler")
	case o.err != nil:
		return o.err
	}
	key := o.key(task)
	ready, err := o.ready(ctx, task, key)
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
	defer a.traced(&result)()
	ctx = a.ctx
	latest := o.latest(a)
	a.called = o.w.room.enter(busyKey{o, key}, a.queue, a.id)
	lock, err := inTime(a, (time.Until(latest)+a.left())/2, func() (*joblock.Lock, error) { return o.take(a, key, latest) }, a.dropLate)
	o.w.room.leave(busyKey{o, key}, o.snoozed(a, err))
	if lock == nil {
		o.w.startedTooEarly(ctx, err)
		return err
	}
	a.locks = joblock.Locks{lock}
	var took time.Duration
	defer func() { o.callNext(key, took) }()
	// No recover: asynq reports the place of a panic.
	defer a.release(a.locks, reasonOver)
	if err := startAt(ctx, h); err != nil {
		return err
	}
	ctx, stop := lock.Context(ctx)
	defer stop()
	defer a.limitOverrun()()
	finished := false // stays so if the handler panics
	defer func(start time.Time) {
		took = time.Since(start)
		if o.pace.ended(took); finished && !a.mayCarry() { // else the outer middleware notes the length
			a.took(result, took)
		}
	}(time.Now())
	result = h.next.ProcessTask(ctx, task)
	finished = true
	return result
}

// snoozed returns the task of a for the room, or nil unless err snoozes the task because its key is busy.
func (o *overlap) snoozed(a *attempt, err error) *snoozedTask {
	snoozed, ok := as[*snoozeError](err)
	if !ok || !busy(err) || o.inLine {
		return nil
	}
	return &snoozedTask{queue: a.queue, id: a.id, until: time.Now().Add(snoozed.delay)}
}

// The type ifBusy is the policy for a task whose key is still busy after the wait in place.
type ifBusy uint8

const (
	snoozeIfBusy ifBusy = iota
	dropIfBusy
	failIfBusy
)

// The type overlap has the arguments and the state of one call of WithoutOverlapping.
type overlap struct {
	w       *Worker
	key     func(*asynq.Task) string
	limit   *int           // nil without the option Limit
	maxWait *time.Duration // nil without the option MaxWait
	need    *time.Duration // nil without the option Need
	ifBusy  ifBusy
	inLine  bool
	err     error // the result of each attempt, because an argument of WithoutOverlapping is invalid; or nil
	pace    pace
}

// The method ready reports whether the task needs no lock: key is "", or the task carries the lock on key, or with
// Limit a permit of key. An Acquire of that key would wait for the task's own lock for ever. If the task has that lock
// only until the task starts, the error is joblock.ErrInvalid: the handler would run without a lock. If the header
// cannot be verified, the error snoozes the task.
func (o *overlap) ready(ctx context.Context, task *asynq.Task, key string) (bool, error) {
	if key == "" {
		return true, nil
	}
	env, err := o.w.carriedBy(ctx, task)
	if err != nil {
		return false, err
	}
	wanted := func(t joblock.Token) bool {
		if o.limit != nil {
			limited, ok := keyspace.Limit(t.Key())
			return ok && limited == key
		}
		if line, _ := driver.LineOf(t.Key()); o.inLine && line == key {
			return true // a slot of a sequence
		}
		return t.Key() == key
	}
	if slices.ContainsFunc(env.UntilStart, wanted) {
		return false, invalid("WithoutOverlapping wants the lock on key %q, which the task gives up when it starts: "+
			"it was enqueued with handoff.UntilStarted; give the two different keys, or enqueue with handoff.KeepLast", key)
	}
	return slices.ContainsFunc(env.Tokens, wanted), nil
}

// The method take returns the lock, or a nil lock and the attempt's result for asynq. Both are nil if the task must
// succeed without a call of the handler. A wait in place ends at the time in latest.
func (o *overlap) take(a *attempt, key string, latest time.Time) (*joblock.Lock, error) {
	for {
		lock, err := o.acquire(a, key, latest)
		if err == nil && a.ctx.Err() == nil {
			return lock, nil
		}
		if err == nil {
			a.release(joblock.Locks{lock}, reasonOver) // asynq would ignore the handler's result
			return nil, context.Cause(a.ctx)
		}
		switch {
		case busy(err) && o.ifBusy == failIfBusy:
			return nil, fmt.Errorf("worker: %w", err)
		case busy(err) && o.ifBusy == dropIfBusy:
			a.log().Info("worker: task dropped", "cause", err)
			return nil, nil
		}
		snoozed, late := a.w.snooze(err), !time.Now().Before(latest)
		waits := o.inLine && snoozed != nil && busyInLine(err)
		if busy(err) && !o.inLine {
			snoozed.delay = min(snoozed.delay, o.pace.next(o.w.cfg.Snooze))
		}
		switch {
		case snoozed == nil:
			return nil, err
		case a.canSnooze():
			a.logSnoozed(snoozed)
			return nil, snoozed
		case a.canSnoozeByArchive() && (busy(err) || waits || late):
			mark, err := a.mark()
			if err != nil && !late && errors.Is(err, joblock.ErrUnavailable) {
				break // wait in place for the store first
			}
			return nil, a.archiveAndRerun(snoozed, mark, err)
		case late:
			return nil, fmt.Errorf("worker: waited in place for as long as the task's time allows: %w", err)
		}
		if sleep.For(a.ctx, min(waitPoll, time.Until(latest))) != nil { // the store does not answer
			return nil, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

// The function busyInLine reports whether err snoozes a task that waits in line.
func busyInLine(err error) bool {
	_, waits := as[*snoozeError](err)
	return waits
}

func busy(err error) bool {
	return errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrTimeout)
}

// latest returns the time at which a wait in place must end, to leave the task enough time for its run, and
// in any case for the snooze.
func (o *overlap) latest(a *attempt) time.Time {
	left := a.left()
	switch {
	case o.need != nil:
		left -= max(*o.need, min(left/10, time.Second))
	case o.ifBusy == snoozeIfBusy && !a.canSnooze() && !a.canSnoozeByArchive():
		left = time.Duration(lastShare * float64(left))
	default:
		left = time.Duration(waitShare * float64(left))
	}
	return time.Now().Add(left)
}

// The method acquire acquires the lock. If the lock is busy, acquire waits in place, until the time in the parameter
// latest. MaxWait or its default also bounds the wait, unless the task can neither be snoozed, dropped nor failed.
func (o *overlap) acquire(a *attempt, key string, latest time.Time) (*joblock.Lock, error) {
	if o.inLine && a.canLineUp() {
		return o.lineUp(a, key)
	}
	job := strings.Map(func(r rune) rune { // a label has no control characters
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, a.job)
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
		case a.called && o.pace.brisk():
			wait = min(wait, calledWait)
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

// enterWait reports whether one more task may wait in place, and then counts the task in w.waiting. The caller must
// subtract the task when the wait is over.
func (w *Worker) enterWait() bool {
	if places := w.places.Load(); w.waiting.Add(1) > places && places >= 0 {
		w.waiting.Add(-1)
		return false
	}
	return true
}

// outOfOrder logs, once per Worker, that a task with locks has reached WithoutOverlapping before Middleware.
func (a *attempt) outOfOrder() {
	if _, inside := a.ctx.Value(envelopeKey{}).(envelope.Envelope); inside || !a.mayCarry() || a.w.told.order.Swap(true) {
		return
	}
	a.log().Error("worker: a task that carries locks has reached WithoutOverlapping before Middleware: " +
		"the mux needs Use(w.Middleware) first; while such a task waits, its locks are not renewed, and asynq archives the task if its key is busy on the last attempt")
}
