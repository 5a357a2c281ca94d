// Web is the HTTP side of a small service: it takes the lock of an account, hands it to a
// job, and answers at once. Run it together with one or more workers.
//
//	REDIS_ADDR=localhost:6379 ADDR=localhost:8080 go run ./examples/service/web
//	curl -i -X POST localhost:8080/exports/acct-7
//	curl -s localhost:8080/exports/acct-7
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/examples/service/export"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

func main() {
	if err := run(); err != nil {
		slog.Error("web", "err", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	addr := cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")
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
	client, inspector := asynq.NewClient(asynq.RedisClientOpt{Addr: addr}), asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})
	defer client.Close()
	defer inspector.Close()
	jobs, err := handoff.NewClient(locks, client, inspector, nil)
	if err != nil {
		return err
	}

	takeLock := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: export.Key(r.PathValue("account"))}, nil
	})
	mux := http.NewServeMux()
	mux.Handle("POST /exports/{account}", takeLock(start(jobs)))
	mux.Handle("GET /exports/{account}", show(locks))

	web := &http.Server{
		Addr: cmp.Or(os.Getenv("ADDR"), "localhost:8080"), Handler: mux,
		ReadTimeout: 10 * time.Second, // a request has its lock while it sends its body
	}
	failed := make(chan error, 1)
	go func() { failed <- web.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// In this order: the requests, the enqueues that they left unclear, their locks.
	return errors.Join(web.Shutdown(bounded), jobs.Close(bounded), locks.Close(bounded))
}

// start hands the request's lock to a new job.
func start(jobs *handoff.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		task, err := export.NewTask(r.PathValue("account"))
		if err == nil {
			_, err = jobs.Enqueue(r.Context(), handoff.Carry(lock), task)
		}
		if err != nil {
			handoff.Refuse(w, r, err) // and logs it; the middleware releases the lock
			return
		}
		w.Header().Set("Location", r.URL.Path)
		w.WriteHeader(http.StatusAccepted)
	})
}

// show reports whether the account has an export under way. Who has it (which host and
// process, for which job) is for operators, and so not in the response.
func show(locks *joblock.Locker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sts, err := locks.Status(r.Context(), export.Key(r.PathValue("account")))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(map[string]any{"exporting": sts[0].Locked()}); err != nil {
			slog.Warn("show", "err", err)
		}
	})
}
