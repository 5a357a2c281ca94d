package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// A store that does not answer costs the job nothing: it is snoozed.
func TestStoreUnavailableAtResume(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{
		"refused": faultstore.Refuse, "hangs": faultstore.Hang, "applied without a reply": faultstore.Drop,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0)
				r.faults.Set(faultstore.Fault{Mode: mode}, faultstore.Resume)
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				time.Sleep(5 * time.Minute)
				r.untilRetry("a", 0)
				r.faults.Clear()
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 1)
				if told := p.heard(); len(told) != 0 {
					t.Errorf("the ErrorHandler heard of snoozes: %+v", told)
				}
			})
		})
	}
}

// The handler's result stands when the store does not answer afterwards, and the
// lock is freed as soon as it answers again.
func TestStoreUnavailableAtRelease(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refused": faultstore.Refuse, "applied without a reply": faultstore.Drop} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0)
				r.serve(service{}, p.handler(func(context.Context, int) error {
					r.faults.Set(faultstore.Fault{Mode: mode}, faultstore.Release)
					return nil
				}))
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				r.faults.Clear()
				time.Sleep(5 * time.Second)
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 1)
			})
		})
	}
}

// A lock that could not be parked is left to lapse; what was reserved for the job
// before stands until its next attempt.
func TestStoreUnavailableAtPark(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refused": faultstore.Refuse, "applied without a reply": faultstore.Drop} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 1)
				r.serve(service{}, p.handler(first(func(context.Context, int) error {
					r.faults.Set(faultstore.Fault{Mode: mode}, faultstore.Park, faultstore.Renew)
					return errBoom
				})))
				r.untilTask("a", "retry")
				time.Sleep(ttl)
				r.wantHeld("key-a")
				r.faults.Clear()
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				r.wantEnded("key-a", "job done")
				r.wantRuns(&p, 2)
			})
		})
	}
}

// The attempt's time may be up while its lock is still being resumed. The handler
// is not called then, and the lock is not left behind. A job that can be snoozed is snoozed before its time is up.
func TestTimeoutWhileResuming(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spare  int
		task   string
		reason string
		runs   int
		told   int
	}{
		{"no spare retry", 0, "archived", "job failed", 0, 1},
		{"spare retry", 1, "gone", "job done", 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.park("a", "key-a")[0]
				r.submit("a", r.seal(0, token), tt.spare, asynq.Timeout(time.Second))
				r.faults.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2 * time.Second, Times: 1}, faultstore.Resume)
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				r.untilTask("a", "gone", "archived")
				time.Sleep(20 * time.Second)
				r.wantTask("a", tt.task, 0)
				r.wantEnded("key-a", tt.reason)
				r.wantRuns(&p, tt.runs)
				if told := p.heard(); len(told) != tt.told || tt.told > 0 && !errors.Is(told[0].err, context.DeadlineExceeded) {
					t.Errorf("the ErrorHandler heard %+v, want %d times DeadlineExceeded", told, tt.told)
				}
			})
		})
	}
}

// A store that hangs for longer than a job may take is no failure of the job: no call to the store outlasts the attempt.
func TestStoreThatHangsForLongerThanTheTimeout(t *testing.T) {
	for _, call := range []string{faultstore.SealKeys, faultstore.Resume, faultstore.Release, faultstore.Acquire, faultstore.Park} {
		for _, retries := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, %d retries", call, retries), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					r.queued("a", retries, asynq.Timeout(2*time.Second))
					r.enqueue("b", retries, asynq.Timeout(2*time.Second))
					r.plain(1, "k", retries, asynq.Timeout(2*time.Second))
					busy := r.occupy("k")
					locks := r.newLocker() // does not know the key of the seals yet
					r.faults.Set(faultstore.Fault{Mode: faultstore.Hang}, call)
					r.serve(service{locks: locks, use: overlap(worker.OverlapConfig{MaxWait: -1}), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
					time.Sleep(time.Minute)
					r.faults.Clear()
					r.release(busy)
					r.wantDone("a", "b", "k-0")
					r.wantRuns(&p, 3)
					if told := p.heard(); len(told) != 0 {
						t.Errorf("the ErrorHandler heard %+v", told)
					}
				})
			})
		}
	}
}

// A resumption is seen through to its answer beyond the attempt's time: given up
// half-way it would leave the lock without a holder for the rest of the lease.
func TestTimeoutWhileTheAnswerToAResumptionIsOwed(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.park("a", "key-a")[0]
		r.submit("a", r.seal(0, token), 0, asynq.Timeout(time.Second))
		r.faults.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Resume)
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a")
		r.faults.Clear()
		time.Sleep(ttl / 4)
		r.wantEnded("key-a", "job failed")
		r.wantRuns(&p, 0)
	})
}

// The attempt of a task that ends is still resuming when asynq archives it: its
// lease is alive, so that the lock cannot be freed yet, and is afterwards.
func TestResumptionWithoutAnAnswerOnTheLastAttempt(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		token := r.park("a", "key-a")[0]
		r.submit("a", r.seal(0, token), 0, asynq.Timeout(2*time.Second))
		r.faults.Set(faultstore.Fault{Mode: faultstore.HangApplied}, faultstore.Resume)
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "gone", "archived")
		r.wantTask("a", "archived", 0)
		r.wantState("key-a", joblock.StateHeld, "a")
		time.Sleep(2 * ttl)
		r.wantEnded("key-a", "job failed")
		r.wantRuns(&p, 0)
	})
}

// A task may come to its end while the store does not answer, without an attempt
// that would see to its lock: it is freed once the store is back.
func TestStoreUnavailableWhenTheTaskEnds(t *testing.T) {
	for _, down := range []string{faultstore.Inspect, faultstore.Release} {
		t.Run(down, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.crash("a", r.enqueue("a", 0))
				r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, down)
				r.serve(service{}, p.handler(succeed))
				r.untilTask("a", "archived")
				time.Sleep(time.Minute)
				r.faults.Clear()
				r.wantState("key-a", joblock.StateOrphaned, "a")
				time.Sleep(defaultSnooze + time.Second)
				r.wantEnded("key-a", "job failed")
				r.wantRuns(&p, 0)
			})
		})
	}
}

// An attempt whose lock was lost because the store no longer answers is not notified before
// its trust deadline, and its successor waits for the same.
func TestStoreUnavailableDuringTheRun(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 1)
		r.serve(service{}, p.handler(first(func(ctx context.Context, _ int) error {
			r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, joblock.ErrLost) {
				t.Errorf("the handler's context ended with cause %v, want ErrLost", cause)
			}
			r.faults.Clear()
			return ctx.Err()
		})))
		r.untilTask("a", "retry")
		r.wantHeld("key-a")
		r.untilTask("a", "gone", "archived")
		r.wantTask("a", "gone", 0)
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 2)
	})
}
