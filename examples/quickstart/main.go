// Quickstart shows the whole life of a lock that a request takes and a job carries, with real parts in one process: an
// HTTP server, an asynq server, and a Redis, which is embedded unless -redis names one.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -redis localhost:6379
//
// It ends by itself, with exit code 1 if anything it shows did not happen. This
// file is the wiring that an application has; web.go has the request, story.go
// the job.
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
	"os"
	"time"

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

func run(out io.Writer, named string) (err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 45*time.Second, errors.New("the story took too long"))
	defer cancel()
	addr, stopRedis, err := findRedis(ctx, named)
	if err != nil {
		return err
	}
	defer stopRedis()

	// The locks. The lease is short to keep the story short.
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return err
	}
	locks, err := joblock.New(store, &joblock.Config{TTL: 2 * time.Second, Logger: quiet})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close(ctx)) }()

	// A queue and an account of its own, so that runs do not meet on a real server.
	s := newStory(out, locks, fmt.Sprintf("acct-%04d", rand.IntN(10000)))
	queue := "quickstart-" + s.account
	redisOpt := asynq.RedisClientOpt{Addr: addr}
	client, inspector := asynq.NewClient(redisOpt), asynq.NewInspector(redisOpt)
	defer client.Close()
	defer inspector.Close()
	defer inspector.DeleteQueue(queue, true)

	// The worker.
	w, err := worker.New(locks, inspector, &worker.Config{Overrun: time.Second / 2, Snooze: time.Second, Logger: quiet})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
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
	defer server.Shutdown() // then w.Close, then locks.Close

	// The web server.
	jobs, err := handoff.NewClient(locks, client, inspector, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Close(ctx)) }()
	url, stopWeb, err := serve(routes(s, locks, jobs, queue))
	if err != nil {
		return err
	}
	defer stopWeb()

	s.intro(cmp.Or(named, "an embedded Redis"))
	return s.tell(ctx, url+"/exports/"+s.account)
}

// quiet keeps the library's log lines out of the story.
var quiet = slog.New(slog.DiscardHandler)
