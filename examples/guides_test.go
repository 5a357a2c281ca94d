package examples_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/joblock/singleflight"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
	"github.com/joblock/toolkit/worker"
)

// The guides in docs quote the parts between the brackets.

// onMiniredis opens a Process on a Redis in memory, and returns the function that closes both.
func onMiniredis() (*toolkit.Process, func()) {
	embedded := must(miniredis.Run())
	p := must(toolkit.New(asynq.RedisClientOpt{Addr: embedded.Addr()}, nil))
	return p, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		check(p.Close(ctx))
		embedded.Close()
	}
}

// impatient is the configuration of a server that stops without a wait.
var impatient = asynq.Config{
	Concurrency: 10, LogLevel: asynq.FatalLevel, TaskCheckInterval: 5 * time.Millisecond,
	DelayedTaskCheckInterval: 100 * time.Millisecond,
	RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
}

func post(routes http.Handler, path string) int {
	w := httptest.NewRecorder()
	routes.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}")))
	return w.Code
}

// docs/request-to-job.md
func Example_requestToJob() {
	p, closeAll := onMiniredis()
	defer closeAll()
	routes := http.NewServeMux()
	transfer := asynq.NewTask("transfer", nil)

	// [several
	both := handoff.Middleware(p.Locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{
			Key:     joblock.Key("wallet", r.PathValue("from")),
			Keys:    []string{joblock.Key("wallet", r.PathValue("to"))},
			MaxWait: 2 * time.Second, // wait in line for a moment, instead of a 429 at once
		}, nil
	})
	routes.Handle("POST /transfers/{from}/{to}", both(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := p.Jobs.Enqueue(r.Context(), handoff.Carry(joblock.LocksFromContext(r.Context())...), transfer); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})))
	// several]

	// [status
	routes.HandleFunc("GET /wallets/{wallet}", func(w http.ResponseWriter, r *http.Request) {
		found, err := p.Locks.Status(r.Context(), joblock.Key("wallet", r.PathValue("wallet")))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		fmt.Fprintln(w, "busy:", found[0].Locked())
	})
	// status]

	fmt.Println(post(routes, "/transfers/a/b"))
	w := httptest.NewRecorder()
	routes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/wallets/b", nil))
	fmt.Print(w.Body)
	// Output:
	// 202
	// busy: true
}

// docs/unique-jobs.md
func Example_uniqueJobs() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx, account := context.Background(), "acct-7"
	task := asynq.NewTask("any", []byte("payload"))

	// [policies
	invoice := handoff.Unique{Key: joblock.Key("invoice", account)}                                // refuse the second
	refresh := handoff.Unique{Key: joblock.Key("refresh", account), OnConflict: handoff.Skip}      // the first will do
	settings := handoff.Unique{Key: joblock.Key("settings", account), OnConflict: handoff.Replace} // the latest wins
	index := handoff.Unique{Key: joblock.Key("index", account), OnConflict: handoff.KeepLast}      // one runs, the latest waits

	// the latest cancels the one that runs
	answer := handoff.Unique{Key: joblock.Key("answer", account), OnConflict: handoff.CancelInProgress}
	// policies]
	for _, u := range []handoff.Unique{invoice, refresh, settings, index, answer} {
		must(p.Jobs.Enqueue(ctx, u, task))
		second, err := p.Jobs.Enqueue(ctx, u, task)
		fmt.Println(errors.Is(err, joblock.ErrHeld), second.Duplicate, second.Replaced != nil)
	}

	row := []asynq.Option{asynq.Unique(time.Hour), asynq.MaxRetry(3)} // of a table of tasks, used again and again
	first := must(enqueueOnce(ctx, p, task, row...))
	_, err := enqueueOnce(ctx, p, task, row...)
	_, inTheWay, _ := handoff.JobOf(err)
	fmt.Println("a duplicate of the first:", errors.Is(err, asynq.ErrDuplicateTask), inTheWay == first.ID)
	one, other := must(enqueueOnce(ctx, p, task)), must(enqueueOnce(ctx, p, task))
	fmt.Println("two without Unique:", one.ID != other.ID)

	// [who
	_, err = p.Jobs.Enqueue(ctx, invoice, task)
	if queue, id, ok := handoff.JobOf(err); ok {
		info, err := p.Inspector.GetTaskInfo(queue, id)
		check(err)
		fmt.Println("the invoice is", info.State)
	}
	// who]

	// Output:
	// true false false
	// false true false
	// false false true
	// false false true
	// false false true
	// a duplicate of the first: true true
	// two without Unique: true
	// the invoice is pending
}

