package examples_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/joblock/slogobserver"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
	"github.com/joblock/toolkit/worker"
)

// What it takes to give an existing asynq application its locks, with each part made by hand. docs/adopt.md quotes the
// parts between the brackets.
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
	ctx := context.Background()
	account := "acct-7"
	handle := func(ctx context.Context, task *asynq.Task) error {
		// [fence
		lock, ok := joblock.LocksFromContext(ctx).ByKey(joblock.Key("export", account))
		// fence]
		done <- ok && lock.Fence() > 0
		return nil
	}

	// [adopt
	// In every process, web and worker.
	locks := must(joblock.New(must(redisstore.New(rdb, nil)), nil)) // rdb: your go-redis client

	// Web: at most one export per account, from the request to the end of its job.
	jobs := must(handoff.NewClient(locks, client, inspector, nil)) // your asynq client and inspector
	perAccount := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	routes.Handle("POST /exports/{account}", perAccount(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		job, err := jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.MaxRetry(5)))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, job.Task.ID)
	})))

	// Worker.
	w := must(worker.New(locks, inspector, nil))
	tasks.Use(w.Middleware)
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10}))
	go w.RunKeeper(ctx) // the keeper
	// adopt]
	tasks.HandleFunc("export", handle)

	// [overlap
	tasks.Use(w.WithoutOverlapping(func(task *asynq.Task) string {
		return task.Type() // the key; "" if the task needs none
	}, &worker.OverlapConfig{MaxConcurrent: 3}))
	// overlap]

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
	check(w.Close(ctx)) // waits until the handlers that Shutdown cancelled have parked or released their locks
	check(jobs.Close(ctx))
	check(locks.Close(ctx))
	// stop]

	// Output:
	// 202
	// 429
	// the job has the lock: true
}

// The same from asynq's options alone. README.md and docs/adopt.md quote the parts between the brackets.
func Example_process() {
	embedded, err := miniredis.Run()
	check(err)
	defer embedded.Close()
	redisOpt := asynq.RedisClientOpt{Addr: embedded.Addr()}
	routes, tasks := http.NewServeMux(), asynq.NewServeMux()
	ctx := context.Background()
	done, digested := make(chan bool), make(chan bool)
	tasks.HandleFunc("export", func(ctx context.Context, task *asynq.Task) error {
		_, ok := joblock.FromContext(ctx)
		done <- ok
		return nil
	})
	tasks.HandleFunc("digest", func(ctx context.Context, task *asynq.Task) error {
		_, ok := joblock.FromContext(ctx)
		digested <- ok
		return nil
	})

	ctx, id, task := context.Background(), "42", asynq.NewTask("invoice", nil)

	// [open
	p, err := toolkit.New(redisOpt, nil) // redisOpt: your asynq.RedisConnOpt
	check(err)
	_, err = p.Jobs.Enqueue(ctx, handoff.Unique{Key: joblock.Key("invoice", id)}, task)
	// open]
	check(err)

	answer := func(w http.ResponseWriter, r *http.Request) {
		// [answer
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		job, err := p.Jobs.Enqueue(r.Context(), handoff.Unique{Key: joblock.Key("report", id)}, task, asynq.MaxRetry(5))
		if err != nil {
			handoff.Refuse(w, r, err) // 429 with Retry-After, if the key is taken
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, job.Task.ID)
		// answer]
	}
	for range 2 {
		w := httptest.NewRecorder()
		answer(w, httptest.NewRequest(http.MethodPost, "/reports/42", nil))
		fmt.Println(w.Code)
	}

	// [web
	// Web: at most one export per account, from the request to the end of its job.
	perAccount := handoff.Middleware(p.Locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	routes.Handle("POST /exports/{account}", perAccount(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		job, err := p.Jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", nil, asynq.MaxRetry(5)))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, job.Task.ID)
	})))

	// Worker.
	server, err := p.NewServer(asynq.Config{Concurrency: 10})
	check(err)
	check(server.Start(tasks)) // or server.Run(tasks)
	// web]

	w := httptest.NewRecorder()
	routes.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/exports/acct-7", nil))
	fmt.Println(w.Code)
	fmt.Println("the job has the lock:", <-done)

	// [cron
	s, err := scheduler.New(p.Locks, &scheduler.Config{Scope: "shop"})
	check(err)
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	check(s.Task("digest", "@every 1m", asynqtick.EnqueueWith(p.Jobs, handoff.Unique{Key: "digest"}, asynq.NewTask("digest", nil, asynq.MaxRetry(5)))))
	p.Go(s.Run)
	// cron]
	_, err = admin.Of(s).Trigger(ctx, "digest") // without waiting for a minute
	check(err)
	fmt.Println("the task of the tick has its lock:", <-digested)

	// [ping
	check(p.Ping(ctx)) // leave it out if the process may start before its Redis
	// ping]
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// [close
	check(p.Close(ctx))
	// close]

	// Output:
	// 202
	// 429
	// 202
	// the job has the lock: true
	// the task of the tick has its lock: true
}

