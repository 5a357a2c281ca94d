package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// attempt is one delivery of a task, with what asynq says about it.
type attempt struct {
	w     *tools
	ctx   context.Context // asynq's context, or a child
	task  *asynq.Task
	id    string
	queue string
	job   string // "queue/id"
	tries verdict.Tries
}

// newAttempt returns the attempt that ctx and task belong to. The error is joblock.ErrInvalid if ctx does not come from
// an asynq server.
func (w *tools) newAttempt(ctx context.Context, task *asynq.Task) (*attempt, error) {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return nil, verdict.Invalid("the context does not come from an asynq server")
	}
	a := &attempt{w: w, ctx: ctx, task: task, id: id}
	a.queue, _ = asynq.GetQueueName(ctx)
	a.job = envelope.Job(a.queue, id)
	a.tries.Configured = w.delay.Load() != nil
	a.tries.Retried, _ = asynq.GetRetryCount(ctx)
	a.tries.Limit, _ = asynq.GetMaxRetry(ctx)
	a.tries.Budget = a.tries.Limit
	if r, ok := ctx.Value(retriesKey{}).(retries); ok { // inside Middleware
		a.tries.Budget, a.tries.Limit = r.budget, r.limit
	}
	return a, nil
}

type retriesKey struct{}

type retries struct{ budget, limit int } // as in verdict.Tries

// withRetries returns a child of ctx with budget and limit for newAttempt. In the child, asynq.GetMaxRetry returns
// budget.
func withRetries(ctx context.Context, budget, limit int) context.Context {
	return context.WithValue(asynqprivate.WithMaxRetry(ctx, budget), retriesKey{}, retries{budget, limit})
}

// endByDeadline shortens s.Delay if the task's Deadline would pass during the delay: asynq then delivers the task just
// after the Deadline, which ends the job and frees its locks. endByDeadline looks the task up only if the delay
// outlasts the attempt, whose context ends at the Deadline or before.
func (a *attempt) endByDeadline(s *verdict.Snooze) {
	if s.Delay < a.left() {
		return
	}
	info, err := a.w.batched.GetTaskInfo(a.queue, a.id)
	if err != nil || info.Deadline.IsZero() {
		return // after an error, the job ends when its turn comes
	}
	s.Delay = min(s.Delay, max(0, time.Until(info.Deadline))+time.Second)
}

// left returns the time until the attempt's deadline, or driver.MaxPeriod if there is no deadline.
func (a *attempt) left() time.Duration {
	if deadline, ok := a.ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return driver.MaxPeriod
}

func (a *attempt) log() *slog.Logger { return a.w.cfg.Logger.With("job", a.job, "task", a.task.Type()) }

// holder returns the holder label of the attempt's locks, such as "host:123 attempt 2/4". holder cuts who if the label
// would be too long. A run after the author's last attempt shows two equal numbers.
func (a *attempt) holder(who string) string {
	tries := fmt.Sprintf(" attempt %d/%d", a.tries.Retried+1, max(a.tries.Retried, a.tries.Budget)+1)
	who = who[:min(len(who), driver.MaxLabelBytes-len(tries))]
	return strings.ToValidUTF8(who, "") + tries
}

func (a *attempt) lastErr() string {
	info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
	if err != nil {
		a.log().Warn("worker: cannot look up a task's last error", "err", err)
		return "the last error is not known"
	}
	return info.LastErr
}

// mayCarry reports whether the task carries locks. Outside of Middleware, a forged header counts too.
func (a *attempt) mayCarry() bool {
	if env, found := a.ctx.Value(envelopeKey{}).(envelope.Envelope); found {
		return len(env.Tokens) > 0
	}
	return carries(a.task)
}

func carries(task *asynq.Task) bool {
	_, yes := task.Headers()[envelope.Header]
	return yes
}

// withEnvelope returns a child of ctx in which a WithoutOverlapping inside Middleware finds env.
func withEnvelope(ctx context.Context, env envelope.Envelope) context.Context {
	return context.WithValue(ctx, envelopeKey{}, env)
}

type envelopeKey struct{}

// canSnooze returns the result of verdict.Tries.CanSnooze. Without Configure, it also logs a warning, once per Worker.
func (a *attempt) canSnooze() bool {
	if !a.tries.Configured && !a.w.logged.configure.Swap(true) {
		a.w.cfg.Logger.Warn("worker: Configure was not applied to the server's asynq.Config; a task whose lock is busy occupies a worker while it waits")
	}
	return a.tries.CanSnooze()
}

func (a *attempt) canSnoozeByArchive() bool { return a.tries.CanSnoozeByArchive(a.mayCarry()) }

func (a *attempt) logSnoozed(snoozed *verdict.Snooze) {
	a.log().Info("worker: task snoozed", "delay", snoozed.Delay, "cause", snoozed.Err)
}

// refuse snoozes the task of an attempt that begins after Worker.Close. An attempt can begin even after the
// server's Shutdown: asynq does not wait until the goroutine of a task has called the handler.
func (a *attempt) refuse() error {
	if a.canSnooze() {
		return a.w.snooze(errClosed)
	}
	// If refuse returned now, asynq would charge or archive the task. Once the server's shutdown has ended the context,
	// asynq puts the task back into the queue.
	<-a.ctx.Done()
	return context.Cause(a.ctx)
}

var errClosed = &verdict.Error{Text: "the Worker was closed", Err: joblock.ErrClosed}
