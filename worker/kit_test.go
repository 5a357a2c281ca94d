package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/ministore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

const (
	ttl       = 10 * time.Second // of the locks in virtual time
	reserve   = 10 * time.Minute // of every reservation, unless a test says otherwise
	retryWait = 20 * time.Second // of the servers' RetryDelayFunc
	queue     = "default"
	taskType  = "export"

	// The defaults, as they are documented.
	defaultMaxWait = 3 * time.Second
	defaultSnooze  = 10 * time.Second
	defaultEvery   = 30 * time.Second
)

// rig is an asynq installation whose tasks carry locks.
type rig struct {
	t         testing.TB
	mini      *miniredis.Miniredis // asynq's Redis, in virtual time
	rdb       *redis.Client
	faults    *faultstore.Store // between the Locker and its store
	locks     *joblock.Locker
	client    *asynq.Client
	inspector *asynq.Inspector
	log       *testkit.Log
	ttl       time.Duration // of the locks
	patience  time.Duration // of until; 0 is no end but that of go test
	step      time.Duration
	envelopes sync.Map // by *asynq.Task: what is to be sealed for it
}

// virtual runs f on a miniredis and a memstore in a bubble: hours take
// milliseconds.
func virtual(t *testing.T, f func(r *rig)) {
	t.Helper()
	virtualOn(t, lockStores["fences by the clock"], f)
}

// lockStores are two kinds of stores. What fences are must make no difference.
var lockStores = map[string]func() driver.Store{
	"fences by the clock":    func() driver.Store { return memstore.New(&memstore.Config{Silent: true}) },
	"fences in one sequence": func() driver.Store { return &ministore.Store{} },
}

// virtualOn is virtual with another store for the locks.
func virtualOn(t *testing.T, newStore func() driver.Store, f func(r *rig)) {
	t.Helper()
	testkit.Parallel(t)
	bubble(t, newStore, f)
}

// bubble is virtualOn for tests that change what concerns the whole process, and so do not run in parallel.
func bubble(t *testing.T, newStore func() driver.Store, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		testkit.Seed(t, 1)
		redistest.Ran(t, redistest.MiniBackend())
		mini := redistest.Mini(t)
		r := newRig(t, redistest.MiniClient(t, mini), newStore(), ttl)
		r.mini = mini
		r.patience, r.step = 6*time.Hour, 500*time.Millisecond
		f(r)
	})
}

// onRedis returns a rig on the shared redis-server, with locks of the given TTL.
func onRedis(t testing.TB, ttl time.Duration) *rig {
	t.Helper()
	server := redistest.Shared(t)
	redistest.Ran(t, server.Backend())
	return newRig(t, server.Client(t), testkit.Must(redisstore.New(server.Client(t), nil)), ttl)
}

// newRig returns a rig with locks in store, or without a Locker if store is nil.
func newRig(t testing.TB, rdb *redis.Client, store driver.Store, ttl time.Duration) *rig {
	t.Helper()
	r := &rig{
		t: t, rdb: rdb, log: new(testkit.Log),
		client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
		ttl: ttl, step: 5 * time.Millisecond,
	}
	if store != nil {
		r.faults = faultstore.New(store)
		r.locks = r.newLocker()
	}
	return r
}

// newLocker returns another Locker on the same store.
func (r *rig) newLocker() *joblock.Locker {
	r.t.Helper()
	return r.newLockerOn(r.faults)
}

func (r *rig) newLockerOn(store driver.Store, secrets ...joblock.Secret) *joblock.Locker {
	r.t.Helper()
	locks, err := joblock.New(store, &joblock.Config{TTL: r.ttl, Logger: r.log.Text(), Secrets: secrets})
	if err != nil {
		r.t.Fatalf("joblock.New: %v", err)
	}
	r.t.Cleanup(func() {
		if err := locks.Close(context.Background()); err != nil {
			r.t.Errorf("close the Locker: %v", err)
		}
	})
	return locks
}

func (r *rig) newWorker(locks *joblock.Locker, cfg worker.Config) *worker.Worker {
	r.t.Helper()
	cfg.Logger = r.log.Text()
	if cfg.Reserve == 0 {
		cfg.Reserve = reserve
	}
	w, err := worker.New(locks, r.inspector, &cfg)
	if err != nil {
		r.t.Fatalf("worker.New: %v", err)
	}
	r.t.Cleanup(func() { r.closeWorker(w) }) // after the server's Shutdown
	return w
}

