package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/server/internal/routes"
	"github.com/joblock/toolkit/worker"
)

// hang bounds what must happen but has no time of its own.
const hang = 30 * time.Second

// A shop is a replica that enqueues, with asynq in the same Redis.
type shop struct {
	*replica
	rdb       *redis.Client
	inspector *asynq.Inspector
}

func newShop(t *testing.T, addr string, change ...func(*Config)) *shop {
	t.Helper()
	s := &shop{rdb: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() { _ = s.rdb.Close() })
	s.inspector = asynq.NewInspectorFromRedisClient(s.rdb)
	var jobs *handoff.Client
	s.replica = newReplica(t, testkit.Must(redisstore.New(s.rdb, nil)), append([]func(*Config){func(cfg *Config) {
		var err error
		jobs, err = handoff.NewClient(cfg.Locks, asynq.NewClientFromRedisClient(s.rdb), s.inspector, &handoff.Config{Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "NewClient", err)
		cfg.Jobs, cfg.Databases = jobs, []Database{{Name: "main", Inspector: s.inspector}}
	}}, change...)...)
	t.Cleanup(func() { testkit.WantNil(t, "Close", jobs.Close(context.Background())) })
	return s
}

// A client that has no Go takes a lock and enqueues a task in one call. The task runs under the lock in a Go worker,
// and until the task is done no other caller gets the lock.
func TestEnqueueRunsUnderTheLock(t *testing.T) {
	server := redistest.Start(t)
	a, b := newShop(t, server.Addr()), newShop(t, server.Addr())
	order := object{"key": key, "type": "export", "payload": object{"account": 7}, "max_retry": 3}
	r := a.post("/v1/enqueue", order, with("Idempotency-Key", "order-1"))
	job := r.ok()
	if r.status != http.StatusCreated || job.text("queue") != "default" || job.text("state") != "pending" {
		t.Errorf("%d %v", r.status, job)
	}
	again := b.post("/v1/enqueue", order, with("Idempotency-Key", "order-1"))
	if o := again.ok(); again.status != http.StatusOK || !o.flag("repeated") || o.text("task_id") != job.text("task_id") {
		t.Errorf("%d %v", again.status, o)
	}
	held := b.post("/v1/acquire", object{"key": key}).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	if held.text("job") != "default/"+job.text("task_id") {
		t.Errorf("%v", held)
	}
	b.post("/v1/enqueue", order, with("Idempotency-Key", "order-2")).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	b.post("/v1/enqueue", order).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	skip := b.post("/v1/enqueue", object{"key": key, "type": "export", "on_conflict": "skip"}).ok()
	if !skip.flag("duplicate") || skip.text("task_id") != job.text("task_id") {
		t.Errorf("%v", skip)
	}

	running, finish := make(chan error, 1), make(chan struct{})
	wk, err := worker.New(a.locks, a.inspector, &worker.Config{Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(t, "worker.New", err)
	cfg := wk.Configure(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel})
	asynqServer := asynq.NewServerFromRedisClient(a.rdb, cfg)
	mux := asynq.NewServeMux()
	mux.Use(wk.Middleware)
	mux.HandleFunc("export", func(ctx context.Context, task *asynq.Task) error {
		lock, ok := joblock.FromContext(ctx)
		var payload struct{ Account int }
		err := json.Unmarshal(task.Payload(), &payload)
		if !ok || lock.Key() != key || payload.Account != 7 {
			t.Errorf("the job runs under %v with %s, %v", lock, task.Payload(), err)
		}
		running <- err
		<-finish
		return nil
	})
	testkit.WantNil(t, "Start", asynqServer.Start(mux))
	defer func() {
		asynqServer.Shutdown()
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		testkit.WantNil(t, "Close of the worker", wk.Close(ctx))
	}()
	select {
	case err := <-running:
		testkit.WantNil(t, "handler", err)
	case <-time.After(hang):
		t.Fatal("the job does not run")
	}
	a.wantState(key, joblock.StateHeld)
	b.post("/v1/acquire", object{"key": key}).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	for _, policy := range []string{"reject", "skip"} { // the job has its key by now, and the call cannot take it again
		order["on_conflict"] = policy
		again := b.post("/v1/enqueue", order, with("Idempotency-Key", "order-1"))
		if o := again.ok(); again.status != http.StatusOK || !o.flag("repeated") || o.text("task_id") != job.text("task_id") {
			t.Errorf("%s, while the job runs: %d %v", policy, again.status, o)
		}
		b.post("/v1/enqueue", object{"key": key, "type": "export", "task_id": job.text("task_id")}).refused(http.StatusConflict, "TASK_EXISTS")
	}
	close(finish)
	got := b.post("/v1/acquire", object{"key": key, "wait_ms": 30_000}).ok()
	b.post("/v1/release", object{"token": got.text("token")}).ok()
	redistest.Ran(t, server.Backend())
}

// Copies of one call are on their way at the same time, through two replicas. Whichever enqueues the task, the other one
// says so, and takes nothing away from the job.
func TestCopiesOfAnEnqueue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, shape := range []object{{}, {"task_id": "own"}, {"sequence": true}, {"sequence": true, "limit": 2}, {"on_conflict": "keep_last"}, {"on_conflict": "cancel_in_progress"}, {"on_conflict": "skip"}, {"cooldown_ms": 60_000}, {"debounce_ms": 60_000}} {
		t.Run(sprint(shape), func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, server.Addr())
			a, b := newShop(t, proxy.Addr()), newShop(t, server.Addr())
			key := "copies:" + sprint(shape)
			order := object{"key": key, "type": "export", "queue": "q" + strconv.Itoa(len(key))}
			for name, value := range shape {
				order[name] = value
			}
			late := proxy.Once(redistest.Mentioning("asynq:{"), redistest.DelayRequest(300*time.Millisecond)) // after the key was taken
			answers := make(chan *reply, 1)
			go func() {
				r, err := a.try(t.Context(), http.MethodPost, "/v1/enqueue", order, with("Idempotency-Key", "copies"))
				if err != nil {
					t.Error(err)
				}
				answers <- r
			}()
			<-late.Struck()
			statuses := make(map[int]int)
			var tasks []string
			for _, r := range []*reply{b.post("/v1/enqueue", order, with("Idempotency-Key", "copies")), <-answers} {
				if r == nil {
					t.FailNow()
				}
				o := r.ok()
				statuses[r.status]++
				if tasks = append(tasks, o.text("task_id")); o.flag("repeated") != (r.status == http.StatusOK) {
					t.Errorf("%d %v", r.status, o)
				}
			}
			if statuses[http.StatusCreated] != 1 || statuses[http.StatusOK] != 1 || tasks[0] != tasks[1] {
				t.Errorf("%v for %v, want one task, and one answer that says it was there", statuses, tasks)
			}
			if shape["on_conflict"] == "keep_last" || shape["on_conflict"] == "cancel_in_progress" || shape["debounce_ms"] != nil {
				key += "%next"
			}
			if st := b.wantState(key, joblock.StateParked); st.Job != order["queue"].(string)+"/"+tasks[0] {
				t.Errorf("%+v, want the key to be kept for %s", st, tasks[0])
			}
		})
	}
}

