package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// One export per account at a time: while the first request is served, a second
// one for the same account is refused, with the time to come again.
func ExampleMiddleware() {
	rdb, done := exampleRedis()
	defer done()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(context.Background())

	claim := func(r *http.Request) (handoff.Claim, error) {
		// Where there is no account the key has an empty part, and is refused.
		return handoff.Claim{Key: joblock.Key("export", r.URL.Query().Get("account"))}, nil
	}
	post := func(h http.Handler, target string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, target, nil))
		return w
	}

	var exports http.Handler
	quiet := slog.New(slog.DiscardHandler)
	exports = (&handoff.Guard{Locks: locks, Logger: quiet}).Middleware(claim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		fmt.Println("serving under", lock.Key())
		second := post(exports, "/exports?account=acct-7")
		fmt.Println(second.Code, second.Header().Get("Retry-After") != "", second.Body)
		w.WriteHeader(http.StatusCreated)
	}))

	fmt.Println(post(exports, "/exports?account=acct-7").Code)
	fmt.Println(post(exports, "/exports").Body)
	// Output:
	// serving under export:acct-7
	// 429 true {"message":"the lock is held by another request or job","code":"LOCK_ACQUISITION_FAILED"}
	//
	// 201
	// {"message":"the request names no valid lock","code":"LOCK_INVALID"}
}

// A consumer of messages: a message whose account is busy is put back, and comes again when the lock may be free.
func ExampleGuard_Do() {
	rdb, done := exampleRedis()
	defer done()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(context.Background())
	guard := &handoff.Guard{Locks: locks}

	consume := func(ctx context.Context, account string, handle func(ctx context.Context) error) (putBack bool, err error) {
		err = guard.Do(ctx, handoff.Claim{Key: joblock.Key("export", account)}, handle)
		var refusal *handoff.Refusal
		if errors.As(err, &refusal) {
			fmt.Println(account, "comes again:", refusal.Message, refusal.RetryAfter > 0)
			return true, nil
		}
		return false, err
	}
	handle := func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		fmt.Println("handled under", lock.Key())
		another := func(context.Context) error { return nil } // message for the account, meanwhile
		_, err := consume(context.Background(), "acct-7", another)
		return err
	}
	_, err = consume(context.Background(), "acct-7", handle)
	fmt.Println(err)
	// Output:
	// handled under export:acct-7
	// acct-7 comes again: the lock is held by another request or job true
	// <nil>
}

// A request hands its lock over to a job and answers at once. From then on the
// key is the job's, and the deferred Release of the request frees nothing.
func ExampleClient_Enqueue() {
	rdb, done := exampleRedis()
	defer done()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer locks.Close(ctx)

	jobs, err := handoff.NewClient(locks,
		asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), nil)
	if err != nil {
		panic(err)
	}
	defer jobs.Close(ctx)

	lock, err := locks.TryAcquire(ctx, "export:acct-7")
	if err != nil {
		panic(err)
	}
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	task := asynq.NewTask("export", []byte(`{"account":"acct-7"}`), asynq.TaskID("export-1"), asynq.MaxRetry(5))
	job, err := jobs.Enqueue(ctx, handoff.Carry(lock), task, asynq.Queue("low"))
	if err != nil {
		panic(err)
	}
	fmt.Println(job.Task.ID, "in", job.Task.Queue)
	fmt.Println("release:", errors.Is(lock.Release(ctx), joblock.ErrNotOwner))

	statuses, err := locks.Status(ctx, "export:acct-7")
	if err != nil {
		panic(err)
	}
	fmt.Println(statuses[0].State, "for", statuses[0].Job)
	// Output:
	// export-1 in low
	// release: true
	// parked for low/export-1
}