// service says how to run a server; the zero value is the usual one.
type service struct {
	worker      worker.Config
	asynq       asynq.Config
	locks       *joblock.Locker // default the rig's
	bare        bool            // without the middleware, as asynq alone
	unconfigure bool            // without Configure
	unguarded   bool            // without the middleware, but configured

	use []func(*worker.Worker) asynq.MiddlewareFunc // inside the middleware
}

// server is an asynq server and its Worker.
type server struct {
	*asynq.Server
	worker *worker.Worker
}

// serve starts a server with handler, until the end of the test.
func (r *rig) serve(s service, handler asynq.HandlerFunc) server {
	r.t.Helper()
	if s.locks == nil {
		s.locks = r.locks
	}
	w := r.newWorker(s.locks, s.worker)
	s.asynq.LogLevel = asynq.FatalLevel
	if s.asynq.Concurrency == 0 {
		s.asynq.Concurrency = 10
	}
	if s.asynq.DelayedTaskCheckInterval == 0 {
		s.asynq.DelayedTaskCheckInterval = time.Second
	}
	if s.asynq.RetryDelayFunc == nil {
		s.asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return retryWait }
	}
	mux := asynq.NewServeMux()
	mux.HandleFunc(taskType, handler)
	if !s.bare && !s.unconfigure {
		s.asynq = w.Configure(s.asynq)
	}
	if !s.bare && !s.unguarded {
		mux.Use(w.Middleware)
	}
	for _, f := range s.use {
		mux.Use(f(w))
	}
	srv := asynq.NewServerFromRedisClient(r.rdb, s.asynq)
	if err := srv.Start(mux); err != nil {
		r.t.Fatalf("start the server: %v", err)
	}
	r.t.Cleanup(srv.Shutdown)
	return server{srv, w}
}

// park takes the locks on keys and parks them for the task.
func (r *rig) park(id string, keys ...string) []joblock.Token {
	r.t.Helper()
	var tokens []joblock.Token
	for _, key := range keys {
		lock, err := r.locks.TryAcquire(context.Background(), key)
		if err != nil {
			r.t.Fatalf("acquire %q for %s: %v", key, id, err)
		}
		tokens = append(tokens, r.parkLock(lock, id))
	}
	return tokens
}

func (r *rig) parkLock(lock *joblock.Lock, id string) joblock.Token {
	r.t.Helper()
	token, err := lock.Park(context.Background(), joblock.Reserve(reserve), joblock.ForJob(envelope.Job(queue, id)))
	if err != nil {
		r.t.Fatalf("park %q for %s: %v", lock.Key(), id, err)
	}
	return token
}

// seal makes a task that carries tokens, for retries retries.
func (r *rig) seal(retries int, tokens ...joblock.Token) *asynq.Task {
	r.t.Helper()
	return r.sealed(nil, envelope.Envelope{Tokens: tokens, Retries: retries})
}

// sealed makes a task that carries env: submit seals it, when the task's ID is known.
func (r *rig) sealed(payload []byte, env envelope.Envelope) *asynq.Task {
	r.t.Helper()
	task := asynq.NewTaskWithHeaders(taskType, payload, map[string]string{envelope.Header: "not sealed yet"})
	r.envelopes.Store(task, env)
	return task
}

// header seals env for a task.
func (r *rig) header(id string, env envelope.Envelope) string {
	r.t.Helper()
	text, err := env.Seal(context.Background(), (*core.Locker)(r.locks).Ring(), envelope.Job(queue, id), taskType)
	if err != nil {
		r.t.Fatalf("seal: %v", err)
	}
	return text
}

// submit enqueues task under id with asynq's own count of retries.
func (r *rig) submit(id string, task *asynq.Task, limit int, opts ...asynq.Option) {
	r.t.Helper()
	if env, ok := r.envelopes.Load(task); ok {
		task = asynq.NewTaskWithHeaders(task.Type(), task.Payload(),
			map[string]string{envelope.Header: r.header(id, env.(envelope.Envelope))})
	}
	opts = append([]asynq.Option{asynq.TaskID(id), asynq.MaxRetry(limit)}, opts...)
	if _, err := r.client.Enqueue(task, opts...); err != nil {
		r.t.Fatalf("enqueue %s: %v", id, err)
	}
}

// enqueue hands the lock on "key-"+id to a task the way handoff does: bound to
// the task, with a spare retry.
func (r *rig) enqueue(id string, retries int, opts ...asynq.Option) joblock.Token {
	r.t.Helper()
	token := r.park(id, "key-"+id)[0]
	r.submit(id, r.seal(retries, token), retries+1, opts...)
	return token
}

