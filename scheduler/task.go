package scheduler

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// Task has enqueue called once for each tick of spec, to enqueue exactly one asynq task:
//
//	err := s.Task("digest", "@every 1m", func(ctx context.Context, tick scheduler.Tick) error {
//		_, err := client.EnqueueContext(ctx, digest, asynq.TaskID(tick.ID()))
//		return err
//	})
//
// It is Func, but for three things. An enqueue that fails is tried 5 more times, unless
// Retry says otherwise. asynq.ErrTaskIDConflict counts as success: with tick.ID() as the
// task's ID, a tick whose node died right after it had enqueued the task is not enqueued
// again by the node that takes over, provided that the task still exists: give short
// tasks an asynq.Retention of a minute or two.
//
// And the job's lock only covers the enqueuing. To have the next tick see that the task of
// the one before still waits or runs, let the task carry a lock, with package handoff:
//
//	_, err := jobs.EnqueueUnique(ctx, handoff.Unique{Key: "digest"}, digest, asynq.TaskID(tick.ID()))
//
// If enqueue returns joblock.ErrHeld, the tick has overlapped: with OverlapSkip it is
// skipped and counted as such, with OverlapQueue enqueue is called again until the lock
// is free. Held by the task of this very tick, it is enqueued already.
//
// Errors are those of Func; OverlapCancel is ErrInvalid.
func (s *Scheduler) Task(name, spec string, enqueue func(ctx context.Context, tick Tick) error, opts ...Option) error {
	o := options{retries: 5, retryFirst: time.Second, retryMost: 30 * time.Second, task: true}
	return s.add("task", name, spec, enqueue, o, opts)
}

// errOverlapped is that of a Task whose task of an earlier tick has the lock.
var errOverlapped = errors.New("scheduler: the task of an earlier tick is not done")

// enqueued makes of the error of an enqueue what it means for the tick.
func enqueued(tick Tick, err error) error {
	var e *joblock.Error
	switch {
	case errors.Is(err, asynq.ErrTaskIDConflict):
		return nil
	case errors.As(err, &e) && e.Code == joblock.CodeHeld:
		if strings.HasSuffix(e.Job, "/"+tick.ID()) {
			return nil
		}
		return errors.Join(errOverlapped, err)
	}
	return err
}
