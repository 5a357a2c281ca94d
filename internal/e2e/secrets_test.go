//go:build servers

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/joblock/singleflight"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/worker"
)

// stage is where everything happens whose output must show no owner.
type stage struct {
	*testing.T
	*output
	addr      string
	cfg       joblock.Config
	locks     *joblock.Locker
	inspector *asynq.Inspector
	client    *asynq.Client
	jobs      *handoff.Client
	stolen    atomic.Int32 // runs of a task with the headers of another
}

// An owner token is all that it takes to release another caller's lock. Whatever befalls
// locks, jobs and ticks, none is in anything that a program logs, reports, prints or
// answers, nor in what asynq keeps of errors.
func TestNoOwnerIsShown(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	o := newOutput(t)
	s := &stage{T: t, output: o, addr: server.Addr(), cfg: joblock.Config{
		TTL: 5 * time.Second, Poll: 500 * time.Millisecond,
		JobGrace: 500 * time.Millisecond, WatchForced: true, Logger: o.logger, Observer: o.observer(),
	}}
	s.locks = newLocks(t, s.addr, &s.cfg)
	opt := asynq.RedisClientOpt{Addr: s.addr}
	s.client, s.inspector = asynq.NewClient(opt), asynq.NewInspector(opt)
	defer s.client.Close()
	defer s.inspector.Close()
	var err error
	if s.jobs, err = handoff.NewClient(s.locks, s.client, s.inspector, &handoff.Config{Logger: o.logger}); err != nil {
		t.Fatal(err)
	}
	defer s.jobs.Close(context.Background())

	s.playLocks()
	s.playTokens()
	s.playOutage(redistest.NewProxy(t, s.addr))
	s.playTicks()
	s.playJobs(opt) // last: its locks are to be seen in the records
	for st, err := range s.locks.List(t.Context(), joblock.ListOptions{Ended: true}) {
		s.note(st, err)
	}
	s.hideRecords(rdb)
	s.check(t)
}

// hideRecords looks for the owners of all records, which remember those that have ended.
func (s *stage) hideRecords(rdb *redis.Client) {
	names, err := rdb.Keys(s.Context(), keyspace.DefaultPrefix+"?*").Result()
	if err != nil || len(names) < 10 {
		s.Fatalf("%d records, %v", len(names), err)
	}
	for st, err := range s.locks.List(s.Context(), joblock.ListOptions{Ended: true}) {
		if err != nil {
			s.Fatal(err)
		}
		recs, err := testkit.Must(redisstore.New(rdb, nil)).Inspect(s.Context(), driver.InspectRequest{Keys: []string{st.Key}})
		if err != nil {
			s.Fatal(err)
		}
		s.hide(recs[0].Owner)
	}
}

// take acquires a lock, which is then looked for.
func (s *stage) take(locks *joblock.Locker, key string, opts ...joblock.AcquireOption) *joblock.Lock {
	s.Helper()
	lock, err := locks.TryAcquire(s.Context(), key, opts...)
	if err != nil {
		s.Fatal(err)
	}
	s.hide((*core.Lock)(lock).Owner())
	s.note(lock, lock.Token(), (*core.Lock)(lock).Digest())
	return lock
}

// refused notes an error that there must be.
func (s *stage) refused(what string, err error) {
	s.Helper()
	if err == nil {
		s.Errorf("%s went well", what)
		return
	}
	s.note(err)
}

func (s *stage) playLocks() {
	ctx := s.Context()
	lock := s.take(s.locks, "core:a")
	_, err := s.locks.TryAcquire(ctx, "core:a", joblock.Owner((*core.Lock)(lock).Owner()))
	s.refused("to acquire what one holds", err)
	_, err = s.locks.Acquire(ctx, "core:a", joblock.MaxWait(50*time.Millisecond))
	s.refused("to wait", err)
	_, err = s.locks.AcquireAll(ctx, []string{"core:a", "core:b"}, joblock.MaxWait(10*time.Millisecond))
	s.refused("to acquire all", err)
	another, err := joblock.NewToken("core:a", (*core.Lock)(lock).Owner()+"x", time.Second)
	s.note(another, err)
	s.refused("to release another's", s.locks.Release(ctx, another))
	st, err := testkit.One(s.locks.Status(ctx, "core:a"))
	s.note(st, err)
	token, err := lock.Park(ctx, joblock.ForJob("default/unknown"))
	if err != nil {
		s.Fatal(err)
	}
	s.note(token, lock.Err(), lock.Release(ctx), lock.Reclaim(ctx), lock.Renew(ctx), lock.Release(ctx), lock.Release(ctx))

	s.note(s.locks.Release(ctx, s.take(s.locks, "core:c").Token()))
	forced := s.take(s.locks, "core:d")
	s.note(s.locks.ForceRelease(ctx, "core:d", joblock.Reason("stuck")))
	<-forced.Done()
	s.note(forced.Err(), forced.Renew(ctx), forced.Release(ctx))
	one := limit.New(s.locks, 1)
	permit, err := one.TryAcquire(ctx, "core:limit")
	if err != nil {
		s.Fatal(err)
	}
	s.note(permit)
	_, err = one.Acquire(ctx, "core:limit", joblock.MaxWait(50*time.Millisecond))
	s.refused("to get a permit", err)
	s.note(permit.Release(ctx))
	_, err = singleflight.Do(ctx, s.locks, "core:flight", time.Second, func(context.Context) (int, error) {
		return 0, errors.New("no result")
	})
	s.refused("a flight", err)
	func() {
		defer func() { s.note(recover()) }()
		_ = s.locks.Do(ctx, "core:panic", func(context.Context) error { panic("of the work") })
	}()
}

