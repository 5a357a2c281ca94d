//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// The resource that the jobs' locks protect, and its books, all in Redis:
//
//	res:<key>   the largest fence that has written to the resource of that name
//	twice       writes that were refused although the writer held the lock
//	done        how often each job has come to its end
//	work:<pid>  the tasks that a process is at work on
var touch = redis.NewScript(`
	local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
	if tonumber(ARGV[1]) < seen then return 0 end
	redis.call('SET', KEYS[1], ARGV[1])
	return 1
`)

// playWorker is a process with an asynq server and a keeper. It says "ready" when
// it works, ends properly with SIGTERM, and at once when its standard input ends,
// with the tests.
func playWorker(run func() error) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	if err := run(); err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

// serving is what a worker process does.
type serving struct {
	locks   joblock.Config
	worker  worker.Config
	asynq   asynq.Config
	handler func(ctx context.Context, task *asynq.Task, rdb *redis.Client) error
	hook    redis.Hook    // of the Worker's Inspector; may be nil
	retry   time.Duration // the delay of a retry

	// use returns a middleware inside that of the Worker, and store wraps the store; both may be nil.
	use   func(w *worker.Worker, rdb *redis.Client) asynq.MiddlewareFunc
	store func(store driver.Store, rdb *redis.Client) driver.Store

	// watch runs next to the server until ctx ends; it may be nil.
	watch func(ctx context.Context, locks *joblock.Locker)
}

func runWorker() error {
	return serving{
		locks:  joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace},
		worker: worker.Config{Reserve: time.Minute, Snooze: time.Second, Keeper: worker.KeeperConfig{Interval: tortureEvery}},
		asynq:  asynq.Config{Concurrency: 8, TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond},
		handler: func(ctx context.Context, _ *asynq.Task, rdb *redis.Client) error {
			return useResource(ctx, rdb)
		},
	}.run()
}

func (s serving) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	addr := os.Getenv("JOBLOCK_E2E_REDIS")
	opt := asynq.RedisClientOpt{Addr: addr}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	quiet := slog.New(slog.DiscardHandler)
	s.locks.Logger, s.worker.Logger, s.asynq.LogLevel = quiet, quiet, asynq.FatalLevel
	if s.asynq.RetryDelayFunc == nil {
		s.asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return s.retry }
	}
	store := testkit.Must(redisstore.New(rdb, nil))
	if s.store != nil {
		store = s.store(store, rdb)
	}
	locks, err := joblock.New(store, &s.locks)
	if err != nil {
		return err
	}
	tasks := redis.NewClient(&redis.Options{Addr: addr})
	defer tasks.Close()
	if s.hook != nil {
		tasks.AddHook(s.hook)
	}
	w, err := worker.New(locks, asynq.NewInspectorFromRedisClient(tasks), &s.worker)
	if err != nil {
		return err
	}
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	if s.use != nil {
		mux.Use(s.use(w, rdb))
	}
	mux.HandleFunc("job", func(ctx context.Context, task *asynq.Task) error { return s.handler(ctx, task, rdb) })
	server := asynq.NewServer(opt, w.Configure(s.asynq))
	if err := server.Start(mux); err != nil {
		return err
	}
	kept := make(chan error, 1)
	go func() { kept <- w.RunKeeper(ctx) }()
	if s.watch != nil {
		go s.watch(ctx, locks)
	}
	fmt.Println("ready")
	<-ctx.Done()
	server.Shutdown()
	bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(<-kept, w.Close(bounded), locks.Close(bounded))
}

// useResource is a job: a few writes under its lock, with pauses in which another
// holder would show.
func useResource(ctx context.Context, rdb *redis.Client) error {
	bg := context.WithoutCancel(ctx)
	id, _ := asynq.GetTaskID(ctx)
	lock, ok := joblock.FromContext(ctx)
	if !ok {
		return errors.New("the task came without its lock")
	}
	leave, err := atWork(bg, rdb, id)
	if err != nil {
		return err
	}
	defer leave()
	for range 5 {
		allowed, err := touch.Run(bg, rdb, []string{"res:" + lock.Key()}, lock.Fence()).Int()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Of a process that stood still for long, the context may end late.
		if allowed == 0 && time.Now().Before(lock.ExpiresAt()) {
			rdb.RPush(bg, "twice", fmt.Sprintf("%s of %s with fence %d", lock.Key(), id, lock.Fence()))
		}
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return rdb.HIncrBy(bg, "done", id, 1).Err()
}

// atWork books that this process is at work on a task, until leave is called.
func atWork(ctx context.Context, rdb *redis.Client, task string) (leave func(), err error) {
	mine := "work:" + strconv.Itoa(os.Getpid())
	return func() { rdb.SRem(ctx, mine, task) }, rdb.SAdd(ctx, mine, task).Err()
}

// workerProc is a process of the role "worker", or of another one that works likewise.
type workerProc struct {
	name string // in the ledger, if the process writes in one
	cmd  *exec.Cmd
	once sync.Once
	err  error // of its end
}

// startWorker starts a worker process and waits until it works.
func startWorker(t *testing.T, addr string) *workerProc {
	t.Helper()
	return startWorkerAs(t, addr, "worker")
}

func startWorkerAs(t *testing.T, addr, role string, env ...string) *workerProc {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "JOBLOCK_E2E_ROLE="+role, "JOBLOCK_E2E_REDIS="+addr, "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // ends with this process
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &workerProc{cmd: cmd}
	t.Cleanup(p.kill)
	if _, err := fmt.Fscanf(out, "ready\n"); err != nil {
		t.Fatalf("the worker process did not come up: %v", err)
	}
	return p
}

// pid names the process in the books.
func (p *workerProc) pid() string { return strconv.Itoa(p.cmd.Process.Pid) }

// kill ends the process as a crash does; nothing if it has ended.
func (p *workerProc) kill() { _ = p.end(syscall.SIGKILL) }

// stop ends the process as an operator does.
func (p *workerProc) stop() error { return p.end(syscall.SIGTERM) }

func (p *workerProc) end(sig syscall.Signal) error {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(sig)
		p.err = p.cmd.Wait()
	})
	return p.err
}
