package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/rates"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// RateLimit returns an asynq.MiddlewareFunc that starts tasks no more often than limits allows: see package rate for what
// is promised. limits returns the limits of a task, which may differ from task to task, by plan for example. A task starts
// when all its limits have an opening, and then counts against each of them. A task without limits starts at once.
//
//	mux.Use(w.Middleware) // first, if it is used
//	mux.Use(w.RateLimit(func(ctx context.Context, task *asynq.Task) []rate.Limit {
//		return []rate.Limit{
//			{Key: joblock.Key("tenant", task.Headers()["tenant"]), N: 100, Per: time.Minute},
//			{Key: "provider", N: 10, Per: time.Second},
//		}
//	}))
//
// Register RateLimit once, as the innermost middleware: a start counts when RateLimit calls the next handler, and a
// middleware that waits inside of it would delay the start that was counted.
//
// A task that has to wait is snoozed until its time: it occupies no worker, and no retry is charged. Locks that it
// carries stay with it, so the jobs of a handoff.Sequence start in order. When a limit has an opening, one of the
// processes that have snoozed tasks for it runs the first task in line. If the process that would have run a task has
// died, asynq runs the task itself: some 10 seconds after its time, or a tenth of its wait if that is more. A task
// waits in place if the wait is shorter than a quarter of a second.
//
// An idle asynq server looks for tasks once per asynq.Config.TaskCheckInterval, 1 s by default. So a task is put into
// its queue early, by up to a quarter of a second, and waits in place until its time. If asynq takes longer than that,
// the task starts late, and that part of the rate is lost: about a hundredth of a rate per minute, and half of a rate
// per second. Set TaskCheckInterval to at most 100 ms, or at most a twentieth of Per. The Worker logs a WARN if it is
// more than both.
//
// If the handler returns the error of rate.RetryAfter, the task is snoozed, and no task of its key starts for the time
// that the error names. If the store does not answer, the task is snoozed. A task that cannot be snoozed, because it
// has no retries left, is snoozed by way of the archive; without Configure it waits in place for half of the time until
// its deadline, and then fails.
//
// RateLimit itself does not fail. Instead each attempt fails with joblock.ErrInvalid if a limit is bad, or if limits, the
// next handler or the Worker is nil.
func (w *Worker) RateLimit(limits func(ctx context.Context, task *asynq.Task) []rate.Limit) asynq.MiddlewareFunc {
	var err error
	switch {
	case w == nil:
		err = verdict.Invalid("RateLimit was called on a nil Worker")
	case limits == nil:
		err = verdict.Invalid("RateLimit was given a nil function")
	}
	return func(next asynq.Handler) asynq.Handler {
		return &rateHandler{w: w, limits: limits, next: next, err: err}
	}
}

// rateHandler is the handler that the middleware of RateLimit makes. Worker.startsAt recognizes the type.
type rateHandler struct {
	w      *Worker
	limits func(context.Context, *asynq.Task) []rate.Limit
	next   asynq.Handler
	err    error // the result of each attempt, or nil
}

func (h *rateHandler) ProcessTask(ctx context.Context, task *asynq.Task) (result error) {
	switch {
	case h.err != nil:
		return h.err
	case h.next == nil:
		return verdict.Invalid("RateLimit was given a nil handler")
	}
	given := h.limits(ctx, task)
	if len(given) == 0 {
		if err := startAt(ctx, h, false); err != nil {
			return err
		}
		return h.next.ProcessTask(ctx, task)
	}
	a, err := h.w.newAttempt(ctx, task)
	if err != nil {
		return err
	}
	limits := make([]rates.Limit, len(given))
	for i, l := range given {
		limits[i] = rates.Limit(l)
	}
	if err := h.check(a, limits); err != nil {
		return err
	}
	if !h.w.life.Enter() {
		return a.refuse()
	}
	defer h.w.life.Leave()
	if err := h.admit(a, limits); err != nil {
		return err
	}
	if err := startAt(ctx, h, false); err != nil {
		return err
	}
	return h.pushedBack(a, h.next.ProcessTask(ctx, task))
}

const opRate = "rate limit"

func (h *rateHandler) check(a *attempt, limits []rates.Limit) error {
	in := (*core.Locker)(h.w.locks)
	if err := rates.Check(in, opRate, limits); err != nil {
		if snoozed := a.w.snooze(err); snoozed != nil && a.canSnooze() { // the Locker was closed
			return snoozed
		}
		return err
	}
	return core.CheckText(opRate, limits[0].Key, "job", a.job, 1, driver.MaxLabelBytes)
}

