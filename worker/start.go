package worker

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
)

// Started is an asynq.MiddlewareFunc that marks where a task begins to run. There a task
// gives up the key that handoff.EnqueueUnique gave it until it starts.
//
// Register it last, as the innermost, if another package's middleware follows Middleware
// and hides what is behind it: WithoutOverlapping, or anything else that may turn a task
// away. Otherwise it is not needed: the key is given up by Middleware itself, or by the
// last WithoutOverlapping that directly follows it, when that has its lock.
//
// Register it for every mux of the Worker or for none: where it is missing the key is kept
// until the job ends. With a nil next every task fails with joblock.ErrInvalid.
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

// startsAt returns where a task that Middleware hands to next starts: the last handler of
// this package that may snooze it, or nil for Middleware itself. A startedHandler is that
// place in any case, and may be out of sight.
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

// anyStarted stands for a startedHandler that is out of sight.
var anyStarted = new(startedHandler)

type startKey struct{}

// startAt starts the attempt of ctx if h is where it starts.
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

// startedTooEarly logs, once, that a task is snoozed with err after it has given up the key
// that it has until it starts.
func (w *Worker) startedTooEarly(ctx context.Context, err error) {
	a, ok := ctx.Value(startKey{}).(*attempt)
	var snoozed *snoozeError
	if ok && a.started && errors.As(err, &snoozed) && !w.told.started.Swap(true) {
		w.cfg.Logger.Error("worker: a task was snoozed that had given up the key it has until it starts, so that others may be queued beside it; "+
			"a middleware that is not of this package hides WithoutOverlapping: register Worker.Started as the innermost",
			"job", a.job(), "task", a.task.Type())
	}
}