// transaction is a *sql.Tx.
type transaction interface {
	Commit() error
	Rollback() error
}

// [bill
// bill enqueues the job of an invoice within the transaction that writes the invoice.
func bill(ctx context.Context, tx transaction, p *toolkit.Process, invoice handoff.Unique, task *asynq.Task) error {
	job, err := p.Jobs.Enqueue(ctx, invoice, task, asynq.ProcessIn(5*time.Second)) // usually committed by then
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return errors.Join(err, p.Jobs.Withdraw(ctx, job)) // joblock.ErrBusy: the job is already running, and finds no row
	}
	return nil
}

// bill]

// brokenTx is a transaction whose Commit fails.
type brokenTx struct{}

func (brokenTx) Commit() error   { return errors.New("serialization failure") }
func (brokenTx) Rollback() error { return nil }

// docs/unique-jobs.md
func Example_transaction() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx, invoice := context.Background(), handoff.Unique{Key: joblock.Key("invoice", "acct-7")}
	for range 2 { // the second one finds the key free
		fmt.Println(bill(ctx, brokenTx{}, p, invoice, asynq.NewTask("invoice", nil)))
	}
	left, err := p.Inspector.ListScheduledTasks("default")
	fmt.Println(len(left), err)
	// Output:
	// serialization failure
	// serialization failure
	// 0 <nil>
}

// [helper

// enqueueOnce takes the place of client.EnqueueContext. A task with asynq.Unique among opts is enqueued unless one of the same
// type and payload waits or runs; the error for a duplicate is asynq's.
func enqueueOnce(ctx context.Context, p *toolkit.Process, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	others := slices.DeleteFunc(slices.Clone(opts), func(opt asynq.Option) bool { return opt.Type() == asynq.UniqueOpt })
	if len(others) == len(opts) {
		return p.Client.EnqueueContext(ctx, task, opts...) // no asynq.Unique: duplicates are allowed
	}
	done, err := p.Jobs.Enqueue(ctx, handoff.Unique{Key: handoff.TaskKey(task)}, task, others...)
	if errors.Is(err, joblock.ErrHeld) {
		err = fmt.Errorf("%w: %w", asynq.ErrDuplicateTask, err)
	}
	return done.Task, err
}

// helper]

// docs/cron.md
func Example_movedEntries() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx := context.Background()
	s := asynqtick.NewScheduler(p.Locks, &scheduler.Config{Scope: "shop", Logger: slog.New(slog.DiscardHandler)}, p.Redis, nil)
	report := asynq.NewTask("report", nil)
	_, err := s.Register("0 3 * * *", report, asynq.MaxRetry(5), once(p.Jobs, report))
	check(err)
	check(s.Start())
	defer s.Shutdown()

	jobs := must(admin.Of(s.Scheduler()).Entries(ctx))
	for range 2 { // no worker works: the second one finds the first one's task
		fmt.Println(must(must(admin.Of(s.Scheduler()).Trigger(ctx, jobs[0].Name))(ctx)).State)
	}
	info := must(p.Inspector.GetQueueInfo("default"))
	fmt.Println(info.Pending, "task waits")
	// Output:
	// enqueued
	// overlapped
	// 1 task waits
}

// [once

// once takes the place of asynq.Unique(ttl): s.Register("0 3 * * *", report, asynq.MaxRetry(5), once(p.Jobs, report))
func once(jobs *handoff.Client, task *asynq.Task) asynq.Option {
	return asynqtick.With(jobs, handoff.Unique{Key: handoff.TaskKey(task)})
}

// once]