func (s *stage) playTokens() {
	ctx := s.Context()
	lock := s.take(s.locks, "token:a")
	token, err := lock.Park(ctx, joblock.ForJob("default/1"))
	if err != nil {
		s.Fatal(err)
	}
	_, err = s.locks.Resume(ctx, token, joblock.ForJob("default/2"))
	s.refused("to resume another's", err)
	s.refused("to free another's", (*core.Locker)(s.locks).Release(ctx, []core.Token{core.Token(token)}, core.Release{IfIdle: true, Job: "default/2"})[0])
	again, err := s.locks.Resume(ctx, token, joblock.ForJob("default/1"))
	if err != nil {
		s.Fatal(err)
	}
	_, err = s.locks.Resume(ctx, token, joblock.ForJob("default/1"))
	s.refused("to resume what runs", err)
	token, err = again.Park(ctx)
	s.note(token, err, s.locks.Release(ctx, token, joblock.IfIdle(), joblock.Reason("no longer wanted")))
	_, err = s.locks.Resume(ctx, token)
	s.refused("to resume what is over", err)
	// Such as come from a queue that other programs can write to.
	text, err := token.MarshalText()
	if err != nil {
		s.Fatal(err)
	}
	for _, bad := range []string{string(text[:len(text)-3]), string(text) + "AAAA", "A" + string(text), string(text) + "\n", string(text) + string(text)} {
		_, err := joblock.ParseToken(bad)
		s.refused("to read a bad token", err)
		s.refused("to read a bad token as JSON", json.Unmarshal([]byte(`"`+bad+`"`), new(joblock.Token)))
		s.refused("to read a bad token as bytes", new(joblock.Token).UnmarshalBinary([]byte(bad)))
	}
	id := (*core.Lock)(lock).Owner()
	for _, owner := range []string{id + "\x00", strings.Repeat(id, 4)} {
		_, err = s.locks.TryAcquire(ctx, "token:b", joblock.Owner(owner))
		s.refused("a bad owner", err)
		_, err = joblock.NewToken("token:b", owner, time.Second)
		s.refused("a token with a bad owner", err)
	}
}

// playOutage loses a lock to a network that loses everything, while calls are under way.
func (s *stage) playOutage(proxy *redistest.Proxy) {
	ctx := s.Context()
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer rdb.Close()
	far, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &s.cfg)
	if err != nil {
		s.Fatal(err)
	}
	lost, parked, kept := s.take(far, "far:lost"), s.take(far, "far:parked"), s.take(far, "far:kept")
	proxy.BlackHole()
	var calls sync.WaitGroup
	for what, call := range map[string]func() error{
		"acquire": func() error { _, err := far.TryAcquire(ctx, "far:new"); return err },
		"park":    func() error { _, err := parked.Park(ctx, joblock.ForJob("default/3")); return err },
		"release": func() error { return kept.Release(ctx) },
		"resume":  func() error { _, err := far.Resume(ctx, parked.Token()); return err },
		"renew":   func() error { return lost.Renew(ctx) },
	} {
		calls.Go(func() { s.refused("to "+what+" without Redis", call()) })
	}
	calls.Wait()
	<-lost.Done()
	s.note(lost.Err(), lost.Release(ctx), parked.Err(), kept.Err())
	again, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	s.note(far.Close(again))
	proxy.Heal()
	s.note(far.Close(ctx))
}

