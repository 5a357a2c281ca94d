package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// steal frees the key of a waiting job and takes it for another holder.
func (r *rig) steal(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	r.t.Helper()
	ctx := context.Background()
	if err := r.locks.ForceRelease(ctx, key, joblock.Reason("test")); err != nil {
		r.t.Fatalf("force: %v", err)
	}
	lock, err := r.locks.TryAcquire(ctx, key, opts...)
	if err != nil {
		r.t.Fatalf("steal: %v", err)
	}
	return lock
}

// A job that finds its lock busy waits for it, whatever its retries and however long it
// takes: it is not archived, loses no retry, and is not reported as failed.
func TestContentionNeverCostsAJob(t *testing.T) {
	for retries := range 3 {
		for used := range retries + 1 {
			t.Run(fmt.Sprintf("%d of %d retries used", used, retries), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					var thief *joblock.Lock
					r.enqueue("a", retries)
					if used == 0 {
						thief = r.steal("key-a")
					}
					r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(_ context.Context, n int) error {
						if n <= used {
							return errBoom
						}
						return nil
					}))
					if used > 0 {
						r.until("retries used", func() bool {
							state, info := r.task("a")
							return state == "retry" && info.Retried == used
						})
						thief = r.steal("key-a")
					}
					time.Sleep(8 * time.Minute)
					r.untilRetry("a", used)
					r.wantRuns(&p, used)

					if err := thief.Release(context.Background()); err != nil {
						t.Fatal(err)
					}
					r.untilTask("a", "gone", "archived")
					r.wantTask("a", "gone", 0)
					r.wantEnded("key-a", "job done")
					r.wantRuns(&p, used+1)
					if told := p.heard(); len(told) != used {
						t.Errorf("the ErrorHandler heard %+v, want %d calls", told, used)
					}
				})
			})
		}
	}
}

// Two jobs that came to want the same key both run, one after the other.
func TestTwoJobsOnOneKeyRunOneAfterTheOther(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		alive, most := make(chan int, 1), 0
		alive <- 0
		a := r.park("a", "k")[0]
		if err := r.locks.ForceRelease(context.Background(), "k", joblock.Reason("test")); err != nil {
			t.Fatal(err)
		}
		b := r.park("b", "k")[0]
		r.submit("a", r.seal(0, a), 1)
		r.submit("b", r.seal(0, b), 1)
		r.serve(service{}, p.handler(func(context.Context, int) error {
			n := <-alive + 1
			most = max(most, n)
			alive <- n
			time.Sleep(30 * time.Second)
			alive <- <-alive - 1
			return nil
		}))
		r.untilTask("a", "gone", "archived")
		r.untilTask("b", "gone", "archived")
		r.wantTask("a", "gone", 0)
		r.wantTask("b", "gone", 0)
		r.wantRuns(&p, 2)
		r.wantEnded("k", "job done")
		if <-alive; most != 1 {
			t.Errorf("%d jobs ran at once under one key", most)
		}
	})
}

// A task with several locks takes all or none.
func TestOneBusyLockOfSeveral(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		ctx := context.Background()
		tokens := r.park("a", "z", "m", "b") // not in the order of keys
		r.submit("a", r.seal(0, tokens...), 1)
		thief := r.steal("m")
		r.serve(service{}, p.handler(func(ctx context.Context, _ int) error {
			locks := joblock.LocksFromContext(ctx)
			if len(locks) != 3 || locks[0].Key() != "z" || locks[1].Key() != "m" || locks[2].Key() != "b" {
				t.Errorf("the handler has %v, want the locks on z, m, b, as they were handed over", locks)
			}
			if lock, ok := joblock.FromContext(ctx); !ok || lock != locks[0] {
				t.Errorf("FromContext gave %v, want the first of LocksFromContext", lock)
			}
			return locks.Err()
		}))
		r.untilRetry("a", 0)
		r.wantState("b", joblock.StateParked, "a")
		r.wantState("z", joblock.StateParked, "a")
		r.wantRuns(&p, 0)
		if err := thief.Release(ctx); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone", "archived")
		r.wantTask("a", "gone", 0)
		for _, key := range []string{"b", "m", "z"} {
			r.wantEnded(key, "job done")
		}
		r.wantRuns(&p, 1)
	})
}

// Without Configure, and on the last attempt of a task without a spare retry, the
// attempt waits for the lock in place, and gives up with its own timeout.
func TestWaitingInPlace(t *testing.T) {
	for _, tt := range []struct {
		name        string
		unconfigure bool
		spare       int
	}{
		{"without Configure", true, 1},
		{"without a spare retry", false, 0},
		{"without both", true, 0},
	} {
		t.Run(tt.name+", freed in time", func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.submit("a", r.seal(0, r.park("a", "key-a")...), tt.spare)
				thief := r.steal("key-a")
				r.serve(service{unconfigure: tt.unconfigure}, p.handler(succeed))
				time.Sleep(5 * time.Minute)
				r.wantTask("a", "active", 0)
				r.wantRuns(&p, 0)
				if err := thief.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 1)
			})
		})
		t.Run(tt.name+", never freed", func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.submit("a", r.seal(0, r.park("a", "key-a")...), tt.spare, asynq.Timeout(time.Minute))
				thief := r.steal("key-a")
				r.serve(service{unconfigure: tt.unconfigure}, p.handler(succeed))
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "archived", tt.spare)
				r.wantRuns(&p, 0)
				if err := thief.Err(); err != nil {
					t.Errorf("the holder lost its lock to a job that gave up: %v", err)
				}
			})
		})
	}
}

// The lock is free between two runs of a job that ended for good with a panic; a caller
// that takes it then keeps it.
func TestLastDeliveryLeavesTheLockOfASuccessorAlone(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0)
		r.serve(service{asynq: asynq.Config{DelayedTaskCheckInterval: time.Minute}}, p.handler(blow))
		r.until("run", func() bool { return p.count() == 1 })
		r.untilFree("key-a")
		successor, err := r.locks.TryAcquire(context.Background(), "key-a")
		if err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "archived")
		time.Sleep(time.Minute)
		if err := successor.Renew(context.Background()); err != nil {
			t.Errorf("the successor lost its lock: %v", err)
		}
	})
}

// When a lock is lost in the middle of a run, the handler's context says why, and the next
// attempt takes the lock again.
func TestLockLostDuringTheRun(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 1)
		causes := make(chan error, 1)
		r.serve(service{}, p.handler(first(func(ctx context.Context, _ int) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		})))
		r.until("running", func() bool { return p.running() == 1 })
		thief := r.steal("key-a")
		if cause := <-causes; !errors.Is(cause, joblock.ErrLost) {
			t.Errorf("the handler's context ended with cause %v, want ErrLost", cause)
		}
		r.untilTask("a", "retry")
		time.Sleep(time.Minute)
		r.untilRetry("a", 0) // it is not charged for that
		if err := thief.Err(); err != nil {
			t.Errorf("the new holder lost its lock: %v", err)
		}
		if err := thief.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone", "archived")
		r.wantTask("a", "gone", 0)
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 2)
	})
}
