package process_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/handoff/process"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// hang bounds what must happen but has no time of its own.
const hang = 30 * time.Second

// quick are settings of a server whose tests need not wait.
var quick = asynq.Config{
	Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 5 * time.Millisecond,
	DelayedTaskCheckInterval: 100 * time.Millisecond, ShutdownTimeout: 100 * time.Millisecond,
	RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
}

// open opens a Process on a miniredis. The end of the test closes it.
func open(t *testing.T, cfg *process.Config) *process.Process {
	t.Helper()
	p, err := process.Open(t.Context(), asynq.RedisClientOpt{Addr: redistest.MiniServer(t).Addr()}, cfg)
	testkit.WantNil(t, "Open", err)
	t.Cleanup(func() { testkit.WantNil(t, "Close", closeIt(p)) })
	return p
}

func closeIt(p *process.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	return p.Close(ctx)
}

func serve(t *testing.T, p *process.Process, handler asynq.Handler) *process.Server {
	t.Helper()
	s, err := p.NewServer(quick, nil)
	testkit.WantNil(t, "NewServer", err)
	testkit.WantNil(t, "Start", s.Start(handler))
	return s
}

// enqueue hands the lock on key over to a task.
func enqueue(t *testing.T, p *process.Process, key string, opts ...asynq.Option) {
	t.Helper()
	lock, err := p.Locks.TryAcquire(t.Context(), key)
	testkit.WantNil(t, "TryAcquire", err)
	_, err = p.Jobs.Enqueue(t.Context(), lock, asynq.NewTask("export", []byte(key)), opts...)
	testkit.WantNil(t, "Enqueue", err)
}

// free waits until nobody has key.
func free(t *testing.T, locks *joblock.Locker, key string) {
	t.Helper()
	for deadline := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
		st, err := testkit.One(locks.Status(context.Background(), key))
		testkit.WantNil(t, "Status", err)
		if !st.Locked() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still %s", key, st.State)
		}
	}
}

func TestAJobRunsUnderItsLock(t *testing.T) {
	got := make(chan *joblock.Lock, 1)
	handle := func(ctx context.Context, _ *asynq.Task) error {
		lock, _ := joblock.FromContext(ctx)
		got <- lock
		return nil
	}
	mux := func(f func(*worker.Worker, *asynq.ServeMux)) func(*process.Server) asynq.Handler {
		return func(s *process.Server) asynq.Handler {
			tasks := asynq.NewServeMux()
			f(s.Worker, tasks)
			tasks.HandleFunc("export", handle)
			return tasks
		}
	}
	for name, handler := range map[string]func(*process.Server) asynq.Handler{
		"a ServeMux":       mux(func(*worker.Worker, *asynq.ServeMux) {}),
		"another Handler":  func(*process.Server) asynq.Handler { return asynq.HandlerFunc(handle) },
		"Middleware twice": mux(func(w *worker.Worker, m *asynq.ServeMux) { m.Use(w.Middleware) }),
		"WithoutOverlapping first": mux(func(w *worker.Worker, m *asynq.ServeMux) {
			m.Use(w.WithoutOverlapping(func(task *asynq.Task) string { return "type:" + task.Type() }), w.Middleware)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, nil)
			s, err := p.NewServer(quick, nil)
			testkit.WantNil(t, "NewServer", err)
			testkit.WantNil(t, "Start", s.Start(handler(s)))
			enqueue(t, p, "k", asynq.MaxRetry(0))
			select {
			case lock := <-got:
				if lock == nil || lock.Key() == "" {
					t.Errorf("the lock is %v", lock)
				}
			case <-time.After(hang):
				t.Fatal("the job does not run")
			}
			free(t, p.Locks, "k")
		})
	}
}

// A lock that a task has until it starts is released at the right place, although the mux's middlewares are hidden: the
// task keeps its place while it waits for the key of WithoutOverlapping.
func TestUntilStartedWithWithoutOverlapping(t *testing.T) {
	p := open(t, nil)
	busy, err := p.Locks.TryAcquire(t.Context(), "type")
	testkit.WantNil(t, "TryAcquire", err)
	ran := make(chan joblock.State, 1)
	tasks := asynq.NewServeMux()
	s, err := p.NewServer(quick, nil)
	testkit.WantNil(t, "NewServer", err)
	waits := make(chan bool, 100)
	tasks.Use(s.Worker.WithoutOverlapping(func(*asynq.Task) string { waits <- true; return "type" }))
	tasks.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error {
		st, err := testkit.One(p.Locks.Status(ctx, "unique"))
		ran <- st.State
		return err
	})
	testkit.WantNil(t, "Start", s.Start(tasks))
	u := handoff.Unique{Key: "unique", Until: handoff.UntilStarted}
	_, err = p.Jobs.EnqueueUnique(t.Context(), u, asynq.NewTask("export", nil))
	testkit.WantNil(t, "EnqueueUnique", err)
	<-waits
	if _, err := p.Jobs.EnqueueUnique(t.Context(), u, asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("while the task waits, its key is given to another one: %v", err)
	}
	testkit.WantNil(t, "Release", busy.Release(t.Context()))
	if state := <-ran; state != joblock.StateFree {
		t.Errorf("while the task runs, its key is %s", state)
	}
}

