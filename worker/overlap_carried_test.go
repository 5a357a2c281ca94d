package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// sealFor is seal with a payload, which is the key of overlap.
func (r *rig) sealFor(key string, retries int, tokens ...joblock.Token) *asynq.Task {
	r.t.Helper()
	return r.sealed([]byte(key), envelope.Envelope{Tokens: tokens, Retries: retries})
}

// A task that carries a lock and wants another, which is busy, is snoozed with the
// one it carries parked for it, as often as need be, on its last attempt too.
func TestTaskThatCarriesALockAndWantsAnother(t *testing.T) {
	for used := range 2 {
		virtual(t, func(r *rig) {
			var p probe
			r.serve(service{use: overlap(), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, n int) error {
				if n <= used {
					return errBoom
				}
				if lock, _ := joblock.FromContext(ctx); lock.Key() != "a" {
					t.Errorf("FromContext gave %v, want the innermost", lock)
				}
				locks := joblock.LocksFromContext(ctx)
				if keys := []string{locks[0].Key(), locks[1].Key()}; len(locks) != 2 || !slices.Equal(keys, []string{"carried", "a"}) {
					t.Errorf("LocksFromContext gave %v", locks)
				}
				return locks.Err()
			}))
			if used == 0 {
				r.occupy("a")
			}
			r.submit("a", r.sealFor("a", used, r.park("a", "carried")...), used+1)
			if used > 0 {
				r.untilRetry("a", used)
				r.occupy("a")
			}
			time.Sleep(reserve + 2*time.Minute)
			r.untilRetry("a", used)
			r.wantState("carried", joblock.StateParked, "a")
			r.wantRuns(&p, used)
			if err := r.locks.ForceRelease(context.Background(), "a", joblock.Reason("test")); err != nil {
				t.Fatal(err)
			}
			r.wantDone("a")
			r.wantEnded("carried", "job done")
			r.wantEnded("a", "attempt over")
			r.wantRuns(&p, used+1)
			if told := p.heard(); len(told) != used {
				t.Errorf("the ErrorHandler heard %+v, want %d calls", told, used)
			}
		})
	}
}

// The lock that a task carries is kept or freed with the task.
func TestPoliciesForATaskThatCarriesALock(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cfg    worker.OverlapConfig
		state  string
		reason string
	}{
		{"drop", worker.OverlapConfig{DropIfBusy: true}, "gone", "job done"},
		{"fail", worker.OverlapConfig{FailIfBusy: true}, "archived", "job failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.serve(service{use: overlap(tt.cfg), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				r.occupy("a")
				r.submit("a", r.sealFor("a", 0, r.park("a", "carried")...), 1)
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", tt.state, 0)
				r.wantEnded("carried", tt.reason)
				r.wantRuns(&p, 0)
				if told := p.heard(); len(told) > 0 && !errors.Is(told[0].err, joblock.ErrHeld) {
					t.Errorf("the ErrorHandler heard %+v", told)
				}
			})
		})
	}
}

// A task does not wait for the lock, or the permit, that it carries itself.
func TestTaskThatCarriesTheLockItWants(t *testing.T) {
	for name, c := range map[string]struct {
		take func(r *rig) *joblock.Lock
		cfg  worker.OverlapConfig
	}{
		"a lock":   {func(r *rig) *joblock.Lock { return r.occupy("k") }, worker.OverlapConfig{}},
		"a permit": {func(r *rig) *joblock.Lock { return r.occupyPermit("k") }, worker.OverlapConfig{MaxConcurrent: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				lock := c.take(r)
				token := r.parkLock(lock, "a")
				r.serve(service{use: overlap(c.cfg)}, p.handler(func(ctx context.Context, _ int) error {
					if locks := joblock.LocksFromContext(ctx); len(locks) != 1 || locks[0].Key() != lock.Key() {
						t.Errorf("the handler has %v", locks)
					}
					return nil
				}))
				start := time.Now()
				r.submit("a", r.sealFor("k", 0, token), 1)
				r.wantDone("a")
				r.wantRuns(&p, 1)
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("done after %s", d)
				}
			})
		})
	}
	// One that carries a lock on a key is not of a limit's with that key.
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{use: overlap(worker.OverlapConfig{MaxConcurrent: 1})}, p.handler(func(ctx context.Context, _ int) error {
			if locks := joblock.LocksFromContext(ctx); len(locks) != 2 {
				t.Errorf("the handler has %v, want a lock and a permit", locks)
			}
			return nil
		}))
		r.submit("a", r.sealFor("k", 0, r.park("a", "k")...), 1)
		r.wantDone("a")
		r.wantRuns(&p, 1)
	})
}

// Two tasks want what the other has: one carries it, the other has taken it for this
// attempt, and lets go of it when it is snoozed.
func TestTasksThatWantEachOthersLocks(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		both := func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(task *asynq.Task) string {
				if len(task.Headers()) > 0 {
					return ""
				}
				return "carried"
			}, nil)
		}
		token := r.park("a", "carried")
		r.serve(service{use: append(overlap(), both)}, p.handler(func(context.Context, int) error {
			time.Sleep(30 * time.Second)
			return nil
		}))
		r.plain(1, "k", 1) // has k, waits for what the other carries
		r.submit("a", r.sealFor("k", 0, token...), 1)
		r.wantDone("a", "k-0")
		r.wantRuns(&p, 2)
	})
}

// Two tasks take two locks each, in opposite orders: snoozed, they meet at other
// times.
func TestTasksThatTakeTwoLocksInOppositeOrders(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		other := map[string]string{"a": "b", "b": "a"}
		second := func(w *worker.Worker) asynq.MiddlewareFunc {
			return w.WithoutOverlapping(func(task *asynq.Task) string { return other[string(task.Payload())] }, nil)
		}
		ids := append(r.plain(3, "a", 3), r.plain(3, "b", 3)...)
		var c crowd
		r.serve(service{use: append(overlap(), second)}, p.handler(func(context.Context, int) error {
			c.stay(time.Second)
			return nil
		}))
		r.wantDone(ids...)
		r.wantRuns(&p, 6)
		if c.most != 1 {
			t.Errorf("%d ran at once", c.most)
		}
	})
}

// A task that is cancelled while it waits for a lock leaves the queue, and the lock
// that it carries is its next attempt's.
func TestTaskCancelledWhileItWaitsForALock(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: time.Hour})}, p.handler(succeed))
		lock := r.occupy("k")
		r.submit("a", r.sealFor("k", 1, r.park("a", "carried")...), 2, asynq.Timeout(20*time.Minute))
		r.until("waiting", func() bool { return r.status("k").Waiters == 1 })
		r.wantState("carried", joblock.StateHeld, "a")
		if err := r.inspector.CancelProcessing("a"); err != nil {
			t.Fatal(err)
		}
		r.untilRetry("a", 1) // asynq counts it as a failure
		time.Sleep(retryWait / 2)
		r.wantState("carried", joblock.StateParked, "a")
		if st := r.status("k"); st.Waiters != 0 {
			t.Errorf("%d still wait for the key", st.Waiters)
		}
		r.wantRuns(&p, 0)
		r.release(lock)
		r.wantDone("a")
		r.wantRuns(&p, 1)
	})
}