// One report per account at a time, from the request for it until it is done. A second
// request learns which job runs, or has the one that waits replaced.
func ExampleUnique() {
	rdb, done := exampleRedis()
	defer done()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer locks.Close(ctx)
	jobs, err := handoff.NewClient(locks,
		asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), nil)
	if err != nil {
		panic(err)
	}
	defer jobs.Close(ctx)

	report := handoff.Unique{Key: joblock.Key("report", "acct-7")}
	if _, err := jobs.Enqueue(ctx, report, asynq.NewTask("report", []byte("May"), asynq.TaskID("r-1"))); err != nil {
		panic(err)
	}
	_, err = jobs.Enqueue(ctx, report, asynq.NewTask("report", []byte("June"), asynq.TaskID("r-2")))
	if queue, id, ok := handoff.JobOf(err); ok && errors.Is(err, joblock.ErrHeld) {
		fmt.Println("there is", id, "in", queue)
	}

	report.OnConflict = handoff.Skip
	second, err := jobs.Enqueue(ctx, report, asynq.NewTask("report", []byte("June"), asynq.TaskID("r-2")))
	fmt.Println(second.Task.ID, second.Duplicate, err)

	report.OnConflict = handoff.Replace
	second, err = jobs.Enqueue(ctx, report, asynq.NewTask("report", []byte("June"), asynq.TaskID("r-2")))
	fmt.Println(second.Task.ID, "in place of", second.Replaced.ID, err)
	// Output:
	// there is r-1 in default
	// r-1 true <nil>
	// r-2 in place of r-1 <nil>
}

// The reports of many accounts, with one call. An item for an account that has a report already fails alone.
func ExampleClient_EnqueueMany() {
	rdb, done := exampleRedis()
	defer done()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer locks.Close(ctx)
	jobs, err := handoff.NewClient(locks,
		asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), nil)
	if err != nil {
		panic(err)
	}
	defer jobs.Close(ctx)

	accounts := []string{"acct-7", "acct-8", "acct-7"}
	var items []handoff.Item
	for _, account := range accounts {
		items = append(items, handoff.Item{
			// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
			Task: asynq.NewTask("report", []byte(account), asynq.MaxRetry(5)),
			Opts: []asynq.Option{asynq.Queue("low")},
			How:  handoff.Unique{Key: joblock.Key("report", account)},
		})
	}
	results, err := jobs.EnqueueMany(ctx, items) // at most 1000
	if err != nil {
		panic(err) // nothing was enqueued
	}
	for i, r := range results {
		switch {
		case errors.Is(r.Err, joblock.ErrHeld):
			fmt.Println(accounts[i], "has a report")
		case r.Err != nil:
			panic(r.Err)
		default:
			fmt.Println(accounts[i], "is enqueued in", r.Task.Queue)
		}
	}
	// Output:
	// acct-7 is enqueued in low
	// acct-8 is enqueued in low
	// acct-7 has a report
}

// Jobs that do the same are those of one type and payload.
func ExampleTaskKey() {
	task := asynq.NewTask("report", []byte(`{"account":7}`))
	same := handoff.TaskKey(task) == handoff.TaskKey(asynq.NewTask("report", []byte(`{"account":7}`)))
	other := handoff.TaskKey(task) == handoff.TaskKey(asynq.NewTask("report", []byte(`{"account":8}`)))
	fmt.Println(same, other)
	// Output: true false
}

// exampleRedis stands for the application's Redis.
func exampleRedis() (rdb *redis.Client, done func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// The webhooks of each customer are delivered in the order in which they came, one at a time. A webhook that cannot be
// delivered is tried again, and those behind it wait. Other customers' webhooks run meanwhile.
func ExampleSequence() {
	rdb, done := exampleRedis()
	defer done()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		panic(err)
	}
	defer locks.Close(context.Background())
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	jobs, err := handoff.NewClient(locks, asynq.NewClientFromRedisClient(rdb), inspector, nil)
	if err != nil {
		panic(err)
	}
	defer jobs.Close(context.Background())

	receive := func(customer, event string) {
		done, err := jobs.Enqueue(context.Background(), handoff.Sequence{
			Key:           joblock.Key("webhooks", customer),
			MaxWaiting:    10_000, // a customer whose server is down for long gets ErrLineFull
			HaltOnFailure: true,   // after the last retry nothing overtakes: an operator decides
		}, asynq.NewTask("webhook", []byte(event)), asynq.TaskID(event)) // an event that comes twice is delivered once
		switch {
		case errors.Is(err, asynq.ErrTaskIDConflict):
			fmt.Println(event, "has come before")
		case err != nil:
			panic(err)
		case done.Waits:
			fmt.Println(event, "waits, behind", done.Ahead)
		default:
			fmt.Println(event, "is next")
		}
	}
	receive("acme", "evt-1")
	receive("acme", "evt-2")
	receive("acme", "evt-3")
	receive("globex", "evt-4")
	receive("acme", "evt-2")
	// The server's side: mux.Use(w.Middleware) with a worker.Worker, and go w.RunKeeper(ctx).

	// Output:
	// evt-1 is next
	// evt-2 waits, behind 0
	// evt-3 waits, behind 1
	// evt-4 is next
	// evt-2 has come before
}