// The parts are closed in the order of the package comment: a handler that Shutdown cuts short parks its lock.
func TestCloseSettlesAllLocks(t *testing.T) {
	mem := memstore.New(&memstore.Config{Notice: memstore.NoticeSilent})
	p := open(t, &process.Config{Store: mem})
	var mu sync.Mutex
	var ended []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		ended = append(ended, what)
	}
	started := make(chan bool)
	serve(t, p, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		started <- true
		<-ctx.Done() // Shutdown cancels the handler and does not wait for it
		note("handler")
		return ctx.Err()
	}))
	p.Go(func(ctx context.Context) error {
		<-ctx.Done()
		if _, err := p.Locks.Status(context.Background(), "k"); err != nil {
			t.Errorf("the Locker is closed before a function of Go has returned: %v", err)
		}
		note("function")
		return nil
	})
	enqueue(t, p, "k")
	<-started
	testkit.WantNil(t, "Close", closeIt(p))
	if want := []string{"function", "handler"}; !slices.Equal(ended, want) {
		t.Errorf("ended: %v, want %v", ended, want)
	}
	recs, err := mem.Inspect(t.Context(), driver.InspectRequest{Keys: []string{"k"}})
	if err != nil || recs[0].State != driver.StateParked {
		t.Errorf("after Close the lock is %v, %v", recs, err)
	}
	if _, err := p.Locks.TryAcquire(t.Context(), "k"); !errors.Is(err, joblock.ErrClosed) {
		t.Errorf("the Locker is not closed: %v", err)
	}
	if err := p.Redis.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the Redis client is not closed: %v", err)
	}
	if _, err := p.NewServer(quick, nil); !errors.Is(err, joblock.ErrClosed) {
		t.Errorf("NewServer after Close: %v", err)
	}
	p.Go(func(context.Context) error { t.Error("called after Close"); return nil })
}

// A process that stops right after its start has nothing to warn of.
func TestCloseRightAfterStart(t *testing.T) {
	for range 20 {
		var log testkit.Log
		p := open(t, &process.Config{Logger: log.Text()})
		serve(t, p, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
		testkit.WantNil(t, "Close", closeIt(p))
		if text := log.String(); strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
			t.Fatalf("the log has %s", text)
		}
	}
}

// The error of a function of Go is logged when it happens, and Close returns it.
func TestErrorsOfFunctionsAreTold(t *testing.T) {
	var log testkit.Log
	p := open(t, &process.Config{Logger: log.Text()})
	full := errors.New("the disk is full")
	failed := make(chan bool)
	p.Go(func(context.Context) error { defer close(failed); return full })
	<-failed
	for !strings.Contains(log.String(), "the disk is full") {
		time.Sleep(time.Millisecond)
	}
	hangs := make(chan bool)
	p.Go(func(context.Context) error { <-hangs; return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := p.Close(ctx)
	close(hangs)
	testkit.WantErr(t, err, full, context.DeadlineExceeded)
	if err := p.Redis.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("a step that fails keeps the Redis client open: %v", err)
	}
}

func TestTwoServers(t *testing.T) {
	p := open(t, nil)
	got := make(chan string, 2)
	for _, queue := range []string{"low", "high"} {
		cfg := quick
		cfg.Queues = map[string]int{queue: 1}
		s, err := p.NewServer(cfg, nil)
		testkit.WantNil(t, "NewServer", err)
		testkit.WantNil(t, "Start", s.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if _, ok := joblock.FromContext(ctx); ok {
				got <- queue
			}
			return nil
		})))
		enqueue(t, p, queue, asynq.Queue(queue))
	}
	if all := []string{<-got, <-got}; !slices.Contains(all, "low") || !slices.Contains(all, "high") {
		t.Errorf("ran %v", all)
	}
}