// Who holds what, and what happens to locks. The README quotes this too.
func Example_watch() {
	embedded := miniredis.NewMiniRedis()
	embedded.SetTime(time.Now()) // its clock stands still
	if err := embedded.Start(); err != nil {
		panic(err)
	}
	defer embedded.Close()
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.MessageKey || a.Key == "key" {
				return a
			}
			return slog.Attr{} // differs from run to run
		},
	}))
	ctx := context.Background()

	// [observe
	store, err := redisstore.New(rdb, nil)
	check(err)
	locks, err := joblock.New(store, &joblock.Config{
		Observer: slogobserver.New(logger, nil), // event.Observers combines several
		Logger:   slog.New(slog.DiscardHandler), // otherwise each loss is logged twice
	})
	check(err)
	// observe]

	lock, err := locks.TryAcquire(ctx, joblock.Key("export", "acct-7"), joblock.Holder("web-1"))
	check(err)
	_, err = lock.Park(ctx, joblock.ForJob("default/4f0c"))
	check(err)

	// [list
	found, err := locks.Status(ctx, joblock.Key("export", "acct-7"))
	check(err)
	st := found[0]
	fmt.Println(st.State, st.Holder, st.Job, st.Age.Round(time.Second), st.Lease, st.Waiters)
	for st, err := range locks.List(ctx, joblock.ListOptions{Prefix: "export:"}) {
		check(err)
		fmt.Println(st.Key, st.State, st.Holder)
	}
	// list]

	check(locks.Close(ctx))
	// Output:
	// msg="joblock: acquired" key=export:acct-7
	// msg="joblock: parked" key=export:acct-7
	// parked web-1 default/4f0c 0s 0s 0
	// export:acct-7 parked web-1
}

// Cron jobs. The README quotes the part between the brackets.
func Example_schedule() {
	embedded := miniredis.NewMiniRedis()
	if err := embedded.Start(); err != nil {
		panic(err)
	}
	defer embedded.Close()
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: embedded.Addr()})
	defer client.Close()
	store, err := redisstore.New(rdb, nil)
	check(err)
	locks, err := joblock.New(store, nil)
	check(err)
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	rollup := func(ctx context.Context) error {
		tick, _ := scheduler.TickFrom(ctx)
		lock, _ := joblock.FromContext(ctx)
		fmt.Println(tick.Name, "runs, because of a", tick.Cause, "and under a fence:", lock.Fence() > 0)
		stop()
		return nil
	}

	// [schedule
	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
	check(err)
	check(s.Func("rollup", "0 3 * * *", rollup)) // rollup(ctx), on one node, every night
	// Without MaxRetry, asynq's default of 25 retries could take up to 20 days.
	check(s.Task("digest", "@every 1m", asynqtick.Enqueue(client, asynq.NewTask("digest", nil, asynq.MaxRetry(5)), asynq.Retention(time.Minute))))
	// schedule]
	_, err = admin.Of(s).Trigger(ctx, "rollup") // without waiting for 03:00
	check(err)

	// [run
	check(s.Run(ctx)) // until ctx ends
	// run]
	check(locks.Close(context.Background()))

	// Output:
	// rollup runs, because of a trigger and under a fence: true
}

