package toolkit_test

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

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
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

// open makes a Process on a miniredis. The end of the test closes it.
func open(t *testing.T, cfg *toolkit.Config) *toolkit.Process {
	t.Helper()
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: redistest.MiniServer(t).Addr()}, cfg)
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() { testkit.WantNil(t, "Close", closeIt(p)) })
	return p
}

func closeIt(p *toolkit.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	return p.Close(ctx)
}

// newServer returns a Server, which p must make.
func newServer(t *testing.T, p *toolkit.Process, cfg asynq.Config) *toolkit.Server {
	t.Helper()
	s, err := p.NewServer(cfg)
	testkit.WantNil(t, "NewServer", err)
	return s
}

func serve(t *testing.T, p *toolkit.Process, handler asynq.Handler) *toolkit.Server {
	t.Helper()
	s := newServer(t, p, quick)
	testkit.WantNil(t, "Start", s.Start(handler))
	return s
}

// enqueue hands the lock on key over to a task.
func enqueue(t *testing.T, p *toolkit.Process, key string, opts ...asynq.Option) {
	t.Helper()
	lock, err := p.Locks.TryAcquire(t.Context(), key)
	testkit.WantNil(t, "TryAcquire", err)
	_, err = p.Jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", []byte(key)), opts...)
	testkit.WantNil(t, "Enqueue", err)
}

// free waits until key is free.
func free(t *testing.T, locks *joblock.Locker, key string) {
	t.Helper()
	for ; ; time.Sleep(time.Millisecond) {
		st, err := testkit.One(locks.Status(context.Background(), key))
		testkit.WantNil(t, "Status", err)
		if !st.Locked() {
			return
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
	mux := func(f func(*worker.Worker, *asynq.ServeMux)) func(*toolkit.Server) asynq.Handler {
		return func(s *toolkit.Server) asynq.Handler {
			tasks := asynq.NewServeMux()
			f(s.Worker, tasks)
			tasks.HandleFunc("export", handle)
			return tasks
		}
	}
	for name, handler := range map[string]func(*toolkit.Server) asynq.Handler{
		"a ServeMux":       mux(func(*worker.Worker, *asynq.ServeMux) {}),
		"another Handler":  func(*toolkit.Server) asynq.Handler { return asynq.HandlerFunc(handle) },
		"Middleware twice": mux(func(w *worker.Worker, m *asynq.ServeMux) { m.Use(w.Middleware) }),
		"WithoutOverlapping first": mux(func(w *worker.Worker, m *asynq.ServeMux) {
			m.Use(w.WithoutOverlapping(func(task *asynq.Task) string { return "type:" + task.Type() }, nil), w.Middleware)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, nil)
			s := newServer(t, p, quick)
			testkit.WantNil(t, "Start", s.Start(handler(s)))
			enqueue(t, p, "k", asynq.MaxRetry(0))
			if lock := <-got; lock == nil || lock.Key() == "" {
				t.Errorf("the lock is %v", lock)
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
	s := newServer(t, p, quick)
	waits := make(chan bool, 100)
	tasks.Use(s.Worker.WithoutOverlapping(func(*asynq.Task) string { waits <- true; return "type" }, nil))
	tasks.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error {
		st, err := testkit.One(p.Locks.Status(ctx, "unique"))
		ran <- st.State
		return err
	})
	testkit.WantNil(t, "Start", s.Start(tasks))
	u := handoff.Unique{Key: "unique", UntilStarted: true}
	_, err = p.Jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil))
	testkit.WantNil(t, "Enqueue", err)
	<-waits
	if _, err := p.Jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("while the task waits, its key is given to another one: %v", err)
	}
	testkit.WantNil(t, "Release", busy.Release(t.Context()))
	if state := <-ran; state != joblock.StateFree {
		t.Errorf("while the task runs, its key is %s", state)
	}
}

// The parts are closed in the order of the package comment: a handler that Shutdown cuts short parks its lock.
func TestCloseSettlesAllLocks(t *testing.T) {
	mem := memstore.New(&memstore.Config{Silent: true})
	p := open(t, &toolkit.Config{Store: mem})
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
			t.Errorf("the Locker is closed before a function started with Go has returned: %v", err)
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
	_, err = p.NewServer(quick)
	testkit.WantErr(t, err, joblock.ErrClosed)
	testkit.WantErr(t, p.Ping(t.Context()), joblock.ErrClosed)
	done := handoff.Result{Task: &asynq.TaskInfo{Queue: "default", ID: "1"}}
	testkit.WantErr(t, p.Jobs.Withdraw(t.Context(), done), joblock.ErrClosed)
	testkit.WantErr(t, p.Jobs.Reschedule(t.Context(), done, time.Now()), joblock.ErrClosed)
	p.Go(func(context.Context) error { t.Error("called after Close"); return nil })
}

// A process that stops right after its start has nothing to warn of.
func TestCloseRightAfterStart(t *testing.T) {
	for range 20 {
		var log testkit.Log
		p := open(t, &toolkit.Config{Logger: log.Text()})
		serve(t, p, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
		testkit.WantNil(t, "Close", closeIt(p))
		if text := log.String(); strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
			t.Fatalf("the log has %s", text)
		}
	}
}

// The error of a function started with Go is logged when it happens, and Close returns it.
func TestErrorsOfFunctionsAreReported(t *testing.T) {
	var log testkit.Log
	p := open(t, &toolkit.Config{Logger: log.Text()})
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
		s := newServer(t, p, cfg)
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
	p := open(t, &toolkit.Config{
		Locks: &joblock.Config{Holder: "me", TTL: time.Minute}, Redis: &redisstore.Config{Prefix: "shop:"}, Logger: logger,
	})
	lock, err := p.Locks.TryAcquire(t.Context(), "k")
	testkit.WantNil(t, "TryAcquire", err)
	if n, err := p.Redis.Exists(t.Context(), "shop:k").Result(); err != nil || n != 1 {
		t.Errorf("the lock is not under its prefix: %d, %v", n, err)
	}
	if st, err := testkit.One(p.Locks.Status(t.Context(), "k")); err != nil || st.Holder != "me" || st.Lease < 50*time.Second {
		t.Errorf("%+v, %v", st, err)
	}
	testkit.WantNil(t, "Release", lock.Release(t.Context()))
}

// The error of New names what is wrong with the settings, with its value.
func TestWrongSettings(t *testing.T) {
	good := asynq.RedisClientOpt{Addr: redistest.MiniServer(t).Addr()}
	for name, tt := range map[string]struct {
		opt  asynq.RedisConnOpt
		cfg  toolkit.Config
		says string
	}{
		"nil options":   {nil, toolkit.Config{}, "the options of asynq are nil"},
		"no go-redis":   {oddOpt{}, toolkit.Config{}, "made a string"},
		"a bad TTL":     {good, toolkit.Config{Locks: &joblock.Config{TTL: -1}}, "Config.TTL is -1ns"},
		"a bad prefix":  {good, toolkit.Config{Redis: &redisstore.Config{Prefix: "a\n"}}, "Prefix"},
		"a bad Reserve": {good, toolkit.Config{Jobs: &handoff.Config{Reserve: 1}}, "Config.Reserve is 1ns"},
		"two stores": {good, toolkit.Config{
			Store: memstore.New(&memstore.Config{Silent: true}), Redis: &redisstore.Config{},
		}, "Config.Store and Config.Redis"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := toolkit.New(tt.opt, &tt.cfg)
			if p != nil || !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, %v, want ErrInvalid with %q", p, err, tt.says)
			}
		})
	}
}

