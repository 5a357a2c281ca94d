package worker

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

type tracedKey struct{}

// traced begins the span of the attempt, and puts the span into a.ctx: the handler's spans become its children. tokens
// are those that the task carries. Defer the returned function, which ends the span with *result, the result of the
// caller for asynq. *result says nothing about a panic, so it is verdict.ErrPanicked until the caller returns.
//
// Inside Middleware, the attempt of a WithoutOverlapping already has its span.
func (a *attempt) traced(result *error, tokens ...joblock.Token) (end func()) {
	if a.ctx.Value(tracedKey{}) != nil {
		return func() {}
	}
	call := event.Call{Op: event.OpRun, Job: a.job, Task: a.task.Type(), Attempt: a.tries.Retried + 1, Headers: a.task.Headers()}
	for _, token := range tokens {
		call.Keys = append(call.Keys, token.Key())
	}
	ctx, span := (*core.Locker)(a.w.locks).Trace(a.ctx, call)
	a.ctx = context.WithValue(ctx, tracedKey{}, true)
	*result = verdict.ErrPanicked
	return func() { span.End(outcome(*result), *result) }
}

// outcome says how an attempt has ended: see event.Span.
func outcome(err error) string {
	_, snoozed := errors.AsType[*verdict.Snooze](err)
	switch {
	case err == nil:
		return "done"
	case err == verdict.ErrPanicked:
		return "panicked"
	case snoozed:
		return "snoozed"
	case verdict.IsSuperseded(err):
		return "superseded"
	case errors.Is(err, asynq.RevokeTask):
		return "revoked"
	}
	return "failed"
}
