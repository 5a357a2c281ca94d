package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// tidy needs a moment to come to an end after its context has.
func tidy(d time.Duration) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		<-ctx.Done()
		time.Sleep(d)
		return ctx.Err()
	}
}

// closeWorker closes a Worker; in virtual time there is a guard against hanging.
func (r *rig) closeWorker(w *worker.Worker) {
	r.t.Helper()
	ctx := context.Background()
	if r.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.patience)
		defer cancel()
	}
	if err := w.Close(ctx); err != nil {
		r.t.Errorf("close the Worker: %v", err)
	}
}

// stop is what a program does at SIGTERM.
func (r *rig) stop(srv server, locks *joblock.Locker) {
	r.t.Helper()
	srv.Shutdown()
	r.closeWorker(srv.worker)
	if err := locks.Close(context.Background()); err != nil {
		r.t.Errorf("close the Locker: %v", err)
	}
}

// A deploy costs a job no lease: after Close its lock is parked, and the next
// server's attempt, which has met the old one settling, is back in seconds.
func TestCloseParksTheLocksOfAbortedHandlers(t *testing.T) {
	for name, overlap := range map[string]bool{"the next server comes later": false, "the servers overlap": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				r.ttl = time.Minute
				r.locks = r.newLocker()
				var p probe
				r.enqueue("a", 0)
				locks := r.newLocker()
				srv := r.serve(service{locks: locks, asynq: asynq.Config{ShutdownTimeout: 2 * time.Second}},
					p.handler(first(tidy(time.Second))))
				r.until("running", func() bool { return p.running() == 1 })
				if overlap {
					r.serve(service{}, p.handler(succeed))
				}
				r.stop(srv, locks)
				start := time.Now()
				if !overlap {
					r.wantState("key-a", joblock.StateParked, "a")
					r.serve(service{}, p.handler(succeed))
				}
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 2)
				if took := time.Since(start); took > 6*time.Second {
					t.Errorf("the job was done %s after its first server had stopped, want seconds", took)
				}
			})
		})
	}
}

// A handler that does not return does not block Close: it gives up with ctx, and can be
// called again.
func TestCloseIsBoundedByItsContext(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 1)
		release := make(chan struct{})
		srv := r.serve(service{asynq: asynq.Config{ShutdownTimeout: time.Second}},
			p.handler(func(context.Context, int) error { <-release; return nil }))
		r.until("running", func() bool { return p.running() == 1 })
		srv.Shutdown()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := srv.worker.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close with a handler that hangs gave %v, want DeadlineExceeded", err)
		}
		r.wantState("key-a", joblock.StateHeld, "a")
		close(release)
		r.closeWorker(srv.worker)
		r.wantState("key-a", joblock.StateParked, "a")
		r.closeWorker(srv.worker) // and once more
	})
}

// A lock of an archived task, under the lease of a dead process, is to be checked
// at again when that has run out. Close does not wait for it.
func TestCloseEndsRepeatedChecks(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.crash("a", r.enqueue("a", 0))
		srv := r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a")
		srv.Shutdown()
		start := time.Now()
		r.closeWorker(srv.worker)
		if took := time.Since(start); took > time.Second {
			t.Errorf("Close took %s", took)
		}
		if !strings.Contains(r.log.String(), "the lock stays reserved") {
			t.Errorf("nothing was said about the lock:\n%s", r.log)
		}
		time.Sleep(2 * ttl)
		r.wantState("key-a", joblock.StateOrphaned, "a")
	})
}

// An attempt that begins after Close touches no lock, and costs its task nothing.
func TestAttemptsAfterCloseAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name        string
		unconfigure bool
		meanwhile   string // the task's state
	}{
		{"snoozed", false, "retry"},
		{"kept waiting", true, "active"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				srv := r.serve(service{unconfigure: tt.unconfigure, asynq: asynq.Config{ShutdownTimeout: time.Second}},
					p.handler(succeed))
				r.closeWorker(srv.worker)
				token := r.enqueue("a", 0)
				r.untilTask("a", tt.meanwhile)
				r.wantTask("a", tt.meanwhile, 0)
				if st := r.status("key-a"); st.State != joblock.StateParked || st.Fence != core.Token(token).Fence() {
					t.Errorf("the lock is %s under fence %d, want it parked under %d as it was", st.State, st.Fence, core.Token(token).Fence())
				}
				srv.Shutdown()
				r.serve(service{}, p.handler(succeed))
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				r.wantRuns(&p, 1)
			})
		})
	}
}

// Close against attempts that begin at the same time: each is either refused, or
// settled when Close returns.
func TestCloseWhileAttemptsBegin(t *testing.T) {
	virtual(t, func(r *rig) {
		const tasks = 60
		var p probe
		for i := range tasks {
			r.enqueue(fmt.Sprint("task-", i), 0)
		}
		srv := r.serve(service{asynq: asynq.Config{Concurrency: 5}}, p.handler(deaf(time.Second)))
		r.until("some are done", func() bool { return p.count() > 2*5 })
		r.closeWorker(srv.worker)
		runs := p.count()
		if p.running() != 0 || runs == tasks {
			t.Errorf("Close returned with %d handlers running and %d of %d started", p.running(), runs, tasks)
		}
		for i := range tasks {
			if key := fmt.Sprint("key-task-", i); r.status(key).State == joblock.StateHeld {
				t.Errorf("lock %q is held without a holder", key)
			}
		}
		time.Sleep(time.Minute)
		r.wantRuns(&p, runs)
		r.serve(service{}, p.handler(succeed))
		srv.Shutdown()
		r.until("all are done", func() bool { return p.count() == tasks })
	})
}

func TestNilsDoNotPanic(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var none *worker.Worker
		locked, plain := r.seal(0, r.park("a", "key-a")...), asynq.NewTask(taskType, nil)
		ctx := context.Background()
		if err := none.Close(ctx); err != nil {
			t.Errorf("Close of a nil Worker gave %v", err)
		}
		if cfg := none.Configure(asynq.Config{Concurrency: 7}); cfg.Concurrency != 7 || cfg.IsFailure != nil {
			t.Errorf("Configure of a nil Worker gave %+v, want what it was given", cfg)
		}
		h := none.Middleware(p.handler(succeed))
		if err := h.ProcessTask(ctx, locked); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("a nil Worker's middleware gave %v for a task with a lock, want ErrInvalid", err)
		}
		r.wantRuns(&p, 0)
		if err := h.ProcessTask(ctx, plain); err != nil {
			t.Errorf("a nil Worker's middleware gave %v for a task without locks", err)
		}
		r.wantRuns(&p, 1)
		h = r.newWorker(r.locks, worker.Config{}).Middleware(nil)
		for _, task := range []*asynq.Task{locked, plain} {
			if err := h.ProcessTask(ctx, task); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("the middleware around nil gave %v, want ErrInvalid", err)
			}
		}
	})
}
