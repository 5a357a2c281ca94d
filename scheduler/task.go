package scheduler

import (
	"context"
	"time"
)

// Task registers enqueue to be called on one node at every tick of spec, to put one task
// into a queue. For asynq use asynqtick.Enqueue, or wrap your function in asynqtick.Once:
//
//	err := s.Task("digest", "@every 1m", asynqtick.Enqueue(client, asynq.NewTask("digest", nil), asynq.Retention(time.Minute)))
//
// An enqueue of your own must use tick.ID() as the task's ID, and return nil if the queue
// already has a task of that ID: another node has enqueued it and died. An
// asynq.ErrTaskIDConflict that enqueue returns counts as a failure. It is retried like any
// other error, then reported as EventFailed, although the task is in the queue.
//
// Task is like Func, with these differences:
//
//	tick     enqueue is also passed the tick.
//	retries  a failed enqueue is tried 5 more times, unless Retry says otherwise.
//	overlap  the job's lock covers only the enqueuing, not the task. A task that still waits
//	         or runs at the next tick overlaps only if it carries a lock of its own, as
//	         the tasks of handoff's EnqueueUnique do. enqueue then returns joblock.ErrHeld.
//	         With OverlapSkip the tick is skipped; with OverlapQueue enqueue is called again
//	         until the lock is free. If this tick's own task holds the lock, the tick is
//	         done.
//
// Errors are those of Func. OverlapCancel is joblock.ErrInvalid.
func (s *Scheduler) Task(name, spec string, enqueue func(ctx context.Context, tick Tick) error, opts ...Option) error {
	o := options{retries: 5, retryFirst: time.Second, retryMost: 30 * time.Second, task: true}
	return s.register("task", name, spec, enqueue, o, opts)
}
