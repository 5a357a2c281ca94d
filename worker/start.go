package worker

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

type startKey struct{}

// start releases the locks of c.untilStart, or lets them cool down: they only keep other jobs from being enqueued.
//
//	released, or gone                 nil: an earlier attempt may have released the lock
//	held, or bound to another job     an error that snoozes the task, because another enqueue is replacing the task
//	no answer, or the Locker closed   an error that snoozes the task: the lock would refuse other jobs without need
//	a newer job has started before    a *verdict.Superseded; see overtaken
//	any other error                   logged; nil
func (c *carrier) start(ctx context.Context) error {
	news, err := c.overtaken(ctx)
	if err != nil {
		return err
	}
	for _, token := range c.untilStart {
		var err error
		if c.cooldown(token) > 0 {
			err = c.startCooling(ctx, token)
		} else {
			err = c.w.next.Release(ctx, []core.Token{core.Token(token)}, core.Release{IfIdle: true, Reason: verdict.ReasonStarted, Job: c.job})[0]
		}
		if errors.Is(err, joblock.ErrNotOwner) {
			err = c.movedTo(ctx, token)
		}
		if joblock.CodeOf(err) == "" || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrNotFound) {
			continue
		}
		if snoozed := c.w.snooze(err); snoozed != nil {
			return snoozed
		}
		c.log().Warn("worker: could not release the UntilStarted lock of a task", "key", token.Key(), "err", err)
	}
	return c.noteStart(ctx, news)
}

// startAt calls start for the attempt in ctx, if the task starts at the handler h and the attempt has not started the
// task yet. marked says that h is a startedHandler. An error snoozes the task.
func startAt(ctx context.Context, h asynq.Handler, marked bool) error {
	c, ok := ctx.Value(startKey{}).(*carrier)
	if !ok || c.started || !marked && h != c.startsAt {
		return nil
	}
	start := func() (struct{}, error) { return struct{}{}, c.start(context.WithoutCancel(c.ctx)) }
	if _, snoozed := inTime(c.attempt, c.left()/2, start, func(struct{}) {}); snoozed != nil {
		return snoozed
	}
	c.started = true
	return nil
}

// startedTooEarly logs, once per Worker, that err snoozes a task that this attempt has already started: the lock that
// the task had until its start is released.
func startedTooEarly(ctx context.Context, err error) {
	c, ok := ctx.Value(startKey{}).(*carrier)
	_, snoozed := errors.AsType[*verdict.Snooze](err)
	if ok && c.started && snoozed && !c.w.logged.started.Swap(true) {
		c.log().Error("worker: a task was snoozed after the release of its UntilStarted lock, so another task may now be queued for the key; " +
			"WithoutOverlapping is hidden behind another package's middleware: register Worker.Started as the innermost middleware")
	}
}

// movedTo returns verdict.MovedTo for token, or nil if the lock cools down after this job. It returns an error of
// Status as it is.
func (c *carrier) movedTo(ctx context.Context, token joblock.Token) error {
	sts, err := c.w.locks.Status(ctx, token.Key())
	if err != nil || c.cooled(token, sts[0]) {
		return err
	}
	return verdict.MovedTo(token, sts[0])
}
