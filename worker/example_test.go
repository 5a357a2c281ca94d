package worker_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/worker"
)

// A worker process from start to stop. Its tasks come from anywhere: those that
// package handoff enqueued carry locks, others, like the one here, do not, and
// are handled as ever.
func Example() {
	mini, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer mini.Close()
	redisOpt := asynq.RedisClientOpt{Addr: mini.Addr()}
	inspector := asynq.NewInspector(redisOpt)
	defer inspector.Close()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		log.Fatal(err)
	}

	w, err := worker.New(locks, inspector, &worker.Config{
		OnLockLost: func(context.Context, *asynq.Task, error) error { return asynq.RevokeTask }, // no run without the lock
	})
	if err != nil {
		log.Fatal(err)
	}
	handled := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error {
		defer close(handled)
		if lock, ok := joblock.FromContext(ctx); ok {
			fmt.Println("exporting under", lock.Key(), "with fence", lock.Fence())
		} else {
			fmt.Println("exporting without a lock")
		}
		return nil
	})
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{
		LogLevel:          asynq.FatalLevel,
		TaskCheckInterval: 50 * time.Millisecond, // so that the example ends soon
	}))
	if err := server.Start(mux); err != nil {
		log.Fatal(err)
	}
	go w.RunKeeper(context.Background()) // the keeper; Close ends it

	client := asynq.NewClient(redisOpt)
	defer client.Close()
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	if _, err := client.Enqueue(asynq.NewTask("export", nil, asynq.MaxRetry(5))); err != nil {
		log.Fatal(err)
	}
	<-handled

	// At SIGTERM, in this order.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	server.Shutdown() // no new attempts; those under way are cut short after a while
	fmt.Println("attempts settled:", w.Close(ctx) == nil)
	fmt.Println("locks closed:", locks.Close(ctx) == nil)
	// Output:
	// exporting without a lock
	// attempts settled: true
	// locks closed: true
}

// Reports of one account are made one after the other, and no more than three at all,
// however they were enqueued. Those that would have to wait for long are snoozed.
func ExampleWorker_WithoutOverlapping() {
	mini, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer mini.Close()
	redisOpt := asynq.RedisClientOpt{Addr: mini.Addr()}
	inspector := asynq.NewInspector(redisOpt)
	defer inspector.Close()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background())
	w, err := worker.New(locks, inspector, nil)
	if err != nil {
		log.Fatal(err)
	}

	account := func(task *asynq.Task) string { return joblock.Key("account", string(task.Payload())) }
	all := func(*asynq.Task) string { return "reports" }
	handled := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(w.WithoutOverlapping(account, &worker.OverlapConfig{MaxWait: time.Second}))
	mux.Use(w.WithoutOverlapping(all, &worker.OverlapConfig{MaxConcurrent: 3}))
	mux.HandleFunc("report", func(ctx context.Context, _ *asynq.Task) error {
		defer close(handled)
		fmt.Println("running under", joblock.LocksFromContext(ctx)[0].Key(), "and one of three permits")
		return nil
	})
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{
		LogLevel:          asynq.FatalLevel,
		TaskCheckInterval: 50 * time.Millisecond, // so that the example ends soon
	}))
	if err := server.Start(mux); err != nil {
		log.Fatal(err)
	}
	defer server.Shutdown()

	client := asynq.NewClient(redisOpt)
	defer client.Close()
	if _, err := client.Enqueue(asynq.NewTask("report", []byte("acct-7"))); err != nil {
		log.Fatal(err)
	}
	<-handled
	// Output: running under account:acct-7 and one of three permits
}