// A task with the ID is there already, and is not that of a copy. The call is refused, and its key is free again.
func TestRepeatableEnqueueOfAForeignTask(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newShop(t, server.Addr())
	a.post("/v1/enqueue", object{"key": key + ":1", "type": "export", "task_id": "own"}).ok()
	for _, sequence := range []bool{false, true} {
		other := object{"key": key + ":2", "type": "export", "task_id": "own", "sequence": sequence}
		a.post("/v1/enqueue", other, with("Idempotency-Key", "1")).refused(http.StatusConflict, "TASK_EXISTS")
		a.wantState(key+":2", joblock.StateFree)
	}
}

// Jobs of a sequence wait in the key's line.
func TestEnqueueInSequence(t *testing.T) {
	server := redistest.Start(t)
	a := newShop(t, server.Addr())
	job := func(id string) object {
		return object{"key": key, "type": "hook", "sequence": true, "max_waiting": 2, "task_id": id, "payload_base64": "AAE="}
	}
	if o := a.post("/v1/enqueue", job("1")).ok(); o.flag("waits") {
		t.Errorf("%v", o)
	}
	if o := a.post("/v1/enqueue", job("2")).ok(); !o.flag("waits") || o.number("ahead") != 0 || o["ahead"] == nil {
		t.Errorf("%v", o)
	}
	a.post("/v1/enqueue", job("2")).refused(http.StatusConflict, "TASK_EXISTS")
	a.post("/v1/enqueue", job("3")).ok()
	a.post("/v1/enqueue", job("4")).refused(http.StatusConflict, "LOCK_ACQUISITION_FAILED")
	info, err := a.inspector.GetTaskInfo("default", "1")
	testkit.WantNil(t, "GetTaskInfo", err)
	if string(info.Payload) != "\x00\x01" {
		t.Errorf("payload %q", info.Payload)
	}
}

