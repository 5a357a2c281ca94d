package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/worker"
)

// A task that carries a lock. Package handoff enqueues such tasks; here it is
// done by hand.
func Example() {
	ctx := context.Background()
	mini, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer mini.Close()
	redisOpt := asynq.RedisClientOpt{Addr: mini.Addr()}
	locks, err := joblock.New(memstore.New(&memstore.Config{Notice: memstore.NoticeSilent}), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locks.Close(ctx) }()
	inspector := asynq.NewInspector(redisOpt)
	defer func() { _ = inspector.Close() }()

	// The job side.
	w, err := worker.New(locks, inspector, nil)
	if err != nil {
		log.Fatal(err)
	}
	handled := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error {
		defer close(handled)
		lock, _ := worker.LockFrom(ctx)
		retries, _ := worker.MaxRetry(ctx)
		fmt.Println("exporting under", lock.Key(), "with", retries, "retries")
		_, err := locks.TryAcquire(ctx, "export:acct-7")
		fmt.Println("anybody else gets it:", !errors.Is(err, joblock.ErrHeld))
		return nil
	})
	srv := asynq.NewServer(redisOpt, w.Configure(asynq.Config{LogLevel: asynq.FatalLevel}))
	if err := srv.Start(mux); err != nil {
		log.Fatal(err)
	}

	// The side that enqueues.
	enqueueExport(ctx, locks, redisOpt)

	<-handled
	srv.Shutdown() // waits for the attempt to be settled
	st, err := locks.Status(ctx, "export:acct-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("afterwards:", st.State, "because", st.Reason)
	// Output:
	// exporting under export:acct-7 with 3 retries
	// anybody else gets it: false
	// afterwards: free because job done
}

func enqueueExport(ctx context.Context, locks *joblock.Locker, redisOpt asynq.RedisConnOpt) {
	client := asynq.NewClient(redisOpt)
	defer func() { _ = client.Close() }()
	lock, err := locks.TryAcquire(ctx, "export:acct-7")
	if err != nil {
		log.Fatal(err)
	}
	token, err := lock.Park(ctx, joblock.ParkOptions{Job: envelope.Job("default", "task-1")})
	if err != nil {
		log.Fatal(err)
	}
	headers, err := envelope.Envelope{Tokens: []joblock.Token{token}, Retries: 3}.Seal()
	if err != nil {
		log.Fatal(err)
	}
	task := asynq.NewTaskWithHeaders("export", nil, headers)
	if _, err := client.Enqueue(task, asynq.TaskID("task-1"), asynq.MaxRetry(3+1)); err != nil {
		log.Fatal(err)
	}
}
