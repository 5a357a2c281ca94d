// Worker is the job side of a small service: it runs the jobs that the web side
// started, each under the lock that came with it.
//
//	REDIS_ADDR=localhost:6379 go run ./examples/service/worker
package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/examples/service/export"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

func main() {
	if err := run(); err != nil {
		slog.Error("worker", "err", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	addr := cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")
	redisOpt := asynq.RedisClientOpt{Addr: addr}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return err
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		return err
	}
	inspector := asynq.NewInspector(redisOpt)
	defer inspector.Close()
	w, err := worker.New(locks, inspector, nil)
	if err != nil {
		return err
	}

	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc(export.Type, export.Handle)
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10, LogLevel: asynq.WarnLevel}))
	if err := server.Start(mux); err != nil {
		return err
	}
	go w.RunKeeper(ctx) // looks after the locks of tasks that no worker runs; stands by while another worker's keeper does
	slog.Info("working")
	<-ctx.Done()
	// In this order: the handlers, their locks, what keeps the locks. Shutdown
	// leaves behind handlers that it cut short; Close waits for them.
	server.Shutdown()
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(w.Close(bounded), locks.Close(bounded))
}