// A debounced job is replaced by the next one and put off again, up to max_wait_ms. With leading the first one is due at once.
func TestDebounceOverHTTP(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newShop(t, server.Addr())
	job := func(more object) object {
		o := object{"key": key, "type": "index", "debounce_ms": 3_600_000}
		maps.Copy(o, more)
		return o
	}
	first := a.post("/v1/enqueue", job(nil)).ok()
	second := a.post("/v1/enqueue", job(object{"payload": 2}), with("Idempotency-Key", "2")).ok()
	if first.text("state") != "scheduled" || second.text("state") != "scheduled" || second.text("replaced_task_id") != first.text("task_id") {
		t.Errorf("%v, then %v", first, second)
	}
	if o := a.post("/v1/enqueue", job(object{"payload": 2}), with("Idempotency-Key", "2")).ok(); !o.flag("repeated") {
		t.Errorf("again: %v", o)
	}
	info, err := a.inspector.GetTaskInfo("default", second.text("task_id"))
	testkit.WantNil(t, "GetTaskInfo", err)
	if in := time.Until(info.NextProcessAt); string(info.Payload) != "2" || in < 30*time.Minute {
		t.Errorf("%s is due in %s", info.Payload, in)
	}
	leading := a.post("/v1/enqueue", job(object{"key": key + ":leading", "leading": true})).ok()
	info, err = a.inspector.GetTaskInfo("default", leading.text("task_id"))
	if testkit.WantNil(t, "GetTaskInfo", err); time.Until(info.NextProcessAt) > time.Minute {
		t.Errorf("the leading job is due at %s", info.NextProcessAt)
	}
	hour, day := int64(3_600_000), int64(86_400_000)
	how, err := howOf(&routes.EnqueueRequest{Key: key, Wait: &hour, MaxWait: &day, Leading: true})
	testkit.WantNil(t, "howOf", err)
	if want := (enqueue.Debounce{Key: key, Wait: time.Hour, MaxWait: 24 * time.Hour, Leading: true}); how != want {
		t.Errorf("%+v, want %+v", how, want)
	}
	how, err = howOf(&routes.EnqueueRequest{Key: key, OnConflict: "keep_last", Cooldown: &hour})
	testkit.WantNil(t, "howOf", err)
	if want := (enqueue.Unique{Key: key, OnConflict: enqueue.KeepLast, Cooldown: time.Hour}); how != want {
		t.Errorf("%+v, want %+v", how, want)
	}
}

// The job of a caller with queues supersedes a job in its own queue alone; see worker.TestJobOfAnotherQueueIsNotSuperseded.
func TestCallerWithQueuesSupersedesInItsOwn(t *testing.T) {
	server := redistest.Start(t)
	a := newShop(t, server.Addr(), func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			p := Principal{ID: r.Header.Get("Caller"), Scopes: ScopeEnqueue, AllKeys: true, AllQueues: true}
			if p.ID == "bulk" {
				p.AllQueues, p.Queues = false, []string{"bulk"}
			}
			return p, nil
		})
	})
	for caller, want := range map[string]bool{"bulk": true, "any": false} {
		job := a.post("/v1/enqueue", object{"key": "export:" + caller, "type": "export", "queue": "bulk", "on_conflict": "cancel_in_progress"}, with("Caller", caller)).ok()
		info, err := a.inspector.GetTaskInfo("bulk", job.text("task_id"))
		testkit.WantNil(t, "GetTaskInfo", err)
		env, ok, err := envelope.Open(t.Context(), (*core.Locker)(a.locks).Ring().Open, envelope.Task{Job: envelope.Job("bulk", info.ID), Type: info.Type, Headers: info.Headers})
		if err != nil || !ok || !env.Cancel || env.OwnQueue != want {
			t.Errorf("%s: %+v, %t, %v; want OwnQueue %t", caller, env, ok, err, want)
		}
	}
}

