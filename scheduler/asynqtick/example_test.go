package asynqtick_test

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// The same task at every tick.
func ExampleEnqueue() {
	var s *scheduler.Scheduler
	var client *asynq.Client
	// Without MaxRetry, asynq's default of 25 retries could take up to 20 days.
	err := s.Task("digest", "@every 1m", asynqtick.Enqueue(client, asynq.NewTask("digest", nil, asynq.MaxRetry(5)), asynq.Retention(time.Minute)))
	_ = err
}

// A task that carries a lock: while it waits or runs, later ticks are skipped.
func ExampleEnqueueWith() {
	var s *scheduler.Scheduler
	var jobs *handoff.Client
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	digest := asynqtick.EnqueueWith(jobs, handoff.Unique{Key: "digest"}, asynq.NewTask("digest", nil, asynq.MaxRetry(5)))
	err := s.Task("digest", "@every 1m", digest)
	_ = err
}

// A task that depends on the tick.
func ExampleOnce() {
	var s *scheduler.Scheduler
	var client *asynq.Client
	err := s.Task("report", "0 3 * * *", asynqtick.Once(func(ctx context.Context, tick scheduler.Tick) error {
		task := asynq.NewTask("report", []byte(tick.At.Format(time.DateOnly)))
		_, err := client.EnqueueContext(ctx, task, asynq.TaskID(tick.ID()))
		return err
	}))
	_ = err
}

// A job that asynqmon shows, with its next and its previous tick.
func ExampleTasks() {
	var ctx context.Context
	var s *scheduler.Scheduler
	var rdb redis.UniversalClient
	tasks := asynqtick.New(s, rdb)
	// Without MaxRetry, asynq's default of 25 retries could take up to 20 days.
	err := tasks.Add("digest", "@every 1m", asynq.NewTask("digest", nil, asynq.MaxRetry(5)), []asynq.Option{asynq.Retention(time.Minute)})
	_ = err
	go tasks.Show(ctx, 0)
	err = s.Run(ctx)
	_ = err
}