// A Process on the application's own client leaves that client open.
func TestNewFromRedisClient(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
	defer rdb.Close()
	p, err := toolkit.NewFromRedisClient(rdb, nil)
	testkit.WantNil(t, "NewFromRedisClient", err)
	got := make(chan bool, 1)
	serve(t, p, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		_, ok := joblock.FromContext(ctx)
		got <- ok
		return nil
	}))
	enqueue(t, p, "k")
	if !<-got {
		t.Error("the job has no lock")
	}
	testkit.WantNil(t, "Close", closeIt(p))
	testkit.WantNil(t, "Ping of the application's client after Close", rdb.Ping(t.Context()).Err())

	for what, args := range map[string]struct {
		rdb redis.UniversalClient
		cfg *toolkit.Config
	}{"nil": {}, "nil *Client": {(*redis.Client)(nil), nil}, "a bad TTL": {rdb, &toolkit.Config{Locks: &joblock.Config{TTL: -1}}}} {
		if p, err := toolkit.NewFromRedisClient(args.rdb, args.cfg); p != nil || !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, p, err)
		}
	}
	testkit.WantNil(t, "Ping of the application's client at last", rdb.Ping(t.Context()).Err())
}

// NewServer refuses wrong settings, and the rest of the process works.
func TestWrongSettingsOfAServer(t *testing.T) {
	p := open(t, &toolkit.Config{Worker: &worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 2}}})
	brief := quick
	brief.GroupGracePeriod = time.Millisecond
	for says, cfg := range map[string]asynq.Config{"Config.Keeper.MaxLoad is 2": quick, "GroupGracePeriod is 1ms": brief} {
		if s, err := p.NewServer(cfg); s != nil || !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, %v, want %q", s, err, says)
		}
	}
	testkit.WantNil(t, "Ping", p.Ping(t.Context()))
	s := newServer(t, open(t, nil), quick)
	for what, err := range map[string]error{"Start": s.Start(nil), "Run": s.Run(nil)} {
		if err == nil {
			t.Errorf("%s of a nil handler has no error", what)
		}
	}
	for _, none := range []*toolkit.Process{nil, {}} {
		_, err := none.NewServer(quick)
		testkit.WantErr(t, err, joblock.ErrInvalid)
		testkit.WantErr(t, none.Ping(t.Context()), joblock.ErrInvalid)
		none.Go(func(context.Context) error { t.Error("called"); return nil })
		testkit.WantNil(t, "Close", none.Close(t.Context()))
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.WantNil(t, "Listen", err)
	addr := nobody.Addr().String()
	testkit.WantNil(t, "Close", nobody.Close())
	locked := redistest.MiniServer(t)
	locked.RequireAuth("secret")
	mini := redistest.MiniServer(t)
	good := asynq.RedisClientOpt{Addr: mini.Addr()}
	away := faultstore.New(memstore.New(&memstore.Config{Silent: true}))
	away.SetAll(faultstore.Fault{Mode: faultstore.Refuse})
	over, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the process stops")
	cancel(stopped)
	for name, tt := range map[string]struct {
		ctx  context.Context
		opt  asynq.RedisConnOpt
		cfg  toolkit.Config
		want error
		says string
	}{
		"all is well":       {t.Context(), good, toolkit.Config{}, nil, ""},
		"no server there":   {t.Context(), asynq.RedisClientOpt{Addr: addr, DialTimeout: time.Second}, toolkit.Config{}, joblock.ErrUnavailable, addr},
		"a wrong password":  {t.Context(), asynq.RedisClientOpt{Addr: locked.Addr(), Password: "wrong"}, toolkit.Config{}, joblock.ErrUnavailable, locked.Addr()},
		"the store is away": {t.Context(), good, toolkit.Config{Store: away}, joblock.ErrUnavailable, "status"},
		"ctx has ended":     {over, good, toolkit.Config{}, stopped, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.Logger = slog.New(slog.DiscardHandler)
			p, err := toolkit.New(tt.opt, &tt.cfg)
			testkit.WantNil(t, "New", err)
			err = p.Ping(tt.ctx)
			testkit.WantNil(t, "Close", closeIt(p))
			if tt.want == nil {
				testkit.WantNil(t, "Ping", err)
				return
			}
			testkit.WantErr(t, err, tt.want)
			if !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "wrong") {
				t.Errorf("the error is %q, want %q in it", err, tt.says)
			}
		})
	}
}

