// Package asynqtick connects package scheduler with asynq: one asynq task per tick. It is a separate package, so that
// package scheduler compiles without asynq.
//
//	enqueue := asynqtick.Enqueue(client, asynq.NewTask("digest", nil), asynq.Retention(time.Minute))
//	err := s.Task("digest", "@every 1m", enqueue)
//
//	Enqueue              a function for scheduler.Scheduler.Task that enqueues the same task at each tick
//	EnqueueWith          the same for a task with a lock: one at a time, or in a sequence
//	Once                 for an enqueue function of your own, whose task depends on the tick
//	With                 an option that gives a lock to the tasks of an entry of the three types below
//	Tasks                registers jobs, and shows them to asynq's Inspector and to asynqmon
//	Scheduler            takes the place of asynq.Scheduler: the same calls of Register, on all nodes
//	PeriodicTaskManager  takes the place of asynq.PeriodicTaskManager: jobs from a file or a database, read repeatedly
//
// # One task per tick
//
// The tick's ID is the task's ID, so a node that takes over a tick does not enqueue a second task: asynq returns
// asynq.ErrTaskIDConflict, which this package turns into success. If a function of your own, without Once, returns the
// conflict to Task, the tick fails although the task is in the queue.
//
// asynq returns the conflict only while it still has the first task. Give short tasks an asynq.Retention longer than a
// lease of the locks: a minute or two.
//
// With the option asynq.Unique, asynq.ErrDuplicateTask means that the task of an earlier tick waits or runs, or that
// this tick's own task already exists. Either way the tick's enqueue gets joblock.ErrHeld, and the overlap policies of
// scheduler.Scheduler.Task decide about the tick: by default it is skipped, which is no failure.
package asynqtick

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
)

// Client has the method of *asynq.Client that Enqueue calls.
type Client interface {
	EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error)
}

// Enqueue returns a function for Scheduler.Task that enqueues the same task at every tick, under the tick's ID. The
// tick's ID overrides an asynq.TaskID in opts. If client or task is nil, Enqueue returns nil, which Task refuses.
func Enqueue(client Client, task *asynq.Task, opts ...asynq.Option) func(context.Context, scheduler.Tick) error {
	if client == nil || task == nil {
		return nil
	}
	return Once(func(ctx context.Context, tick scheduler.Tick) error {
		_, err := client.EnqueueContext(ctx, task, append(slices.Clip(opts), asynq.TaskID(tick.ID()))...)
		return err
	})
}

// EnqueueWith is Enqueue for a task that carries a lock: jobs enqueues it under how, a handoff.Unique or
// handoff.Sequence.
//
//	digest := asynqtick.EnqueueWith(jobs, handoff.Unique{Key: "digest"}, asynq.NewTask("digest", nil))
//	err := s.Task("digest", "@every 1m", digest)
//
// What a tick does while the task of an earlier tick waits or runs:
//
//	Unique    The key is busy, so the tick overlaps: the overlap policies of Scheduler.Task say what happens to it. This
//	          is so with the policy Skip and during a Cooldown, too. With Replace and KeepLast the new task takes the place
//	          of one that waits. With CancelInProgress it also ends the task that runs, as OverlapCancel does for functions.
//	Sequence  The task joins the line, and the tick is done. Only if Sequence.MaxWaiting places are taken, the tick
//	          overlaps. Without MaxWaiting the line has no bound: it grows while tasks come faster than they end, and
//	          while the sequence has halted. "joblock doctor" names such lines.
//
// The tick's ID overrides an asynq.TaskID in opts. If jobs, how or task is nil, EnqueueWith returns nil, which Task
// refuses. It also returns nil for a Debounce, even in a Chain, because the jobs of a Debounce cannot have the IDs of
// their ticks.
func EnqueueWith(jobs *handoff.Client, how handoff.How, task *asynq.Task, opts ...asynq.Option) func(context.Context, scheduler.Tick) error {
	if jobs == nil || how == nil || task == nil || debounces(how) {
		return nil
	}
	return Once(func(ctx context.Context, tick scheduler.Tick) error {
		done, err := jobs.Enqueue(ctx, how, task, append(slices.Clip(opts), asynq.TaskID(tick.ID()))...)
		if err == nil && done.Duplicate && done.Task.ID != tick.ID() {
			return fmt.Errorf("%w: by the task %s of queue %s", joblock.ErrHeld, done.Task.ID, done.Task.Queue)
		}
		return err
	})
}

// debounces reports whether how is a Debounce, or a Chain under one.
func debounces(how handoff.How) bool {
	switch h := how.(type) {
	case handoff.Debounce, *handoff.Debounce:
		return true
	case handoff.Chain:
		return debounces(h.Under)
	case *handoff.Chain:
		return h != nil && debounces(h.Under)
	}
	return false
}

// Once returns a function that calls enqueue. If enqueue returns asynq.ErrTaskIDConflict, that function returns nil,
// and if enqueue returns asynq.ErrDuplicateTask, joblock.ErrHeld. Once is for tasks that Enqueue and EnqueueWith cannot
// make, because they depend on the tick. enqueue must use tick.ID() as the task's ID:
//
//	err := s.Task("digest", "@every 1m", asynqtick.Once(func(ctx context.Context, tick scheduler.Tick) error {
//		task := asynq.NewTask("digest", []byte(tick.At.Format(time.DateOnly)))
//		_, err := client.EnqueueContext(ctx, task, asynq.TaskID(tick.ID()))
//		return err
//	}))
//
// If enqueue is nil, Once returns nil, which Task refuses.
func Once(enqueue func(context.Context, scheduler.Tick) error) func(context.Context, scheduler.Tick) error {
	if enqueue == nil {
		return nil
	}
	return func(ctx context.Context, tick scheduler.Tick) error {
		err := enqueue(ctx, tick)
		switch {
		case errors.Is(err, asynq.ErrTaskIDConflict):
			return nil
		case errors.Is(err, asynq.ErrDuplicateTask):
			return fmt.Errorf("%w: %w", joblock.ErrHeld, err)
		}
		return err
	}
}
