package scheduler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// exampleLocks makes a Locker in memory. A program has one on its Redis.
func exampleLocks() *joblock.Locker {
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		panic(err)
	}
	return locks
}

// A job that is executed once in the whole cluster at the start, and by the clock from then
// on.
func Example() {
	locks := exampleLocks()
	defer locks.Close(context.Background())
	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	err = s.Func("warm-up", "0 * * * *", func(ctx context.Context) error {
		tick, _ := scheduler.TickFrom(ctx)
		lock, _ := joblock.FromContext(ctx) // its fence grows with every execution
		fmt.Println(tick.Name, tick.Cause, lock.Fence() > 0)
		stop()
		return nil
	}, scheduler.RunAtStart("v1.4"), scheduler.Timeout(10*time.Minute), scheduler.Retry(3, time.Second, time.Minute))
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Run(ctx))
	// Output:
	// warm-up start true
	// <nil>
}

// A function that enqueues by itself is wrapped in asynqtick.Once. Without it, an
// asynq.ErrTaskIDConflict would count as a failure.
func ExampleScheduler_Task() {
	locks := exampleLocks()
	defer locks.Close(context.Background())
	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	err = s.Task("digest", "@every 24h", asynqtick.Once(func(ctx context.Context, tick scheduler.Tick) error {
		defer stop()
		fmt.Println("enqueue with asynq.TaskID(tick.ID())")
		return asynq.ErrTaskIDConflict // another node has enqueued this tick and died
	}), scheduler.RunAtStart("v1.4"))
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Run(ctx))
	e, err := admin.Of(s).Entry(context.Background(), "digest")
	fmt.Println(e.Counts.Enqueued, e.Counts.Failed, err)
	// Output:
	// enqueue with asynq.TaskID(tick.ID())
	// <nil>
	// 1 0 <nil>
}

// What people can see and do from any process.
func Example_admin() {
	locks := exampleLocks()
	defer locks.Close(context.Background())
	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Node: "web-1"})
	if err != nil {
		panic(err)
	}
	if err := s.Func("rollup", "0 3 * * *", func(context.Context) error { return nil }); err != nil {
		panic(err)
	}
	ctx := context.Background()
	a := admin.Of(s) // elsewhere: admin.New(locks, "shop", "alice")
	if err := a.Pause(ctx, "rollup", ""); err != nil {
		panic(err)
	}
	entries, err := a.Entries(ctx)
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		fmt.Println(e.Name, e.Spec, "paused:", e.Paused)
	}
	// Output:
	// rollup CRON_TZ=UTC 0 3 * * * paused: true
}
