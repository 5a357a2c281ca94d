package asynqtick_test

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// The same task at every tick.
func ExampleEnqueue() {
	var s *scheduler.Scheduler
	var client *asynq.Client
	err := s.Task("digest", "@every 1m", asynqtick.Enqueue(client, asynq.NewTask("digest", nil), asynq.Retention(time.Minute)))
	_ = err
}

// A task that carries a lock: while it waits or runs, later ticks are skipped.
func ExampleOnce() {
	var s *scheduler.Scheduler
	var jobs *handoff.Client
	err := s.Task("digest", "@every 1m", asynqtick.Once(func(ctx context.Context, tick scheduler.Tick) error {
		_, err := jobs.EnqueueUnique(ctx, handoff.Unique{Key: "digest"}, asynq.NewTask("digest", nil), asynq.TaskID(tick.ID()))
		return err
	}))
	_ = err
}
