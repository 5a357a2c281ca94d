// Quickstart tells the whole story of a lock that a request takes and a job
// carries, on real parts in one process: an HTTP server, an asynq server, and a
// Redis, which is embedded unless -redis names one.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -redis localhost:6379
//
// It ends by itself, with exit code 1 if anything it shows did not happen.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

func main() {
	addr := flag.String("redis", "", "host:port of a Redis to use instead of the embedded one")
	flag.Parse()
	if err := run(os.Stdout, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, addr string) (err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 45*time.Second, errors.New("the story took too long"))
	defer cancel()
	if addr == "" {
		embedded := miniredis.NewMiniRedis()
		embedded.ClockTTL(true)
		if err := embedded.Start(); err != nil {
			return err
		}
		defer embedded.Close()
		addr = embedded.Addr()
	}

	// The locks. A short lease, so that nobody has to wait long for the story.
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locks, err := joblock.New(redisstore.New(rdb, nil), &joblock.Config{TTL: 2 * time.Second, Logger: quiet})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, locks.Close(ctx)) }()

	// A queue and an account of its own, so that runs do not meet on a real server.
	s := newStory(out, locks, fmt.Sprintf("acct-%04d", rand.IntN(10000)))
	queue := "quickstart-" + s.account
	redisOpt := asynq.RedisClientOpt{Addr: addr}
	client, inspector := asynq.NewClient(redisOpt), asynq.NewInspector(redisOpt)
	defer client.Close()
	defer inspector.Close()
	defer inspector.DeleteQueue(queue, true)

	// The worker.
	w, err := worker.New(locks, inspector, &worker.Config{Overrun: time.Second / 2, PutBack: time.Second, Logger: quiet})
	if err != nil {
		return err
	}
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc("export", s.export)
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{
		Queues:                   map[string]int{queue: 1},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
		TaskCheckInterval:        time.Second / 5,
		DelayedTaskCheckInterval: time.Second,
		Concurrency:              4,
		LogLevel:                 asynq.FatalLevel,
	}))
	if err := server.Start(mux); err != nil {
		return err
	}
	defer server.Shutdown()

	// The web server: a lock for each request, handed over to the job.
	jobs, err := handoff.NewClient(locks, client, inspector, nil)
	if err != nil {
		return err
	}
	takeLock := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	routes := http.NewServeMux()
	routes.Handle("POST /exports/{account}", takeLock(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		lock, _ := handoff.LockFrom(r.Context())
		defer lock.Release(r.Context()) // harmless once the job has the lock
		taken := lock.Fence()
		info, err := jobs.Enqueue(r.Context(), lock, asynq.NewTask("export", nil,
			asynq.Queue(queue), asynq.MaxRetry(2), asynq.Timeout(time.Second)))
		if err != nil {
			http.Error(rw, "could not enqueue", http.StatusInternalServerError)
			return
		}
		s.say("request", taken, "took the lock")
		s.say("request", lock.Fence(), "handed it to job %s, answers 202", info.ID[:8])
		rw.Header().Set("Location", "/exports/"+info.ID)
		rw.WriteHeader(http.StatusAccepted)
	})))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: routes, ReadHeaderTimeout: time.Second}
	defer web.Close()
	go web.Serve(listener)

	return s.tell(ctx, "http://"+listener.Addr().String()+"/exports/"+s.account)
}

// quiet keeps the library's log lines out of the story.
var quiet = slog.New(slog.DiscardHandler)
