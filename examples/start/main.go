// Start is the program of docs/start.md: web and worker in one process.
//
//	go run ./examples/start
//	curl -i -X POST localhost:8080/exports/acct-7
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", "localhost:8080")
	if err == nil {
		err = run(ctx, asynq.RedisClientOpt{Addr: "localhost:6379"}, listener)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, redisOpt asynq.RedisConnOpt, listener net.Listener) (err error) {
	p, err := toolkit.New(redisOpt, nil)
	if err != nil {
		return err // wrong settings
	}
	defer func() { err = errors.Join(err, p.Close(context.Background())) }()
	if err := p.Ping(ctx); err != nil { // no Redis
		return err
	}

	// The worker.
	tasks := asynq.NewServeMux()
	tasks.HandleFunc("export", export)
	server, err := p.NewServer(asynq.Config{Concurrency: 10})
	if err == nil {
		err = server.Start(tasks)
	}
	if err != nil {
		return err
	}

	// The web side.
	perAccount := handoff.Middleware(p.Locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	routes := http.NewServeMux()
	routes.Handle("POST /exports/{account}", perAccount(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		if _, err := p.Jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", []byte(r.PathValue("account")), asynq.MaxRetry(5))); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})))
	web := &http.Server{Handler: routes, ReadTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = web.Close() })
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// work is how long an export takes.
var work = 20 * time.Second

func export(ctx context.Context, task *asynq.Task) error {
	lock, _ := joblock.FromContext(ctx)
	log.Printf("export of %s runs under fence %d", task.Payload(), lock.Fence())
	select {
	case <-time.After(work):
		return nil
	case <-ctx.Done(): // lost lock, timeout, or shutdown
		return context.Cause(ctx)
	}
}