func TestTheConfigIsPassedOn(t *testing.T) {
	var log testkit.Log
	logger := log.Text()
	p := open(t, &process.Config{
		Locks: &joblock.Config{Holder: "me", TTL: time.Minute}, Redis: &redisstore.Config{Prefix: "shop:"}, Logger: logger,
	})
	lock, err := p.Locks.TryAcquire(t.Context(), "k")
	testkit.WantNil(t, "TryAcquire", err)
	if n, err := p.Redis.Exists(t.Context(), "shop:k").Result(); err != nil || n != 1 {
		t.Errorf("the lock is not under its prefix: %d, %v", n, err)
	}
	if st, err := testkit.One(p.Locks.Status(t.Context(), "k")); err != nil || st.Holder != "me" || st.Remaining < 50*time.Second {
		t.Errorf("%+v, %v", st, err)
	}
	testkit.WantNil(t, "Release", lock.Release(t.Context()))
}

// What is wrong is told by Open, with names and values, and nothing is left open.
func TestOpenRefuses(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.WantNil(t, "Listen", err)
	addr := nobody.Addr().String()
	testkit.WantNil(t, "Close", nobody.Close())
	locked := redistest.MiniServer(t)
	locked.RequireAuth("secret")
	mini := redistest.MiniServer(t)
	good := asynq.RedisClientOpt{Addr: mini.Addr()}
	over, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the process stops")
	cancel(stopped)
	for name, tt := range map[string]struct {
		ctx  context.Context
		opt  asynq.RedisConnOpt
		cfg  process.Config
		want error
		says string
	}{
		"nil options":      {t.Context(), nil, process.Config{}, joblock.ErrInvalid, "nil"},
		"no go-redis":      {t.Context(), oddOpt{}, process.Config{}, joblock.ErrInvalid, "string"},
		"nobody there":     {t.Context(), asynq.RedisClientOpt{Addr: addr, DialTimeout: time.Second}, process.Config{}, joblock.ErrUnavailable, addr},
		"a wrong password": {t.Context(), asynq.RedisClientOpt{Addr: locked.Addr(), Password: "wrong"}, process.Config{}, joblock.ErrUnavailable, locked.Addr()},
		"ctx has ended":    {over, good, process.Config{}, stopped, ""},
		"a bad TTL":        {t.Context(), good, process.Config{Locks: &joblock.Config{TTL: -1}}, joblock.ErrInvalid, "Config.TTL"},
		"a bad prefix":     {t.Context(), good, process.Config{Redis: &redisstore.Config{Prefix: "a\n"}}, joblock.ErrInvalid, "Prefix"},
		"a bad Reserve":    {t.Context(), good, process.Config{Jobs: &handoff.Config{Reserve: 1}}, joblock.ErrInvalid, "Config.Reserve"},
		"two stores": {t.Context(), good, process.Config{
			Store: memstore.New(&memstore.Config{Notice: memstore.NoticeSilent}), Redis: &redisstore.Config{},
		}, joblock.ErrInvalid, "Config.Store and Config.Redis"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.Logger = slog.New(slog.DiscardHandler)
			p, err := process.Open(tt.ctx, tt.opt, &tt.cfg)
			if p != nil {
				t.Error("a Process, too")
			}
			testkit.WantErr(t, err, tt.want)
			if !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "wrong") {
				t.Errorf("the error is %q, want %q in it", err, tt.says)
			}
			testkit.WantNil(t, "Close of a nil Process", p.Close(t.Context()))
		})
	}
	p := open(t, nil)
	_, err = p.NewServer(quick, &worker.Config{Share: 2})
	testkit.WantErr(t, err, joblock.ErrInvalid)
	s, err := p.NewServer(quick, nil)
	testkit.WantNil(t, "NewServer", err)
	if err := s.Start(nil); err == nil {
		t.Error("Start(nil) has no error")
	}
	var none *process.Process
	_, err = none.NewServer(quick, nil)
	testkit.WantErr(t, err, joblock.ErrInvalid)
	none.Go(func(context.Context) error { t.Error("called"); return nil })
}

type oddOpt struct{}

func (oddOpt) MakeRedisClient() any { return "a string" }

func TestStartAfterClose(t *testing.T) {
	p := open(t, nil)
	s, err := p.NewServer(quick, nil)
	testkit.WantNil(t, "NewServer", err)
	testkit.WantNil(t, "Close", closeIt(p))
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	if err := s.Start(handler); !errors.Is(err, joblock.ErrClosed) {
		t.Errorf("Start after Close: %v, want ErrClosed", err)
		s.Shutdown()
	}
	if err := s.Run(handler); !errors.Is(err, joblock.ErrClosed) {
		t.Errorf("Run after Close: %v, want ErrClosed", err)
	}
}