// docs/rate-limits.md
func Example_rateLimits() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx := context.Background()
	routes, tasks := http.NewServeMux(), asynq.NewServeMux()
	server := must(p.NewServer(impatient))

	// [tenant
	tasks.Use(server.Worker.RateLimit(func(ctx context.Context, task *asynq.Task) []rate.Limit {
		return []rate.Limit{
			{Key: joblock.Key("tenant", task.Headers()["tenant"]), N: 100, Per: time.Minute},
			{Key: "provider", N: 10, Per: time.Second},
		}
	}))
	// tenant]

	_ = func(tasks *asynq.ServeMux) {
		// [plans
		perPlan := map[string]int{"free": 10, "pro": 600}
		tasks.Use(server.Worker.RateLimit(func(ctx context.Context, task *asynq.Task) []rate.Limit {
			plan, tenant := task.Headers()["plan"], task.Headers()["tenant"]
			if perPlan[plan] == 0 {
				return nil // no limit
			}
			return []rate.Limit{{Key: joblock.Key("calls", tenant), N: perPlan[plan], Per: time.Minute, Name: "calls " + plan}}
		}))
		// plans]
	}

	_ = func(res *http.Response) error {
		// [refused
		if res.StatusCode == http.StatusTooManyRequests {
			seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
			return rate.RetryAfter("provider", time.Duration(seconds)*time.Second)
		}
		// refused]
		return nil
	}

	routes.HandleFunc("GET /search/{account}", func(w http.ResponseWriter, r *http.Request) {
		// [allow
		search := rate.Limit{Key: joblock.Key("search", r.PathValue("account")), N: 5, Per: time.Minute}
		if err := rate.Allow(r.Context(), p.Locks, search); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		// allow]
		w.WriteHeader(http.StatusOK)
	})

	var done sync.WaitGroup
	tasks.HandleFunc("report", func(context.Context, *asynq.Task) error {
		done.Done()
		return nil
	})
	check(server.Start(tasks))
	done.Add(3)
	for range 3 {
		task := asynq.NewTaskWithHeaders("report", nil, map[string]string{"tenant": "acme"})
		must(p.Client.EnqueueContext(ctx, task))
	}
	done.Wait()
	for range 6 {
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest("GET", "/search/acct-7", nil))
		fmt.Println(w.Code)
	}

	// Output:
	// 200
	// 200
	// 200
	// 200
	// 200
	// 429
}

