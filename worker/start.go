package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

type startKey struct{}

// start releases the locks of c.untilStart, or lets them cool down: they only keep other jobs from being enqueued.
//
//	released, or gone                 nil: an earlier attempt may have released the lock
//	held, or bound to another job     an error that snoozes the task, because another enqueue is replacing the task
//	no answer, or the Locker closed   an error that snoozes the task: the lock would refuse other jobs without need
//	gone to a newer job that started  an error that matches asynq.RevokeTask; see overtaken
//	any other error                   logged; nil
func (c *carrier) start(ctx context.Context) error {
	for _, token := range c.untilStart {
		var err error
		if c.cooldown(token) > 0 {
			err = c.startCooling(ctx, token)
		} else {
			err = c.w.next.Release(ctx, []core.Token{core.Token(token)}, core.Release{IfIdle: true, Reason: verdict.ReasonStarted, Job: c.job})[0]
		}
		if over := c.overtaken(ctx, token, err); over != nil {
			return over
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
		c.log().Warn("worker: could not release a lock that a task has until it starts", "key", token.Key(), "err", err)
	}
	return nil
}

// overtaken returns an error that matches asynq.RevokeTask if a newer job has started with the lock of token, which this
// job was to have until its start, but has not: err says so. Only a job whose enqueue has failed half-way can be left in
// that way, next to the one that it was to replace; without overtaken it could run after the newer job. The fence of the
// newer job is larger: this job's is that of the call that made it. It returns nil for a job that may run at the same time
// as newer ones.
func (c *carrier) overtaken(ctx context.Context, token joblock.Token, err error) error {
	if len(c.fromStart) == 0 || !errors.Is(err, joblock.ErrAlreadyReleased) && !errors.Is(err, joblock.ErrNotOwner) {
		return nil
	}
	sts, serr := c.w.locks.Status(ctx, token.Key())
	if serr != nil || sts[0].Locked() || sts[0].Reason != verdict.ReasonStarted || sts[0].Job == c.job || sts[0].Fence <= core.Token(token).Fence() {
		return nil
	}
	last := c.lastErr()
	if last != "" && last != asynq.ErrLeaseExpired.Error() && !strings.Contains(last, verdict.SnoozeText) && !strings.Contains(last, jobline.ArchiveText) {
		return nil // the job has run and failed: this is its retry, or an operator has run it again
	}
	c.log().Info("worker: skipped a task, because the newer task that replaces it has started",
		"key", token.Key(), "newer", sts[0].Job)
	return fmt.Errorf("worker: the newer job %s has started: %w", sts[0].Job, asynq.RevokeTask)
}

// startAt calls start for the attempt in ctx, if the task starts at the handler h and the attempt has not started the
// task yet. marked says that h is that of Started. An error snoozes the task.
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
	if ok && c.started && snoozed && !c.w.told.started.Swap(true) {
		c.log().Error("worker: a task was snoozed after it had given up the key that it has until it starts; " +
			"another task may now be queued for that key; another package's middleware hides WithoutOverlapping: register Worker.Started as the innermost")
	}
}

// movedTo is verdict.MovedTo for token, and nil if the lock cools down after this job. An error that is no snooze comes
// from Status.
func (c *carrier) movedTo(ctx context.Context, token joblock.Token) error {
	sts, err := c.w.locks.Status(ctx, token.Key())
	if err != nil || c.cooled(token, sts[0]) {
		return err
	}
	return verdict.MovedTo(token, sts[0])
}
