package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// WithoutOverlapping returns an asynq.MiddlewareFunc that runs tasks with the same key one at a time, or several at a
// time with OverlapConfig.MaxConcurrent. key returns the key of a task, or "" if the task needs no lock. A nil cfg has
// all defaults. The middleware acquires the lock when a task is about to run, and releases it when the attempt ends,
// even by a panic. The package comment says what happens to a task whose key is busy.
//
// If the lock is lost, the handler's context ends with cause joblock.ErrLost. In the handler, joblock.FromContext
// returns the lock of WithoutOverlapping, and joblock.LocksFromContext(ctx).ByKey also finds the locks that the task
// carries.
//
// WithoutOverlapping itself does not fail. Instead each attempt fails with joblock.ErrInvalid if
//
//   - the key that key returns is not valid
//   - the task has a lock on that key only until the task starts (handoff.Unique.UntilStarted)
//   - a field of cfg is out of bounds
//   - key, the next handler or the Worker is nil
func (w *Worker) WithoutOverlapping(key func(*asynq.Task) string, cfg *OverlapConfig) asynq.MiddlewareFunc {
	o := &overlap{w: w, key: key}
	switch {
	case w == nil:
		o.err = verdict.Invalid("WithoutOverlapping was called on a nil Worker")
	case key == nil:
		o.err = verdict.Invalid("WithoutOverlapping was given a nil key function")
	case cfg != nil:
		o.OverlapConfig, o.err = *cfg, cfg.check()
		switch {
		case cfg.DropIfBusy:
			o.ifBusy = verdict.DropIfBusy
		case cfg.FailIfBusy:
			o.ifBusy = verdict.FailIfBusy
		case cfg.InLine:
			w.inLine.Store(true)
		}
	}
	return func(next asynq.Handler) asynq.Handler { return &overlapHandler{o, next} }
}

// overlapHandler is the handler that the middleware of WithoutOverlapping makes. Worker.startsAt recognizes the type.
type overlapHandler struct {
	*overlap
	next asynq.Handler
}

func (h *overlapHandler) ProcessTask(ctx context.Context, task *asynq.Task) (result error) {
	o := h.overlap
	switch {
	case h.next == nil:
		return verdict.Invalid("WithoutOverlapping was given a nil handler")
	case o.err != nil:
		return o.err
	}
	key := o.key(task)
	ready, err := o.ready(ctx, task, key)
	if err != nil {
		return err
	}
	if ready {
		if err := startAt(ctx, h, false); err != nil {
			return err
		}
		return h.next.ProcessTask(ctx, task)
	}
	a, err := o.w.newAttempt(ctx, task)
	if err != nil {
		return err
	}
	o.w.outOfOrder(a)
	if !o.w.life.Enter() {
		return a.refuse()
	}
	defer o.w.life.Leave()
	defer a.traced(&result)()
	ctx = a.ctx
	wait := o.wait(a)
	latest := time.Now().Add(wait.Longest(a.left()))
	wait.Called = o.w.room.enter(busyKey{o, key}, a.queue, a.id)
	take := func() (*core.Lock, error) { return o.take(a, key, wait, latest) }
	lock, err := inTime(a, (time.Until(latest)+a.left())/2, take, a.dropLate)
	o.w.room.leave(busyKey{o, key}, o.snoozed(a, err))
	if lock == nil {
		startedTooEarly(ctx, err)
		return err
	}
	locks := core.Locks{lock}
	var took time.Duration
	o.w.room.began(busyKey{o, key})
	defer func() { o.callNext(a, key, took) }()
	// No recover: asynq reports the place of a panic.
	defer a.release(locks, verdict.ReasonOver)
	if err := startAt(ctx, h, false); err != nil {
		return err
	}
	ctx, stop := lock.Context(ctx)
	defer stop()
	defer a.limitOverrun(locks)()
	finished := false // stays so if the handler panics
	defer func(start time.Time) {
		took = time.Since(start)
		if o.pace.ended(took); finished && !a.mayCarry() { // else the outer middleware notes the length
			a.noteDuration(result, took)
		}
	}(time.Now())
	result = h.next.ProcessTask(ctx, task)
	finished = true
	return result
}

// ready reports whether the task needs no lock: key is "", or the task carries the lock on key, or with MaxConcurrent
// a permit of key. An Acquire of that key would wait for the task's own lock forever. If the task has that lock only
// until the task starts, the error is joblock.ErrInvalid: the handler would run without a lock. If the header cannot
// be verified, the error snoozes the task.
func (o *overlap) ready(ctx context.Context, task *asynq.Task, key string) (bool, error) {
	if key == "" {
		return true, nil
	}
	env, err := o.w.carriedBy(ctx, task)
	if err != nil {
		return false, err
	}
	wanted := func(t joblock.Token) bool {
		if o.several() {
			limited, ok := keyspace.Limit(t.Key())
			return ok && limited == key
		}
		if line, _ := driver.LineOf(t.Key()); o.InLine && line == key {
			return true // a slot of a sequence
		}
		return t.Key() == key
	}
	if slices.ContainsFunc(env.UntilStart, wanted) {
		return false, verdict.Invalid("WithoutOverlapping wants the lock on key %q, which the task gives up when it starts: "+
			"it was enqueued with handoff.Unique.UntilStarted; use two different keys, or enqueue with handoff.KeepLast", key)
	}
	return slices.ContainsFunc(env.Tokens, wanted), nil
}

// snoozed returns the attempt's task, for the room, if err snoozes the task because its key is busy; otherwise, and
// always with InLine, it returns nil.
func (o *overlap) snoozed(a *attempt, err error) *snoozedTask {
	snoozed, ok := errors.AsType[*verdict.Snooze](err)
	if !ok || !verdict.IsBusy(err) || o.InLine {
		return nil
	}
	return &snoozedTask{queue: a.queue, id: a.id, until: time.Now().Add(snoozed.Delay)}
}

// outOfOrder logs, once per Worker, that a task with locks has reached WithoutOverlapping before Middleware.
func (w *tools) outOfOrder(a *attempt) {
	if _, inside := a.ctx.Value(envelopeKey{}).(envelope.Envelope); inside || !a.mayCarry() || w.logged.order.Swap(true) {
		return
	}
	a.log().Error("worker: a task that carries locks has reached WithoutOverlapping before Middleware: " +
		"the mux needs Use(w.Middleware) first; while such a task waits, its locks are not renewed, and asynq archives the task if its key is busy on the last attempt")
}
