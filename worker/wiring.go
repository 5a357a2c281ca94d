package worker

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// wiring remembers which mistakes in a server's set-up were logged: each is logged once.
type wiring struct{ configure, middleware, order, started atomic.Bool }

// failedOutside logs, once, that a task with locks has failed with err outside of
// Middleware. Inside, Middleware would have marked the error.
func (w *Worker) failedOutside(ctx context.Context, task *asynq.Task, err error) {
	var re *retryError
	if ctx.Err() != nil || errors.As(err, &re) || asynq.IsPanicError(err) || errors.Is(err, asynq.ErrLeaseExpired) || joblock.CodeOf(err) != "" {
		return // or it may not have had the time to
	}
	if id, _ := asynq.GetTaskID(ctx); !w.told.middleware.Swap(true) {
		w.cfg.Logger.Error("worker: a task was run without the locks that it carries: the server's mux needs Use(w.Middleware), first",
			"task_id", id, "task", task.Type())
	}
}

// outOfOrder logs, once, that a task with locks has reached WithoutOverlapping before
// Middleware.
func (w *Worker) outOfOrder(a *attempt) {
	if _, been := a.ctx.Value(envelopeKey{}).(envelope.Envelope); been || !a.mayCarry() || w.told.order.Swap(true) {
		return
	}
	w.cfg.Logger.Error("worker: WithoutOverlapping has a task that carries locks before Middleware has: the mux needs Use(w.Middleware) first; "+
		"while such a task waits nobody keeps its locks, and on its last attempt it is archived",
		"job", a.job(), "task", a.task.Type())
}