// docs/limits.md
func Example_limits() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx := context.Background()
	routes, tasks := http.NewServeMux(), asynq.NewServeMux()
	server := must(p.NewServer(impatient))

	// [tenant
	tasks.Use(server.Worker.WithoutOverlapping(func(task *asynq.Task) string {
		return joblock.Key("tenant", task.Headers()["tenant"])
	}, &worker.OverlapConfig{MaxConcurrent: 2}))
	// tenant]

	// [plans
	for plan, n := range map[string]int{"free": 1, "pro": 5} {
		tasks.Use(server.Worker.WithoutOverlapping(func(task *asynq.Task) string {
			if task.Headers()["plan"] != plan {
				return "" // another plan, which has another limit or none
			}
			return joblock.Key("plan", plan, task.Headers()["tenant"])
		}, &worker.OverlapConfig{MaxConcurrent: n}))
	}
	// plans]

	// [type
	tasks.Use(server.Worker.WithoutOverlapping(func(task *asynq.Task) string {
		if task.Type() != "report" {
			return "" // the other types have no limit
		}
		return "reports"
	}, &worker.OverlapConfig{MaxConcurrent: 5}))
	// type]

	// [named
	tasks.Use(server.Worker.WithoutOverlapping(func(task *asynq.Task) string {
		return "provider:acme"
	}, &worker.OverlapConfig{MaxConcurrent: 10, LimitName: "provider-acme"}))
	// named]

	var running, most atomic.Int64
	var done sync.WaitGroup
	tasks.HandleFunc("report", func(context.Context, *asynq.Task) error {
		defer done.Done()
		defer running.Add(-1)
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		return nil
	})
	for range 6 {
		done.Add(1)
		// [headers
		task := asynq.NewTaskWithHeaders("report", nil, map[string]string{"tenant": "acme", "plan": "pro"})
		_, err := p.Client.EnqueueContext(ctx, task)
		// headers]
		check(err)
	}
	check(server.Start(tasks))
	done.Wait()
	fmt.Println("at a time, at most two:", most.Load() <= 2)

	// [carried
	routes.HandleFunc("POST /exports/{account}", func(w http.ResponseWriter, r *http.Request) {
		two := handoff.Unique{Key: joblock.Key("exports", r.PathValue("account")), Limit: 2}
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		if _, err := p.Jobs.Enqueue(r.Context(), two, asynq.NewTask("export", nil, asynq.ProcessIn(time.Hour), asynq.MaxRetry(5))); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	// carried]
	fmt.Println(post(routes, "/exports/acct-7"), post(routes, "/exports/acct-7"), post(routes, "/exports/acct-7"))

	geocode := func(context.Context) error { return nil }
	// [calls
	err := limit.New(p.Locks, 3).Do(ctx, "geocoder", geocode, joblock.MaxWait(time.Minute))
	// calls]
	check(err)
	// Output:
	// at a time, at most two: true
	// 202 202 429
}

// docs/routers.md
func Example_inTheHandler() {
	p, closeAll := onMiniredis()
	defer closeAll()
	routes := http.NewServeMux()
	guard := &handoff.Guard{Locks: p.Locks}
	prepare := func(context.Context) error { return nil }

	routes.HandleFunc("POST /shortest", func(w http.ResponseWriter, r *http.Request) {
		account, task := r.FormValue("account"), asynq.NewTask("export", nil, asynq.MaxRetry(5))
		// [shortest
		export := handoff.Unique{Key: joblock.Key("export", account)}
		if _, err := p.Jobs.Enqueue(r.Context(), export, task); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		// shortest]
		w.WriteHeader(http.StatusAccepted)
	})
	routes.HandleFunc("POST /prepared", func(w http.ResponseWriter, r *http.Request) {
		account, task := r.FormValue("account"), asynq.NewTask("export", nil, asynq.MaxRetry(5))
		// [prepared
		err := guard.Do(r.Context(), handoff.Claim{Key: joblock.Key("export", account)}, func(ctx context.Context) error {
			if err := prepare(ctx); err != nil { // under the lock
				return err
			}
			lock, _ := joblock.FromContext(ctx)
			_, err := p.Jobs.Enqueue(ctx, handoff.Carry(lock), task)
			return err
		})
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		// prepared]
		w.WriteHeader(http.StatusAccepted)
	})
	fmt.Println(post(routes, "/shortest?account=acct-7"), post(routes, "/prepared?account=acct-7"))
	fmt.Println(post(routes, "/prepared?account=acct-8"), post(routes, "/prepared?account=acct-8"), post(routes, "/shortest?account=acct-8"))
	fmt.Println(post(routes, "/shortest"), post(routes, "/prepared"))
	// Output:
	// 202 429
	// 202 429 429
	// 400 400
}

// docs/routers.md
func Example_ownEnvelope() {
	p, closeAll := onMiniredis()
	defer closeAll()
	fail := func(w http.ResponseWriter, status int, code, message string) {
		fmt.Fprintf(w, "%d {error: {code: %s, message: %s}}", status, code, message)
	}
	// [envelope
	guard := &handoff.Guard{Locks: p.Locks, OnRefusal: func(w http.ResponseWriter, r *http.Request, f handoff.Refusal) {
		if f.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter.Seconds())))
		}
		fail(w, f.Status, f.Code, f.Message) // like all your errors
	}}
	// envelope]
	export := handoff.Unique{Key: joblock.Key("export", "acct-7")}
	must(p.Jobs.Enqueue(context.Background(), export, asynq.NewTask("export", nil, asynq.MaxRetry(5))))
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	_, err := p.Jobs.Enqueue(r.Context(), export, asynq.NewTask("export", nil, asynq.MaxRetry(5)))
	guard.Refuse(w, r, err)
	fmt.Println(w.Body, w.Header().Get("Retry-After") != "")
	// Output: 429 {error: {code: LOCK_ACQUISITION_FAILED, message: the lock is held by another request or job}} true
}