func (s *stage) playTicks() {
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	ticks, err := scheduler.New(s.locks, &scheduler.Config{
		Scope:  "e2e",
		Logger: s.logger, Observe: func(e scheduler.Event) { s.note(e) },
	})
	if err != nil {
		s.Fatal(err)
	}
	var ran atomic.Int32
	err = errors.Join(
		ticks.Func("fails", "@every 1s", func(context.Context) error { ran.Add(1); return errors.New("no luck") }),
		ticks.Func("panics", "@every 1s", func(context.Context) error { ran.Add(1); panic("of a tick") }),
		ticks.Task("enqueues", "@every 1s", func(ctx context.Context, tick scheduler.Tick) error {
			ran.Add(1)
			_, err := s.jobs.Enqueue(ctx, handoff.Unique{Key: "tick:job"}, asynq.NewTask("good", nil))
			return err
		}),
	)
	if err != nil {
		s.Fatal(err)
	}
	s.refused("a bad spec", ticks.Func("bad", "@every never", func(context.Context) error { return nil }))
	done := make(chan error, 1)
	go func() { done <- ticks.Run(ctx) }()
	await(s.T, "six ticks", func() bool { return ran.Load() >= 6 })
	entries, err := admin.Of(ticks).Entries(ctx)
	s.note(entries, err)
	stop()
	s.note(<-done)
}

// playJobs has tasks come to every kind of end.
func (s *stage) playJobs(opt asynq.RedisClientOpt) {
	ctx := s.Context()
	claim := func(r *http.Request) (handoff.Claim, error) { return handoff.Claim{Key: "web:" + r.URL.Path[1:]}, nil }
	web := (&handoff.Guard{Locks: s.locks, Logger: s.logger}).Middleware(claim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		s.hide((*core.Lock)(lock).Owner())
		timeout := time.Hour
		if r.URL.Path == "/slow" {
			timeout = time.Second
		}
		done, err := s.jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask(r.URL.Path[1:], nil), asynq.MaxRetry(0), asynq.Timeout(timeout))
		if err != nil {
			s.Error(err)
			return
		}
		s.note(lock, lock.Err())
		if r.URL.Path == "/late" { // whose headers another program copies into its own task
			stored, err := s.inspector.GetTaskInfo(done.Task.Queue, done.Task.ID)
			if err != nil {
				s.Error(err)
				return
			}
			theft := asynq.NewTaskWithHeaders("stolen", nil, stored.Headers)
			if _, err := s.client.Enqueue(theft, asynq.MaxRetry(0)); err != nil {
				s.Error(err)
			}
		}
	}))
	for _, path := range []string{"/good", "/late", "/late", "/bad", "/panics", "/slow", "/a\x00b"} {
		request := httptest.NewRequest("POST", "/", nil)
		request.URL.Path = path
		answer := httptest.NewRecorder()
		web.ServeHTTP(answer, request)
		s.note(answer.Code, answer.Header(), answer.Body.String())
	}

	w, err := worker.New(s.locks, s.inspector, &worker.Config{Snooze: time.Second, Overrun: time.Second, OnLockLost: func(_ context.Context, _ *asynq.Task, err error) error { return err }, Logger: s.logger, Keeper: worker.KeeperConfig{Interval: 500 * time.Millisecond}})
	if err != nil {
		s.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	handle := func(name string, f func(context.Context) error) {
		mux.HandleFunc(name, func(ctx context.Context, _ *asynq.Task) error {
			lock, _ := joblock.FromContext(ctx)
			s.hide((*core.Lock)(lock).Owner())
			s.note(lock, lock.Token())
			return f(ctx)
		})
	}
	handle("good", func(context.Context) error { return nil })
	handle("late", func(context.Context) error { return nil })
	handle("bad", func(ctx context.Context) error { return errors.New("no luck") })
	handle("panics", func(context.Context) error { panic("of a job") })
	handle("slow", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
	mux.HandleFunc("stolen", func(ctx context.Context, _ *asynq.Task) error {
		s.stolen.Add(1)
		if lock, ok := joblock.FromContext(ctx); ok {
			s.Errorf("a task with the headers of another runs under %v", lock)
		}
		return nil
	})
	server := asynq.NewServer(opt, w.Configure(asynq.Config{
		Concurrency: 4, Logger: s.output, LogLevel: asynq.DebugLevel, TaskCheckInterval: 100 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond, ShutdownTimeout: 5 * time.Second,
	}))
	keeping, stop := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- w.RunKeeper(keeping) }()
	if err := server.Start(mux); err != nil {
		s.Fatal(err)
	}
	defer func() {
		server.Shutdown()
		stop()
		s.note(<-kept, w.Close(ctx))
	}()
	await(s.T, "all jobs to end", func() bool {
		info, err := s.inspector.GetQueueInfo("default")
		return err == nil && info.Size == info.Archived
	})
	archived, err := s.inspector.ListArchivedTasks("default")
	if err != nil || len(archived) != 3 {
		s.Errorf("%d tasks archived, %v; want the three that failed", len(archived), err)
	}
	for _, task := range archived {
		s.note(task.Type, task.LastErr)
	}
	if n := s.stolen.Load(); n == 0 {
		s.Error("a task with the headers of another, which are no reason not to run, has not run")
	}
}
