package examples_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// What it takes to give an existing asynq application its locks. The README
// quotes the parts between the brackets.
func Example() {
	embedded := miniredis.NewMiniRedis()
	embedded.ClockTTL(true)
	if err := embedded.Start(); err != nil {
		panic(err)
	}
	defer embedded.Close()
	redisOpt := asynq.RedisClientOpt{Addr: embedded.Addr()}
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	client, inspector := asynq.NewClient(redisOpt), asynq.NewInspector(redisOpt)
	defer client.Close()
	defer inspector.Close()
	routes, tasks := http.NewServeMux(), asynq.NewServeMux()
	done := make(chan bool)
	handle := func(ctx context.Context, task *asynq.Task) error {
		_, ok := worker.LockFrom(ctx)
		done <- ok
		return nil
	}
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}

	// [locks
	locks, err := joblock.New(redisstore.New(rdb, nil), nil) // rdb: your go-redis client
	check(err)
	// locks]

	// [web
	jobs, err := handoff.NewClient(locks, client, inspector, nil) // your asynq client and inspector
	check(err)
	oneAtATime := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	routes.Handle("POST /exports/{account}", oneAtATime(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := handoff.LockFrom(r.Context())
		if _, err := jobs.Enqueue(r.Context(), lock, asynq.NewTask("export", nil)); err != nil {
			http.Error(w, "could not start the export", http.StatusInternalServerError)
			return // the lock is released with the response; if Redis was away, once it is known that there is no job
		}
		w.WriteHeader(http.StatusAccepted) // the lock is the job's now
	})))
	// web]

	// [worker
	w, err := worker.New(locks, inspector, nil)
	check(err)
	tasks.Use(w.Middleware)
	tasks.HandleFunc("export", handle) // ctx ends with cause joblock.ErrLost if the lock is lost
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10, LogLevel: asynq.WarnLevel}))
	// worker]

	web := httptest.NewServer(routes)
	defer web.Close()
	for range 2 {
		res, err := http.Post(web.URL+"/exports/acct-7", "", nil)
		check(err)
		res.Body.Close()
		fmt.Println(res.StatusCode)
	}
	check(server.Start(tasks))
	fmt.Println("the job has the lock:", <-done)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// [stop
	server.Shutdown()
	check(w.Close(ctx)) // handlers that Shutdown cut short settle their locks
	check(jobs.Close(ctx))
	check(locks.Close(ctx))
	// stop]

	// Output:
	// 202
	// 429
	// the job has the lock: true
}