// docs/deploy.md
func Example_cronInKubernetes() {
	p, closeAll := onMiniredis()
	defer closeAll()
	rollup := func(ctx context.Context) error {
		_, ok := joblock.FromContext(ctx)
		fmt.Println("rollup runs, under a lock:", ok)
		return nil
	}
	// [kubernetes
	s, err := scheduler.New(p.Locks, &scheduler.Config{Scope: "shop"})
	check(err)
	check(s.Func("rollup", "CRON_TZ=Europe/Berlin 0 3 * * *", rollup)) // the spec of a CronJob, with its timeZone
	// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
	check(s.Task("digest", "@every 1m", asynqtick.EnqueueWith(p.Jobs, handoff.Unique{Key: "digest"}, asynq.NewTask("digest", nil, asynq.MaxRetry(5)))))
	p.Go(s.Run)
	// kubernetes]
	for _, job := range []string{"rollup", "digest"} {
		wait, err := admin.Of(s).Trigger(context.Background(), job)
		check(err)
		execution, err := wait(context.Background())
		check(err)
		fmt.Println(job, execution.State)
	}
	// Output:
	// rollup runs, under a lock: true
	// rollup done
	// digest enqueued
}

// docs/webhooks.md
func Example_webhooks() {
	p, closeAll := onMiniredis()
	defer closeAll()
	routes, tasks := http.NewServeMux(), asynq.NewServeMux()
	signed := func(*http.Request, []byte) bool { return true }

	// [receive
	routes.HandleFunc("POST /hooks/{customer}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		customer, event := r.PathValue("customer"), r.Header.Get("Event-Id")
		if err != nil || event == "" || !signed(r, body) { // before anything else
			http.Error(w, "not from the sender", http.StatusUnauthorized)
			return
		}
		line := handoff.Sequence{Key: joblock.Key("webhooks", customer), MaxWaiting: 10_000}
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		task := asynq.NewTask("webhook", body, asynq.TaskID(joblock.Key(customer, event)), asynq.Retention(72*time.Hour), asynq.MaxRetry(5))
		_, err = p.Jobs.Enqueue(r.Context(), line, task)
		if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) { // a conflict: the event is there already
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	// receive]

	handled := make(chan string, 3)
	tasks.HandleFunc("webhook", func(_ context.Context, task *asynq.Task) error {
		handled <- string(task.Payload())
		return nil
	})
	for _, event := range []string{"1", "2", "1", "2"} { // the sender repeats itself
		r := httptest.NewRequest(http.MethodPost, "/hooks/acme", strings.NewReader("event "+event))
		r.Header.Set("Event-Id", event)
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	server := must(p.NewServer(impatient))
	check(server.Start(tasks))
	fmt.Println(<-handled)
	fmt.Println(<-handled)
	// Output:
	// 202
	// 202
	// 202
	// 202
	// event 1
	// event 2
}

// docs/long-jobs.md
func Example_longJobs() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx := context.Background()
	routes, tasks := http.NewServeMux(), asynq.NewServeMux()
	pages, failed, finished := 4, false, make(chan bool)
	importPage := func(_ context.Context, page int, _ int64) error {
		if page == 2 && !failed {
			failed = true
			return errors.New("the connection broke")
		}
		fmt.Println("page", page)
		return nil
	}

	// [import
	importAll := func(ctx context.Context, task *asynq.Task) error {
		lock, ok := joblock.FromContext(ctx)
		if !ok {
			return errNoLock
		}
		id, _ := asynq.GetTaskID(ctx)
		left, err := memo.Load(ctx, lock) // written by an earlier attempt, or by an earlier job
		if err != nil {
			return err
		}
		page := 0
		_, _ = fmt.Sscanf(string(left), id+" %d", &page) // page stays 0 unless this job wrote the memo
		for ; page < pages; page++ {
			if err := importPage(ctx, page, lock.Fence()); err != nil { // give up when ctx ends
				return err
			}
			if err := memo.Write(ctx, lock, fmt.Appendf(nil, "%s %d", id, page+1)); err != nil {
				return err
			}
		}
		return nil
	}
	// import]
	tasks.HandleFunc("import", func(ctx context.Context, task *asynq.Task) error {
		err := importAll(ctx, task)
		if err == nil {
			close(finished)
		}
		return err
	})

	// [progress
	routes.HandleFunc("GET /imports/{account}", func(w http.ResponseWriter, r *http.Request) {
		views, err := memo.Read(r.Context(), p.Locks, joblock.Key("import", r.PathValue("account")))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		_, page, _ := strings.Cut(string(views[0].Memo), " ")
		fmt.Fprintf(w, "running: %v, pages done: %s\n", views[0].Locked(), page)
	})
	// progress]

	lock := must(p.Locks.TryAcquire(ctx, joblock.Key("import", "acct-7")))
	// [timeout
	task := asynq.NewTask("import", nil, asynq.Timeout(6*time.Hour), asynq.MaxRetry(10))
	_, err := p.Jobs.Enqueue(ctx, handoff.Carry(lock), task)
	// timeout]
	check(err)
	server := must(p.NewServer(impatient))
	check(server.Start(tasks))
	<-finished
	w := httptest.NewRecorder()
	for p.Locks != nil {
		if found := must(p.Locks.Status(ctx, lock.Key())); !found[0].Locked() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	routes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/imports/acct-7", nil))
	fmt.Print(w.Body)
	// Output:
	// page 0
	// page 1
	// page 2
	// page 3
	// running: false, pages done: 4
}

// docs/chains.md
func Example_chain() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx, id := context.Background(), "7"
	done := make(chan bool)
	tasks := asynq.NewServeMux()
	for _, name := range []string{"upload", "thumbnail", "notify", "page"} {
		tasks.HandleFunc(name, func(ctx context.Context, task *asynq.Task) error {
			fmt.Println(name, string(task.Payload()))
			switch {
			case name == "notify":
				return new(app).split(ctx, task)
			case name == "page" && string(task.Payload()) == "2":
				close(done)
			}
			return nil
		})
	}
	cfg := impatient
	cfg.Queues = map[string]int{"default": 1, "images": 1}
	server := must(p.NewServer(cfg))
	check(server.Start(tasks))
	defer server.Shutdown()

	// [chain
	chain := handoff.Chain{
		Under: handoff.Unique{Key: joblock.Key("video", id)},
		Then: []*asynq.Task{
			asynq.NewTask("thumbnail", []byte(id), asynq.Queue("images"), asynq.MaxRetry(3)),
			asynq.NewTask("notify", []byte(id), asynq.MaxRetry(10)),
		},
	}
	_, err := p.Jobs.Enqueue(ctx, chain, asynq.NewTask("upload", []byte(id), asynq.MaxRetry(5)))
	// chain]
	check(err)
	<-done
	// Output:
	// upload 7
	// thumbnail 7
	// notify 7
	// page 1
	// page 2
}

// app splits documents.
type app struct{}

func (a *app) pages([]byte) [][]byte { return [][]byte{[]byte("1"), []byte("2")} }

// [split
func (a *app) split(ctx context.Context, task *asynq.Task) error {
	var parts []*asynq.Task
	for _, page := range a.pages(task.Payload()) {
		parts = append(parts, asynq.NewTask("page", page))
	}
	return worker.Then(ctx, parts...)
}

// split]

// docs/fairness.md
func Example_fairness() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx, customer, row := context.Background(), "acme", []byte("1")
	plan := struct{ Limit int }{4}

	// [tenant
	// Limit is how many jobs of the tenant may run at a time, and so its share of the workers.
	tenant := handoff.Sequence{Key: joblock.Key("tenant", customer), Limit: plan.Limit}
	_, err := p.Jobs.Enqueue(ctx, tenant, asynq.NewTask("import row", row, asynq.MaxRetry(5)))
	// tenant]
	fmt.Println(err)
	// Output: <nil>
}

// docs/choose.md
func Example_choose() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx := context.Background()
	migrate := func(context.Context) error { fmt.Println("migrated"); return nil }
	fetchRates := func(context.Context) (map[string]float64, error) {
		fmt.Println("fetched")
		return map[string]float64{"usd": 1.1}, nil
	}

	// [do
	err := p.Locks.Do(ctx, "migrate", migrate) // waits for the lock, runs migrate under it, releases it
	// do]
	check(err)

	for range 2 {
		// [flight
		rates, err := singleflight.Do(ctx, p.Locks, "rates", time.Minute, fetchRates)
		// flight]
		check(err)
		fmt.Println(rates["usd"])
	}

	listened := make(chan bool)
	listen := func(ctx context.Context) error { close(listened); <-ctx.Done(); return nil }
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		// [singleton
		err := p.Locks.Singleton(ctx, "listener", listen) // on one node of the cluster at a time
		// singleton]
		ended <- err
	}()
	<-listened
	stop()
	fmt.Println(<-ended)
	// Output:
	// migrated
	// fetched
	// 1.1
	// 1.1
	// <nil>
}
