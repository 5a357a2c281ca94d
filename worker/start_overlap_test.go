package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// untilStartOf is untilStart of a task that wants key for running too.
func (r *rig) untilStartOf(id, key string, retries int) {
	r.t.Helper()
	tokens := r.park(id, "key-"+id)
	r.submit(id, r.sealed([]byte(key), envelope.Envelope{Tokens: tokens, UntilStart: tokens, Retries: retries}), retries+1)
}

// passing is another package's middleware: what is registered inside it cannot be seen
// from outside.
func passing(*worker.Worker) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error { return next.ProcessTask(ctx, task) })
	}
}

func started(w *worker.Worker) asynq.MiddlewareFunc { return w.Started }

// A task that WithoutOverlapping puts back has not started: no other caller gets the key
// that it has until then.
func TestLockUntilStartStaysWhileAnotherLockIsBusy(t *testing.T) {
	for name, use := range map[string][]middleware{
		"one": overlap(),
		"two": append(overlap(), func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(*asynq.Task) string { return "l" }, nil)
		}),
		"inside another's":       {passing, overlap()[0], started},
		"outside of another's":   {overlap()[0], passing},
		"with others in between": {overlap()[0], passing, overlap(worker.OverlapConfig{MaxConcurrent: 3})[0], passing, started},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				lock := r.occupy("k")
				if name == "two" {
					r.release(lock)
					lock = r.occupy("l")
				}
				r.untilStartOf("a", "k", 0)
				r.serve(service{use: use}, p.handler(func(context.Context, int) error {
					r.wantEnded("key-a", "job started")
					return nil
				}))
				for range 10 { // dispatches
					time.Sleep(time.Second)
					r.wantState("key-a", joblock.StateParked, "a")
					r.wantHeld("key-a")
				}
				r.wantRuns(&p, 0)
				r.release(lock)
				r.untilTask("a", "gone")
				r.wantRuns(&p, 1)
				r.wantEnded("key-a", "job started")
				if strings.Contains(r.log.String(), "level=ERROR") {
					t.Errorf("the log has an error:\n%s", r.log)
				}
			})
		})
	}
}

// One that is dropped or fails for good without having started frees it; one that needs
// no other lock starts at once.
func TestLockUntilStartOfATaskThatDoesNotStart(t *testing.T) {
	for _, tt := range []struct {
		name, key, state, reason string
		cfg                      worker.OverlapConfig
		runs                     int
	}{
		{"dropped", "k", "gone", "job done", worker.OverlapConfig{DropIfBusy: true}, 0},
		{"failed", "k", "archived", "job failed", worker.OverlapConfig{FailIfBusy: true}, 0},
		{"without a key", "", "gone", "job started", worker.OverlapConfig{FailIfBusy: true}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.occupy("k")
				r.untilStartOf("a", tt.key, 0)
				r.serve(service{use: overlap(tt.cfg)}, p.handler(succeed))
				r.untilTask("a", tt.state)
				r.wantEnded("key-a", tt.reason)
				r.wantRuns(&p, tt.runs)
			})
		})
	}
}

// A job cannot give up its key for the next job and also run under it. Such a task does not
// run without a lock: it fails, and can be run again once the program has been fixed.
func TestLockUntilStartIsNotThatOfWithoutOverlapping(t *testing.T) {
	for name, use := range map[string][]middleware{
		"alone":                   overlap(),
		"fail if busy":            overlap(worker.OverlapConfig{FailIfBusy: true}),
		"drop if busy":            overlap(worker.OverlapConfig{DropIfBusy: true}),
		"where it cannot be seen": {passing, overlap()[0]},
		"with Started":            {overlap()[0], started},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.untilStartOf("a", "key-a", 1)
				r.serve(service{use: use, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				r.untilRetry("a", 1)
				if len(use) == 1 || name == "with Started" { // else it was started before
					r.wantState("key-a", joblock.StateParked, "a")
					r.wantHeld("key-a")
				}
				r.untilTask("a", "archived")
				if len(use) == 1 || name == "with Started" {
					r.wantEnded("key-a", "job failed")
				}
				r.wantRuns(&p, 0)
				told := p.heard()
				if len(told) != 2 {
					t.Fatalf("the ErrorHandler heard %d times, want twice", len(told))
				}
				for _, tell := range told {
					if !errors.Is(tell.err, joblock.ErrInvalid) || !strings.Contains(tell.err.Error(), "handoff.Unique.UntilStarted") {
						t.Errorf("the ErrorHandler heard %v", tell.err)
					}
				}
			})
		})
	}
}

