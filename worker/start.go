package worker

import (
	"context"

	"github.com/hibiken/asynq"
)

// Started is an asynq.MiddlewareFunc that marks the place where a task starts. A lock that a task has only until the
// task starts (handoff.UntilStarted) is released at that place, just before the call of the next handler.
//
// Without Started, Middleware releases such a lock when Middleware has resumed the other locks. But if one or more
// WithoutOverlapping directly follow Middleware, the last of these releases the lock, after acquiring its own lock.
// This package cannot see a WithoutOverlapping behind another package's middleware. So if another package's middleware
// follows Middleware, register Started as the innermost middleware.
//
// Register Started for each mux of the Worker or for none: tasks of a mux without Started would keep such a lock until
// the job ends. With a nil next, each task fails with joblock.ErrInvalid.
func (w *Worker) Started(next asynq.Handler) asynq.Handler {
	if w != nil {
		w.hasStarted.Store(true)
	}
	return &startedHandler{next}
}

type startedHandler struct{ next asynq.Handler }

func (h *startedHandler) ProcessTask(ctx context.Context, task *asynq.Task) error {
	if h.next == nil {
		return invalid("Started was given a nil handler")
	}
	if err := startAt(ctx, h); err != nil {
		return err
	}
	return h.next.ProcessTask(ctx, task)
}

// startsAt returns the handler at which a task starts: the startedHandler, or else the last overlapHandler, or else nil
// for Middleware itself. startsAt looks at next and the handlers after next, up to the first of another package. If
// Started was registered but its handler is not found, the result is anyStarted.
func (w *Worker) startsAt(next asynq.Handler) (at asynq.Handler) {
	for {
		switch h := next.(type) {
		case *overlapHandler:
			at, next = h, h.next
		case *startedHandler:
			return h
		default:
			if w.hasStarted.Load() {
				return anyStarted
			}
			return at
		}
	}
}

var anyStarted = new(startedHandler)

type startKey struct{}

// startAt calls the method attempt.start for the attempt in ctx, if the task starts at the handler h and the attempt
// has not started the task yet. An error snoozes the task.
func startAt(ctx context.Context, h asynq.Handler) error {
	a, ok := ctx.Value(startKey{}).(*attempt)
	if !ok || a.started {
		return nil
	}
	if _, marked := h.(*startedHandler); !marked && h != a.startsAt {
		return nil
	}
	start := func() (struct{}, error) { return struct{}{}, a.start(context.WithoutCancel(a.ctx)) }
	if _, snoozed := inTime(a, a.left()/2, start, func(struct{}) {}); snoozed != nil {
		return snoozed
	}
	a.started = true
	return nil
}

// startedTooEarly logs, once per Worker, that err snoozes a task that this attempt has already started: the lock that
// the task had until its start is released.
func (w *Worker) startedTooEarly(ctx context.Context, err error) {
	a, ok := ctx.Value(startKey{}).(*attempt)
	_, snoozed := as[*snoozeError](err)
	if ok && a.started && snoozed && !w.told.started.Swap(true) {
		a.log().Error("worker: a task was snoozed after it had given up the key that it has until it starts; " +
			"another task may now be queued for that key; another package's middleware hides WithoutOverlapping: register Worker.Started as the innermost")
	}
}
