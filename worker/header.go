package worker

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// envelope returns the results of trusted for the attempt's task. If trusted fails, the error snoozes the task. A task
// that cannot be snoozed waits in place until trusted succeeds or a.ctx ends.
func (a *attempt) envelope() (env envelope.Opened, ok bool, err error) {
	for {
		ctx, cancel := context.WithTimeout(a.ctx, a.left()/2)
		env, ok, err := a.w.trusted(ctx, a.envelopeTask())
		cancel()
		if err == nil {
			return env, ok, nil
		}
		if a.ctx.Err() != nil {
			return env, false, err
		}
		snoozed := a.w.snooze(err)
		if snoozed == nil { // no answer in time, an *envelope.Unreadable, or the store has another value where the keys should be
			snoozed = &verdict.Snooze{Err: err, Delay: verdict.Jittered(a.w.cfg.Snooze)}
		}
		if a.canSnooze() {
			a.logSnoozed(snoozed)
			return env, false, snoozed
		}
		if sleep.For(a.ctx, waitPoll) != nil {
			return env, false, errors.Join(context.Cause(a.ctx), err)
		}
	}
}

func (a *attempt) envelopeTask() envelope.Task {
	return envelope.Task{Job: a.job, Type: a.task.Type(), Headers: a.task.Headers()}
}

// waitPoll is the pause between two tries of a task that waits in place for a carried lock or for the store.
const waitPoll = 500 * time.Millisecond

// carriedBy returns the task's genuine envelope: inside Middleware from ctx, outside from the header. Without a genuine
// envelope the result has no tokens. Errors are those of attempt.envelope.
func (w *tools) carriedBy(ctx context.Context, task *asynq.Task) (envelope.Envelope, error) {
	if env, found := ctx.Value(envelopeKey{}).(envelope.Envelope); found || !carries(task) {
		return env, nil
	}
	a, err := w.newAttempt(ctx, task)
	if err != nil {
		return envelope.Envelope{}, err
	}
	env, _, err := a.envelope()
	return env.Envelope, err
}
