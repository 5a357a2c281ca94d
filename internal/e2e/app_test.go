//go:build servers

package e2e

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// app is what an application has, on a redis-server of its own: the web side and
// a worker.
type app struct {
	addr      string
	locks     *joblock.Locker
	jobs      *handoff.Client
	inspector *asynq.Inspector
	worker    *worker.Worker
}

// newApp starts a worker that gives every task to handle. Pauses are short, so
// that a test in real time takes seconds.
func newApp(t *testing.T, handle asynq.HandlerFunc) *app {
	t.Helper()
	addr := redistest.Start(t).Addr()
	opt := asynq.RedisClientOpt{Addr: addr}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	t.Cleanup(func() { client.Close(); inspector.Close() })
	quiet := slog.New(slog.NewTextHandler(t.Output(), nil))
	a := &app{addr: addr, inspector: inspector, locks: newLocks(t, addr, &joblock.Config{TTL: 10 * time.Second, Logger: quiet})}
	var err error
	if a.jobs, err = handoff.NewClient(a.locks, client, inspector, &handoff.Config{Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(a.locks, inspector, &worker.Config{Snooze: time.Second, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	a.worker = w
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc("job", handle)
	server := asynq.NewServer(opt, w.Configure(asynq.Config{
		Concurrency:              8,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		TaskCheckInterval:        100 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond,
		ShutdownTimeout:          10 * time.Second,
		LogLevel:                 asynq.FatalLevel,
	}))
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Shutdown()
		bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(w.Close(bounded), a.jobs.Close(bounded)); err != nil {
			t.Errorf("stop the worker and the client: %v", err)
		}
	})
	return a
}

// enqueue takes the lock on key and hands it to a new job.
func (a *app) enqueue(t *testing.T, key string, opts ...asynq.Option) (*asynq.TaskInfo, *joblock.Lock) {
	t.Helper()
	lock, err := a.locks.TryAcquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	done, err := a.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("job", []byte(key), opts...))
	if err != nil {
		t.Fatal(err)
	}
	return done.Task, lock
}

// await waits until ok, or fails: the bound is a guard against hanging.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("gave up waiting for %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitFree waits until key has no owner.
func (a *app) awaitFree(t *testing.T, key string) joblock.Status {
	t.Helper()
	var st joblock.Status
	await(t, key+" to be free", func() bool {
		var err error
		if st, err = testkit.One(a.locks.Status(t.Context(), key)); err != nil {
			t.Fatal(err)
		}
		return !st.Locked()
	})
	return st
}
