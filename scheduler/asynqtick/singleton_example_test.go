package asynqtick_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// An existing asynq scheduler runs on one node at a time.
func ExampleRunSingleton() {
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(context.Background())
	server, err := miniredis.Run() // the Redis of asynq
	if err != nil {
		panic(err)
	}
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	newScheduler := func() (asynqtick.Runner, error) {
		s := asynq.NewScheduler(asynq.RedisClientOpt{Addr: server.Addr()}, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
		_, err := s.Register("0 3 * * *", asynq.NewTask("rollup", nil))
		stop() // as if the process were stopped now
		return s, err
	}
	fmt.Println(asynqtick.RunSingleton(ctx, locks, "asynq-scheduler", newScheduler))
	// Output:
	// <nil>
}
