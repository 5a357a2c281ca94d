package worker

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/life"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// Middleware is an asynq.MiddlewareFunc that runs tasks under the locks that the tasks carry: mux.Use(w.Middleware).
// The package comment says what Middleware does at the beginning and end of an attempt. A Middleware inside another
// one, of any Worker, does nothing: the outer one has the locks. With a nil next, each task fails with
// joblock.ErrInvalid. With a nil Worker, each task that carries locks fails with joblock.ErrInvalid.
func (w *Worker) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if next == nil {
			return verdict.Invalid("Middleware was given a nil handler")
		}
		if !carries(task) {
			return next.ProcessTask(ctx, task)
		}
		if w == nil {
			return verdict.Invalid("the Worker is nil, and the task carries locks")
		}
		if _, inside := ctx.Value(envelopeKey{}).(envelope.Envelope); inside {
			return next.ProcessTask(ctx, task) // the second Middleware of two would find the locks of the first one busy
		}
		life.GrowStack() // asynq calls each handler in a new goroutine
		a, err := w.newAttempt(ctx, task)
		if err != nil {
			return err
		}
		env, ok, err := a.envelope()
		if err != nil {
			return err
		}
		if !ok {
			return next.ProcessTask(withEnvelope(ctx, envelope.Envelope{}), task)
		}
		c, err := a.carry(env.Envelope)
		if err != nil {
			return err
		}
		if !w.life.Enter() {
			return a.refuse()
		}
		defer w.life.Leave()
		c.startsAt = w.startsAt(next)
		return c.run(next)
	})
}

// startsAt returns the handler at which a task starts: the startedHandler, or else the last overlapHandler or
// rateHandler, or else nil for Middleware itself. It looks at next and the handlers after it, up to the first handler
// of another package. If Started was registered but its handler is not found, it returns anyStarted.
func (w *Worker) startsAt(next asynq.Handler) (at asynq.Handler) {
	for {
		switch h := next.(type) {
		case *overlapHandler:
			at, next = h, h.next
		case *rateHandler:
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
