package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

func TestShutdownWaitsForTheHandler(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 3)
		srv := r.serve(service{}, p.handler(deaf(5*time.Second)))
		r.until("running", func() bool { return p.running() == 1 })
		srv.Shutdown()
		r.wantTask("a", "gone", 0)
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 1)
	})
}

// After ShutdownTimeout asynq puts the task back and goes, handler or not. The
// next server's attempt waits for the lease of the first, and then runs.
func TestShutdownAbortsAndAnotherServerTakesOver(t *testing.T) {
	for name, work := range map[string]func(ctx context.Context, n int) error{
		"obeys":     obey,
		"runs on":   deaf(40 * time.Second),
		"last gasp": func(ctx context.Context, n int) error { _ = obey(ctx, n); return asynq.SkipRetry },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0) // its last attempt, and yet it is not lost
				srv := r.serve(service{asynq: asynq.Config{ShutdownTimeout: 2 * time.Second}}, p.handler(first(work)))
				r.until("running", func() bool { return p.running() == 1 })
				r.serve(service{locks: r.newLocker()}, p.handler(succeed))
				srv.Shutdown()
				r.untilTask("a", "gone")
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 2)
				if p.most() != 1 {
					t.Errorf("%d attempts ran at once, want 1", p.most())
				}
			})
		})
	}
}

// A Locker closed under a running handler takes the lock's lease with it, not the
// job's claim on it.
func TestLockerClosedBeforeTheHandlerEnds(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 1)
		locks := r.newLocker()
		srv := r.serve(service{locks: locks}, p.handler(obey))
		r.until("running", func() bool { return p.running() == 1 })
		if err := locks.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "retry")
		srv.Shutdown()
		r.until("orphaned", func() bool { return r.status("key-a").State == joblock.StateOrphaned })
		r.wantHeld("key-a")
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 2)
	})
}