// One job per key, from its enqueue on.
func Example_unique() {
	embedded, err := miniredis.Run()
	check(err)
	defer embedded.Close()
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	check(err)
	locks, err := joblock.New(store, nil)
	check(err)
	ctx := context.Background()
	defer func() { check(locks.Close(ctx)) }()
	jobs, err := handoff.NewClient(locks, asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), nil)
	check(err)
	defer func() { check(jobs.Close(ctx)) }()
	account, changes := "acct-7", []byte("all of them")
	routes := http.NewServeMux()

	// [unique
	index := handoff.Unique{Key: joblock.Key("index", account), OnConflict: handoff.KeepLast}
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	job, err := jobs.Enqueue(ctx, index, asynq.NewTask("index", changes, asynq.MaxRetry(5)))
	check(err)
	// unique]

	// [uniqueweb
	routes.HandleFunc("POST /reports/{account}", func(w http.ResponseWriter, r *http.Request) {
		report := handoff.Unique{Key: joblock.Key("report", r.PathValue("account"))}
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		if _, err := jobs.Enqueue(r.Context(), report, asynq.NewTask("report", nil, asynq.MaxRetry(5))); err != nil {
			handoff.Refuse(w, r, err) // 429 and Retry-After if the account has a report job
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	// uniqueweb]

	fmt.Println(job.Task.State, job.Replaced != nil)
	accounts := []string{"acct-1", "acct-2"}

	// [many
	var items []handoff.Item
	for _, account := range accounts {
		items = append(items, handoff.Item{
			// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
			Task: asynq.NewTask("report", nil, asynq.MaxRetry(5)),
			How:  handoff.Unique{Key: joblock.Key("report", account), OnConflict: handoff.Skip},
		})
	}
	results, err := jobs.EnqueueMany(ctx, items) // up to 1,000
	check(err)                                   // after an error nothing was done
	for _, result := range results {
		check(result.Err)
	}
	// many]

	job, err = jobs.Enqueue(ctx, index, asynq.NewTask("index", changes, asynq.MaxRetry(5)))
	check(err)
	fmt.Println(job.Task.State, job.Replaced != nil)
	for range 2 {
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/reports/acct-7", nil))
		fmt.Println(w.Code)
	}
	// Output:
	// pending false
	// pending true
	// 202
	// 429
}

// The webhooks of a customer, in order. The third of five cannot be delivered: four and five wait until an operator has
// decided. docs/sequences.md quotes the parts between the brackets.
func Example_sequence() {
	for _, decision := range []string{"run again", "skip"} {
		sequence(decision)
	}
	// Output:
	// delivered 1
	// delivered 2
	// failed 3
	// parked default/acme-3 2
	// waits: default/acme-4
	// waits: default/acme-5
	// run again
	// delivered 3
	// delivered 4
	// delivered 5
	// delivered 1
	// delivered 2
	// failed 3
	// parked default/acme-3 2
	// waits: default/acme-4
	// waits: default/acme-5
	// skip default/acme-3
	// delivered 4
	// delivered 5
}

func sequence(decision string) {
	embedded, err := miniredis.Run()
	check(err)
	defer embedded.Close()
	redisOpt := asynq.RedisClientOpt{Addr: embedded.Addr()}
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	client, inspector := asynq.NewClient(redisOpt), asynq.NewInspector(redisOpt)
	defer client.Close()
	defer inspector.Close()
	ctx := context.Background()
	quiet := slog.New(slog.DiscardHandler)
	locks := must(joblock.New(must(redisstore.New(rdb, nil)), nil))
	defer func() { check(locks.Close(ctx)) }()
	sender := must(handoff.NewClient(locks, client, inspector, nil))
	defer func() { check(sender.Close(ctx)) }()

	failed, delivered := make(chan bool, 1), make(chan bool, 1)
	var healed atomic.Bool
	deliver := func(_ context.Context, task *asynq.Task) error {
		event := string(task.Payload())
		if event == "3" && !healed.Load() {
			fmt.Println("failed", event)
			failed <- true
			return asynq.SkipRetry
		}
		fmt.Println("delivered", event)
		if event == "5" {
			delivered <- true
		}
		return nil
	}
	enqueue := func(customer, event string) (err error) {
		// [sequence
		webhooks := handoff.Sequence{Key: joblock.Key("webhooks", customer), HaltOnFailure: true}
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		task := asynq.NewTask("webhook", []byte(event), asynq.TaskID(customer+"-"+event), asynq.MaxRetry(5))
		_, err = sender.Enqueue(ctx, webhooks, task) // sender: a handoff.Client
		// sequence]
		return err
	}
	for _, event := range []string{"1", "2", "3", "4", "5"} {
		check(enqueue("acme", event))
	}
	w := must(worker.New(locks, inspector, &worker.Config{Logger: quiet}))
	tasks := asynq.NewServeMux()
	tasks.Use(w.Middleware)
	tasks.HandleFunc("webhook", deliver)
	server := asynq.NewServer(redisOpt, w.Configure(asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond}))
	check(server.Start(tasks))
	var keeper sync.WaitGroup
	keeper.Go(func() { _ = w.RunKeeper(ctx) }) // until w is closed
	<-failed
	key := joblock.Key("webhooks", "acme")
	for halted := false; !halted; time.Sleep(time.Millisecond) { // asynq archives the task after the handler
		info, err := inspector.GetTaskInfo("default", "acme-3")
		check(err)
		found, err := locks.Status(ctx, key)
		check(err)
		halted = info.State == asynq.TaskStateArchived && found[0].State == joblock.StateParked
	}

	// [seeline
	found, err := locks.Status(ctx, key)
	check(err)
	fmt.Println(found[0].State, found[0].Job, found[0].Waiters) // the job that has the key, and how many wait
	for place, err := range jobs.Line(ctx, locks, key) {        // package joblock/jobs
		check(err)
		fmt.Println("waits:", place.Job)
	}
	// seeline]
	switch decision {
	case "run again":
		healed.Store(true)
		fmt.Println("run again")
		// [rerun
		check(inspector.RunTask("default", "acme-3")) // or "Run" in asynqmon
		// rerun]
	case "skip":
		fmt.Println("skip", found[0].Job)
		// [skip
		check(jobs.Free(ctx, locks, jobs.Release{Key: key, Job: found[0].Job, Fence: found[0].Fence, Reason: "the customer is gone"})[0])
		// skip]
	}
	<-delivered
	server.Shutdown()
	check(w.Close(ctx))
	keeper.Wait()
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
