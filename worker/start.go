package worker

import (
	"context"

	"github.com/hibiken/asynq"
)

// Started is an asynq.MiddlewareFunc that marks the place where a task begins to run. A task that has a key only until
// the task starts (handoff.EnqueueUnique) gives the key up at that place.
//
// Register Started last, as the innermost, if another package's middleware follows Middleware. This package cannot see
// a WithoutOverlapping that comes after such a middleware. Without Started, Middleware gives the key up. But if one or
// more WithoutOverlapping directly follow Middleware, the last of these gives the key up when it has acquired its own
// lock.
//
// Register Started for each mux of the Worker or for none. If Started is registered for one mux, a task of another mux
// keeps the key until the job ends. With a nil next, each task fails with joblock.ErrInvalid.
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

// startsAt returns the handler at which a task starts: a startedHandler, or else the last overlapHandler. The parameter
// next is the first handler of the chain. The result is nil if the task starts in Middleware itself, and anyStarted if
// another package hides the startedHandler.
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

// startAt calls the method start of the attempt in ctx, if the task starts at h and no earlier call has done so. The
// error snoozes the task.
func startAt(ctx context.Context, h asynq.Handler) error {
	a, ok := ctx.Value(startKey{}).(*attempt)
	if !ok || a.started {
		return nil
	}
	if _, marked := h.(*startedHandler); !marked && h != a.startsAt {
		return nil
	}
	if snoozed := a.start(context.WithoutCancel(a.ctx)); snoozed != nil {
		return snoozed
	}
	a.started = true
	return nil
}

// startedTooEarly logs that the attempt in ctx is snoozed with err after it has given up the key of untilStart.
func (w *Worker) startedTooEarly(ctx context.Context, err error) {
	a, ok := ctx.Value(startKey{}).(*attempt)
	_, snoozed := as[*snoozeError](err)
	if ok && a.started && snoozed && !w.told.started.Swap(true) {
		a.log().Error("worker: a task was snoozed after it had given up the key that it has until it starts; " +
			"another task may now be queued for that key; another package's middleware hides WithoutOverlapping: register Worker.Started as the innermost")
	}
}