func TestBadEnqueues(t *testing.T) {
	server := redistest.Start(t)
	a := newShop(t, server.Addr(), func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			p := Principal{ID: "x", Scopes: ScopeEnqueue, Prefixes: []string{"export:"}, Queues: []string{"default", "bulk"}}
			if r.Header.Get("Caller") == "locker" {
				p.Scopes = ScopeLock
			}
			return p, nil
		})
	})
	good := object{"key": key, "type": "export"}
	changed := func(name string, value any) object {
		o := object{name: value}
		for k, v := range good {
			if _, ok := o[k]; !ok {
				o[k] = v
			}
		}
		return o
	}
	for _, c := range []struct {
		body   object
		status int
		code   string
		says   string
	}{
		{changed("type", " "), 400, "LOCK_INVALID", "type is missing"},
		{changed("key", ""), 400, "LOCK_INVALID", "key is missing"},
		{changed("key", "other"), 403, "FORBIDDEN", "key"},
		{changed("queue", "payments"), 403, "FORBIDDEN", "queue"},
		{changed("payload_base64", "!"), 400, "LOCK_INVALID", "payload_base64 is not base64"},
		{changed("max_retry", 1001), 400, "LOCK_INVALID", "max_retry is 1001, must be from 0 to 1000"},
		{changed("delay_ms", -1), 400, "LOCK_INVALID", "delay_ms is -1"},
		{changed("until", "x"), 400, "LOCK_INVALID", "until is x, must be one of done, started"},
		{changed("on_conflict", "x"), 400, "LOCK_INVALID", "must be one of reject, skip, replace, keep_last, cancel_in_progress"},
		{changed("limit", 2), 400, "LOCK_INVALID", "limit is for"},
		{changed("cooldown_ms", 0), 400, "LOCK_INVALID", "cooldown_ms is 0, must be from 1 to 31622400000"},
		{changed("cooldown_ms", 31_622_400_001), 400, "LOCK_INVALID", "cooldown_ms is 31622400001"},
		{changed("debounce_ms", 999), 400, "LOCK_INVALID", "debounce_ms is 999, must be from 1000 to"},
		{changed("debounce_ms", 31_622_400_000), 400, "LOCK_INVALID", "Debounce.Wait"},
		{changed("max_wait_ms", 1000), 400, "LOCK_INVALID", "max_wait_ms is for a debounce"},
		{changed("leading", true), 400, "LOCK_INVALID", "leading is for a debounce"},
		{object{"key": key, "type": "x", "debounce_ms": 5000, "max_wait_ms": 4999}, 400, "LOCK_INVALID", "max_wait_ms is 4999, must be from 5000 to"},
		{object{"key": key, "type": "x", "debounce_ms": 5000, "on_conflict": "keep_last"}, 400, "LOCK_INVALID", "on_conflict is not for a debounce"},
		{object{"key": key, "type": "x", "debounce_ms": 5000, "delay_ms": 1}, 400, "LOCK_INVALID", "delay_ms is not for a debounce"},
		{object{"key": key, "type": "x", "debounce_ms": 5000, "task_id": "a"}, 400, "LOCK_INVALID", "task_id is not for a debounce"},
		{object{"key": key, "type": "x", "debounce_ms": 5000, "max_waiting": 1}, 400, "LOCK_INVALID", "max_waiting is for"},
		{object{"key": key, "type": "x", "sequence": true, "debounce_ms": 5000}, 400, "LOCK_INVALID", "debounce_ms is not for"},
		{object{"key": key, "type": "x", "sequence": true, "cooldown_ms": 5000}, 400, "LOCK_INVALID", "cooldown_ms is not for"},
		{object{"key": key, "type": "x", "sequence": true, "until": "done"}, 400, "LOCK_INVALID", "not for"},
		{object{"key": key, "type": "x", "sequence": true, "limit": 2, "on_failure": "halt"}, 400, "LOCK_INVALID", ""},
		{object{"key": key, "type": "x", "on_conflict": "keep_last", "until": "started"}, 400, "LOCK_INVALID", "KeepLast"},
		{changed("task_id", "a\nb"), 400, "LOCK_INVALID", "control character"},
		{changed("task_id", strings.Repeat("i", 300)), 400, "LOCK_INVALID", "256"},
	} {
		r := a.post("/v1/enqueue", c.body)
		r.refused(c.status, c.code)
		if !strings.Contains(string(r.text), c.says) {
			t.Errorf("%v: %s, want %q", c.body, r.text, c.says)
		}
	}
	a.post("/v1/enqueue", good, with("Caller", "locker")).refused(http.StatusForbidden, "FORBIDDEN")
	a.wantState(key, joblock.StateFree)
	a.post("/v1/enqueue", changed("queue", "bulk")).ok()
}