// inPlace is the longest wait in place of a task that can be snoozed. A wait this short costs less than the two asynq
// commands of a snooze.
const inPlace = 250 * time.Millisecond

// admit returns nil when the task may start, or the attempt's result for asynq.
func (h *rateHandler) admit(a *attempt, limits []rates.Limit) error {
	latest := time.Now().Add(time.Duration(0.5 * float64(a.left())))
	for {
		early := min(inPlace, max(0, time.Until(latest)))
		got, err := rates.Ask(a.ctx, (*core.Locker)(h.w.locks), opRate, a.job, limits, false, early)
		if err == nil {
			h.w.rates.warn(h.w, got, limits)
		}
		switch {
		case a.ctx.Err() != nil:
			return context.Cause(a.ctx) // asynq would ignore the handler's result
		case err == nil && got.OK:
			h.w.rates.came(got)
			return nil
		}
		now, pause := time.Now(), waitPoll
		if err == nil {
			pause = got.Wait
			if pause > inPlace || !now.Add(pause).Before(latest) {
				err = rateSnooze(got, now)
			}
		}
		if err != nil {
			if result, over := h.refused(a, err, got, latest); over {
				return result
			}
		}
		if sleep.For(a.ctx, min(pause, max(0, latest.Sub(now)))) != nil {
			return context.Cause(a.ctx)
		}
	}
}

// refused returns the result for asynq of an attempt that could not be admitted because of err. over is false if the task
// waits in place.
func (h *rateHandler) refused(a *attempt, err error, got rates.Answer, latest time.Time) (result error, over bool) {
	snoozed := a.w.snooze(err)
	refused := verdict.Refused{
		Err: err, Snooze: snoozed, Late: !time.Now().Before(latest), Tries: a.tries, Carries: a.mayCarry(),
	}
	next := refused.Next()
	if (next == verdict.SnoozeTask || next == verdict.ArchiveTask) && got.Wait > 0 {
		h.w.rates.expect(h.w.tools, a.job, got, time.Now().Add(got.Wait))
	}
	switch next {
	case verdict.FailTask:
		return err, true
	case verdict.SnoozeTask:
		a.endByDeadline(snoozed)
		a.logSnoozed(snoozed)
		return snoozed, true
	case verdict.ArchiveTask:
		a.endByDeadline(snoozed)
		return a.snoozeByArchive(snoozed), true
	case verdict.OutOfTime:
		return fmt.Errorf("worker: gave up waiting in place: not enough time left before the task's deadline: %w", err), true
	}
	a.canSnooze() // logs if Configure was not called
	return nil, false
}

// rateSnooze returns the error that snoozes a task until its time. The delay for asynq is longer, so that asynq does
// not run a task before its time if the tasks before it were late.
func rateSnooze(got rates.Answer, now time.Time) *verdict.Snooze {
	return &verdict.Snooze{
		Err:   errors.New(jobline.RateWait(got.Limit.Key, now.Add(got.Wait))),
		Delay: got.Wait + max(rateSlack, got.Wait/10),
	}
}

// rateSlack is how long after its time, at least, asynq runs a task that no process has run.
const rateSlack = 5 * time.Second

// minAfter is the shortest time for which a key is pushed back: without a bound, a provider that refuses and names no time
// would be called again at once, forever.
const minAfter = time.Second

// pushedBack returns the attempt's result for asynq if the handler has returned err.
func (h *rateHandler) pushedBack(a *attempt, err error) error {
	r, ok := errors.AsType[*rates.Refusal](err)
	if !ok || a.ctx.Err() != nil {
		return err
	}
	ctx, after := context.WithoutCancel(a.ctx), min(max(r.After, minAfter), driver.MaxPeriod)
	if failed := rates.PushBack(ctx, (*core.Locker)(h.w.locks), "push back", a.job, r.Key, after); failed != nil {
		a.log().Warn("worker: could not delay the starts of a key", "key", r.Key, "after", after, "err", failed)
		return err
	}
	got := rates.Answer{Limit: rates.Limit{Key: r.Key}, Wait: after, Claim: true}
	now := time.Now()
	snoozed := rateSnooze(got, now)
	a.endByDeadline(snoozed)
	snoozed.Err = fmt.Errorf("%w; %w", snoozed.Err, err)
	switch {
	case a.canSnooze():
		h.w.rates.expect(h.w.tools, a.job, got, now.Add(after))
		a.logSnoozed(snoozed)
		return snoozed
	case a.canSnoozeByArchive():
		h.w.rates.expect(h.w.tools, a.job, got, now.Add(after))
		return a.snoozeByArchive(snoozed)
	}
	return err
}
