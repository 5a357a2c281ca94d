package worker

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// wiring records which mistakes in a server's set-up the Worker has logged. The Worker logs each mistake once.
type wiring struct{ configure, middleware, order, started atomic.Bool }

// failedOutside logs that a task with locks has failed with err outside of Middleware. An error that has passed through
// Middleware is a retryError or a finalError.
func (w *Worker) failedOutside(ctx context.Context, task *asynq.Task, err error) {
	_, marked := as[*retryError](err)
	if marked || ctx.Err() != nil || asynq.IsPanicError(err) || errors.Is(err, asynq.ErrLeaseExpired) || joblock.CodeOf(err) != "" {
		return // after all but a retryError, Middleware may have had no chance to wrap err
	}
	if id, _ := asynq.GetTaskID(ctx); !w.told.middleware.Swap(true) {
		w.cfg.Logger.Error("worker: a task was run without the locks that it carries: the server's mux needs Use(w.Middleware), first",
			"task_id", id, "task", task.Type())
	}
}

// outOfOrder logs that a task with locks has reached WithoutOverlapping before Middleware.
func (a *attempt) outOfOrder() {
	if _, inside := a.ctx.Value(envelopeKey{}).(envelope.Envelope); inside || !a.mayCarry() || a.w.told.order.Swap(true) {
		return
	}
	a.log().Error("worker: a task that carries locks has reached WithoutOverlapping before Middleware: " +
		"the mux needs Use(w.Middleware) first; while such a task waits, its locks are not renewed, and asynq archives the task if its key is busy on the last attempt")
}
