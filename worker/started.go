package worker

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// Started is an asynq.MiddlewareFunc that marks the place where a task starts. A lock that a task has only until the
// task starts (handoff.Unique.UntilStarted) is released at that place, just before the call of the next handler.
//
// Without Started, Middleware releases such a lock when Middleware has resumed the other locks. But if one or more
// WithoutOverlapping directly follow Middleware, the last of these releases the lock, after acquiring its own lock.
// This package cannot see a WithoutOverlapping behind another package's middleware, so if one follows Middleware,
// register Started as the innermost middleware.
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
		return verdict.Invalid("Started was given a nil handler")
	}
	if err := startAt(ctx, h, true); err != nil {
		return err
	}
	return h.next.ProcessTask(ctx, task)
}

var anyStarted = new(startedHandler)