// A server that is started before its Redis works when Redis is there.
func TestStartBeforeRedis(t *testing.T) {
	t.Parallel()
	mini := redistest.MiniServer(t)
	addr := mini.Addr()
	mini.Close()
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: addr}, &toolkit.Config{Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(t, "New", err)
	defer func() { testkit.WantNil(t, "Close", closeIt(p)) }()
	got := make(chan bool, 1)
	serve(t, p, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		_, ok := joblock.FromContext(ctx)
		got <- ok
		return nil
	}))
	testkit.WantErr(t, p.Ping(t.Context()), joblock.ErrUnavailable)
	testkit.WantNil(t, "Restart", mini.Restart())
	// After many failures go-redis answers with the last one until it has tried again by itself, once a second.
	for p.Ping(t.Context()) != nil {
		time.Sleep(time.Millisecond)
	}
	enqueue(t, p, "k")
	if !<-got {
		t.Error("the job has no lock")
	}
}

// asynq does not wait for handlers that it cuts short. Shutdown waits until they have parked their locks, and ends the keeper.
func TestShutdownSettlesLocks(t *testing.T) {
	mem := memstore.New(&memstore.Config{Silent: true})
	p := open(t, &toolkit.Config{Store: mem})
	started := make(chan bool)
	s := newServer(t, p, quick)
	s.Shutdown() // before Start: nothing
	testkit.WantNil(t, "Start", s.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	})))
	enqueue(t, p, "k")
	<-started
	s.Shutdown()
	recs, err := mem.Inspect(t.Context(), driver.InspectRequest{Keys: []string{"k"}})
	if err != nil || recs[0].State != driver.StateParked {
		t.Errorf("after Shutdown the lock is %v, %v", recs, err)
	}
	testkit.WantErr(t, s.Worker.RunKeeper(t.Context()), joblock.ErrClosed)
	if err := p.Locks.Do(t.Context(), "other", func(context.Context) error { return nil }); err != nil {
		t.Errorf("the process has ended with its server: %v", err)
	}
}

// A handler that ignores its context is reported in the log and by Close.
func TestShutdownWithAStubbornHandler(t *testing.T) {
	var log testkit.Log
	p := open(t, &toolkit.Config{Logger: log.Text()})
	s := newServer(t, p, quick)
	toolkit.Settle(s, time.Millisecond)
	started, end := make(chan bool), make(chan bool)
	testkit.WantNil(t, "Start", s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(started)
		<-end
		return nil
	})))
	enqueue(t, p, "k")
	<-started
	s.Shutdown()
	if text := log.String(); !strings.Contains(text, "a handler still runs 1ms after the end of its context") {
		t.Errorf("the log has %s", text)
	}
	close(end)
	if err := closeIt(p); err == nil || !strings.Contains(err.Error(), "a handler still runs") {
		t.Errorf("Close: %v", err)
	}
}

type oddOpt struct{}

func (oddOpt) MakeRedisClient() any { return "a string" }

func TestStartAfterClose(t *testing.T) {
	p := open(t, nil)
	s := newServer(t, p, quick)
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