// KeepLast is how to have both.
func TestLockFromStartIsThatOfWithoutOverlapping(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		tokens := r.park("a", "slot")
		run, err := joblock.NewToken("run", core.Token(tokens[0]).Owner(), core.Token(tokens[0]).TTL())
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, run)
		r.submit("a", r.sealed([]byte("run"), envelope.Envelope{Tokens: tokens, UntilStart: tokens[:1], FromStart: tokens[1:], Retries: 1}), 2)
		r.serve(service{use: overlap()}, p.handler(func(ctx context.Context, _ int) error {
			if lock, ok := joblock.FromContext(ctx); !ok || lock.Key() != "run" {
				t.Errorf("the handler runs under %v", lock)
			}
			return nil
		}))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantEnded("run", "job done")
	})
}

// A permit is not the same lock as that on its key.
func TestLockUntilStartWithAPermitOfItsKey(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.untilStartOf("a", "key-a", 0)
		r.serve(service{use: overlap(worker.OverlapConfig{MaxConcurrent: 1})}, p.handler(func(ctx context.Context, _ int) error {
			if lock, ok := joblock.FromContext(ctx); !ok || lock.Key() == "key-a" {
				t.Errorf("the handler runs under %v, want a permit", lock)
			}
			return nil
		}))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantEnded("key-a", "job started")
	})
}

// Where the worker cannot see that a task may still be snoozed, the log says how to make that visible.
func TestLockUntilStartGivenUpTooEarlyIsReported(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		lock := r.occupy("k")
		r.untilStartOf("a", "k", 0)
		r.serve(service{use: []middleware{passing, overlap()[0]}}, p.handler(succeed))
		r.untilRetry("a", 0)
		r.wantEnded("key-a", "job started")
		if log := r.log.String(); strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "Worker.Started") {
			t.Errorf("the log does not say what to do:\n%s", log)
		}
		r.release(lock)
		r.untilTask("a", "gone")
	})
}

// A lock that is only for running is anybody's while the task has not started, and the
// job's own when it has.
func TestLockFromStartOfATaskThatIsSnoozed(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		busy := r.occupy("k")
		r.queued("a", 1)
		env, _, err := envelopekit.Read(r.taskHeaders("a"))
		if err != nil {
			t.Fatal(err)
		}
		var errs []error
		key := func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(*asynq.Task) string { return "k" }, nil)
		}
		r.serve(service{use: []middleware{key}}, p.handler(func(ctx context.Context, n int) error {
			if locks := joblock.LocksFromContext(ctx); len(locks) != 2 || !slices.ContainsFunc(locks, func(l *joblock.Lock) bool { return l.Key() == "run" }) {
				errs = append(errs, errors.New("the handler lacks a lock"))
			}
			if n == 1 {
				return errBoom
			}
			return nil
		}))
		for range 3 {
			r.untilRetry("a", 0)
			r.wantState("slot-a", joblock.StateParked, "a")
			r.wantEnded("run", "job snoozed")
			r.untilTask("a", "active", "pending")
		}
		r.release(busy)
		r.untilRetry("a", 1)
		r.wantEnded("slot-a", "job started")
		busy = r.occupy("k")
		time.Sleep(retryWait + time.Second)
		for range 3 {
			r.untilRetry("a", 1)
			r.wantState("run", joblock.StateParked, "a")
			r.untilTask("a", "active", "pending")
		}
		r.release(busy)
		r.untilTask("a", "gone")
		r.wantRuns(&p, 2)
		r.wantEnded("run", "job done")
		if len(errs) != 0 || len(env.FromStart) != 1 {
			t.Error(errs)
		}
	})
}

// A task that is snoozed after its start keeps the lock that it has from its start: another job must not run between the
// two halves of one attempt.
func TestLockFromStartOfATaskThatIsSnoozedAfterItsStart(t *testing.T) {
	on := func(key string) middleware {
		return func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(*asynq.Task) string { return key }, nil)
		}
	}
	for name, use := range map[string][]middleware{
		"started by Middleware":           {passing, on("k")},
		"started by Started":              {started, on("k")},
		"started by Started, far from it": {passing, started, passing, on("k")},
		"started by an earlier overlap":   {on("l"), passing, on("k")},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				busy := r.occupy("k")
				r.queued("a", 1)
				r.serve(service{use: use}, p.handler(succeed))
				for range 3 {
					r.untilRetry("a", 0)
					r.wantEnded("slot-a", "job started")
					r.wantState("run", joblock.StateParked, "a")
					r.untilTask("a", "active", "pending")
				}
				r.wantRuns(&p, 0)
				r.release(busy)
				r.untilTask("a", "gone")
				r.wantRuns(&p, 1)
				r.wantEnded("run", "job done")
			})
		})
	}
}

// If the key cannot be given up the task is snoozed, and lets go of what it has taken.
func TestTaskThatCannotStartLetsGoOfItsLock(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.untilStartOf("a", "k", 0)
		heal := r.fault(faultstore.Refuse, faultstore.Release)
		r.serve(service{use: overlap()}, p.handler(succeed))
		r.untilRetry("a", 0)
		r.wantState("key-a", joblock.StateParked, "a")
		r.wantRuns(&p, 0)
		heal()
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantEnded("key-a", "job started")
		r.wantEnded("k", "attempt over")
	})
}