// task returns the state of a task, "gone" if there is none, and what asynq says
// about it.
func (r *rig) task(id string) (string, *asynq.TaskInfo) {
	r.t.Helper()
	info, err := r.inspector.GetTaskInfo(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		return "gone", &asynq.TaskInfo{}
	}
	if err != nil {
		r.t.Fatalf("inspect %s: %v", id, err)
	}
	return info.State.String(), info
}

// state is the first result of task, at the cost of a command: task costs a script. It is for those who wait.
func (r *rig) state(id string) string {
	r.t.Helper()
	state, err := r.rdb.HGet(context.Background(), "asynq:{"+queue+"}:t:"+id, "state").Result()
	if errors.Is(err, redis.Nil) {
		return "gone"
	}
	if err != nil {
		r.t.Fatalf("read the state of %s: %v", id, err)
	}
	return state
}

func (r *rig) status(key string) joblock.Status {
	r.t.Helper()
	st, err := testkit.One(r.locks.Status(context.Background(), key))
	if err != nil {
		r.t.Fatalf("status of %q: %v", key, err)
	}
	return st
}

// until waits for cond.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(r.patience); !cond(); time.Sleep(r.step) {
		if r.patience > 0 && time.Now().After(deadline) {
			r.t.Fatalf("never happened: %s\n%s", what, r.log)
		}
	}
	if r.mini != nil {
		synctest.Wait() // what else happens in this instant has happened
	}
}

// untilTask waits for a task to be in one of states.
func (r *rig) untilTask(id string, states ...string) {
	r.t.Helper()
	r.until(id+" "+strings.Join(states, " or "), func() bool { return slices.Contains(states, r.state(id)) })
}

// untilRetry waits for a task to be waiting for its next attempt, and checks the
// retries charged to it.
func (r *rig) untilRetry(id string, retried int) {
	r.t.Helper()
	r.untilCharged(id, "retry", retried)
}

// untilCharged waits for a task to be in a state, and checks the retries charged to it in that state. The state and the
// charge are of one answer: the task may be in another state in the next instant.
func (r *rig) untilCharged(id, state string, retried int) {
	r.t.Helper()
	got := -1
	r.until(id+" "+state, func() bool {
		if r.state(id) != state {
			return false
		}
		now, info := r.task(id)
		got = info.Retried
		return now == state
	})
	if got != retried {
		r.t.Errorf("task %s has %d retries charged and is %s, want %d", id, got, state, retried)
	}
}

// untilFree waits for a key to be free.
func (r *rig) untilFree(key string) {
	r.t.Helper()
	r.until(key+" free", func() bool { return !r.status(key).Locked() })
}

// wantTask checks the state of a task and the retries charged to it.
func (r *rig) wantTask(id, state string, retried int) {
	r.t.Helper()
	got, info := r.task(id)
	if got != state || info.Retried != retried {
		r.t.Errorf("task %s is %s with %d retries charged, want %s with %d", id, got, info.Retried, state, retried)
	}
}

// wantEnded checks that a key is free and why.
func (r *rig) wantEnded(key, reason string) {
	r.t.Helper()
	st := r.status(key)
	how := driver.EndedReleased
	if reason == "job done" || reason == "job revoked" {
		how = driver.EndedDone
	}
	if st.Locked() || st.Ended != how || st.Reason != reason {
		r.t.Errorf("lock %q is %s, ended %q because %q; want it %s because %q",
			key, st.State, st.Ended, st.Reason, how, reason)
	}
}

// wantState checks the state of a lock, and which job it is reserved for.
func (r *rig) wantState(key string, state joblock.State, id string) {
	r.t.Helper()
	st := r.status(key)
	if st.State != state || st.Job != envelope.Job(queue, id) {
		r.t.Errorf("lock %q is %s for job %q, want %s for %s", key, st.State, st.Job, state, id)
	}
}

// wantHeld checks that a stranger cannot have the key.
func (r *rig) wantHeld(key string) {
	r.t.Helper()
	lock, err := r.locks.TryAcquire(context.Background(), key)
	if !errors.Is(err, joblock.ErrHeld) {
		r.t.Errorf("a stranger's acquire of %q gave %v, %v; want ErrHeld", key, lock, err)
	}
}

// wantRuns checks how often the handler ran.
func (r *rig) wantRuns(p *probe, n int) {
	r.t.Helper()
	if got := p.count(); got != n {
		r.t.Errorf("the handler ran %d times, want %d", got, n)
	}
}
