package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker"
)

// occupy takes key for another holder.
func (r *rig) occupy(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	r.t.Helper()
	return r.occupyBy(r.locks.TryAcquire, key, opts...)
}

// occupyPermit takes the only permit of key.
func (r *rig) occupyPermit(key string) *joblock.Lock {
	r.t.Helper()
	return r.occupyBy(limit.New(r.locks, 1).TryAcquire, key)
}

func (r *rig) occupyBy(
	try func(context.Context, string, ...joblock.AcquireOption) (*joblock.Lock, error), key string, opts ...joblock.AcquireOption,
) *joblock.Lock {
	r.t.Helper()
	lock, err := try(context.Background(), key, append(opts, joblock.Holder("holder-7"))...)
	if err != nil {
		r.t.Fatalf("acquire %q: %v", key, err)
	}
	return lock
}

func (r *rig) release(lock *joblock.Lock) {
	r.t.Helper()
	if err := lock.Release(context.Background()); err != nil {
		r.t.Fatalf("release: %v", err)
	}
}

// A key that is busy for long costs a task nothing: it is snoozed, by way of the archive
// if it has no retries left, or waits in place where asynq is not configured to know.
func TestBusyKeyCostsATaskNothing(t *testing.T) {
	for _, tt := range []struct {
		retries, used int
		unconfigure   bool
		state         string // while the key is busy
	}{
		{retries: 0, state: "retry"},
		{retries: 1, state: "retry"},
		{retries: 1, used: 1, state: "retry"},
		{retries: 2, used: 1, state: "retry"},
		{retries: 5, unconfigure: true, state: "active"},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.serve(service{use: overlap(), unconfigure: tt.unconfigure, asynq: asynq.Config{ErrorHandler: p.ear()}},
					p.handler(func(_ context.Context, n int) error {
						if n <= tt.used {
							return errBoom
						}
						return nil
					}))
				if tt.used == 0 {
					r.occupy("k")
				}
				r.plain(1, "k", tt.retries)
				if tt.used > 0 {
					r.untilRetry("k-0", tt.used)
					r.occupy("k")
				}
				time.Sleep(2 * time.Minute)
				r.untilCharged("k-0", tt.state, tt.used)
				r.wantRuns(&p, tt.used)

				if err := r.locks.ForceRelease(context.Background(), "k", joblock.Reason("test")); err != nil {
					t.Fatal(err)
				}
				freed := time.Now()
				r.wantDone("k-0")
				if d := time.Since(freed); tt.state == "active" && d > time.Second {
					t.Errorf("done %s after the key was freed; it was waited for in place", d)
				}
				r.wantRuns(&p, tt.used+1)
				if told := p.heard(); len(told) != tt.used {
					t.Errorf("the ErrorHandler heard %+v, want %d calls", told, tt.used)
				}
			})
		})
	}
}

// Without Configure nothing but waiting in place is left, and it ends when half of the
// task's time is over. The task says why it has failed.
func TestKeyThatStaysBusyWhereATaskCannotBeSnoozed(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{use: overlap(), unconfigure: true, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		lock := r.occupy("k")
		r.plain(1, "k", 0, asynq.Timeout(time.Minute))
		start := time.Now()
		r.untilTask("k-0", "archived")
		if d := time.Since(start); d < 30*time.Second || d > 32*time.Second {
			t.Errorf("it waited for some %s, want 30s", d)
		}
		_, info := r.task("k-0")
		for _, part := range []string{"gave up waiting in place", `"k"`, "holder-7"} {
			if !strings.Contains(info.LastErr, part) {
				t.Errorf("the task's last error is %q, want %q in it", info.LastErr, part)
			}
		}
		if told := p.heard(); len(told) != 1 || !errors.Is(told[0].err, joblock.ErrTimeout) {
			t.Errorf("the ErrorHandler heard %+v, want ErrTimeout once", told)
		}
		r.wantRuns(&p, 0)
		r.release(lock)
	})
}

// A task with little time is snoozed before that is up.
func TestTaskWithLessTimeThanMaxWait(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: time.Hour}), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		lock := r.occupy("k")
		r.plain(1, "k", 1, asynq.Timeout(2*time.Second))
		for range 3 {
			r.untilTask("k-0", "active")
			r.untilRetry("k-0", 0)
		}
		r.release(lock)
		r.wantDone("k-0")
		r.wantRuns(&p, 1)
		if told := p.heard(); len(told) != 0 {
			t.Errorf("the ErrorHandler heard %+v", told)
		}
	})
}

func TestPoliciesForABusyKey(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cfg    worker.OverlapConfig
		state  string
		waited time.Duration
		err    error
		last   bool // the only attempt
	}{
		{"snoozed", worker.OverlapConfig{}, "retry", defaultMaxWait, nil, false},
		{"snoozed at once", worker.OverlapConfig{MaxWait: -1}, "retry", 0, nil, false},
		{"snoozed a limit", worker.OverlapConfig{MaxConcurrent: 1}, "retry", defaultMaxWait, nil, false},
		{"drop", worker.OverlapConfig{DropIfBusy: true}, "gone", 0, nil, false},
		{"wait, then drop", worker.OverlapConfig{DropIfBusy: true, MaxWait: time.Minute}, "gone", time.Minute, nil, false},
		{"fail", worker.OverlapConfig{FailIfBusy: true}, "retry", 0, joblock.ErrHeld, false},
		{"wait, then fail", worker.OverlapConfig{MaxWait: time.Minute, FailIfBusy: true}, "retry", time.Minute, joblock.ErrTimeout, false},
		{"drop on the last attempt", worker.OverlapConfig{DropIfBusy: true}, "gone", 0, nil, true},
		{"fail on the last attempt", worker.OverlapConfig{FailIfBusy: true}, "archived", 0, joblock.ErrHeld, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.step = 50 * time.Millisecond // asynq cuts a pause of a second short
				r.serve(service{use: overlap(tt.cfg), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				lock := r.occupy("k")
				limited := r.occupyPermit("k")
				start := time.Now()
				retries := 1
				if tt.last {
					retries = 0
				}
				r.plain(1, "k", retries)
				r.untilTask("k-0", tt.state)
				if d := time.Since(start); d < tt.waited || d > tt.waited+3*time.Second {
					t.Errorf("waited for some %s, want %s", d, tt.waited)
				}
				r.wantRuns(&p, 0)
				if tt.err == nil {
					if told := p.heard(); len(told) != 0 {
						t.Errorf("the ErrorHandler heard %+v", told)
					}
					r.release(limited)
					r.release(lock)
					r.wantDone("k-0")
					if runs := p.count(); (tt.state == "gone") != (runs == 0) {
						t.Errorf("the handler ran %d times", runs)
					}
					return
				}
				told := p.heard()
				if len(told) != 1 || !errors.Is(told[0].err, tt.err) {
					t.Errorf("the ErrorHandler heard %+v, want one %v", told, tt.err)
				}
				if !tt.last {
					r.wantTask("k-0", "retry", 1)
					r.untilTask("k-0", "archived") // by asynq's rules
				}
			})
		})
	}
}

// An unavailable store does not count as another holder: the task is snoozed, or waits,
// whatever the policy.
func TestStoreAwayWhenATaskTakesItsLock(t *testing.T) {
	for _, retries := range []int{0, 1} {
		for name, cfg := range map[string]worker.OverlapConfig{
			"snoozed": {MaxWait: time.Second}, "drop": {DropIfBusy: true}, "fail": {FailIfBusy: true}, "limit": {MaxConcurrent: 2},
		} {
			t.Run(fmt.Sprintf("%s, %d retries", name, retries), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					r.faults.Set(faultstore.Fault{}, faultstore.Acquire, faultstore.Inspect)
					r.serve(service{use: overlap(cfg), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
					r.plain(1, "k", retries)
					time.Sleep(time.Minute)
					if state, info := r.task("k-0"); info.Retried != 0 || state == "archived" {
						t.Errorf("the task is %s with %d retries charged", state, info.Retried)
					}
					r.faults.Clear()
					r.wantDone("k-0")
					r.wantRuns(&p, 1)
					if told := p.heard(); len(told) != 0 {
						t.Errorf("the ErrorHandler heard %+v", told)
					}
				})
			})
		}
	}
}

// Bad input fails attempts by asynq's rules, and says what is bad; it does not panic.
func TestBadInputOfWithoutOverlapping(t *testing.T) {
	key := func(task *asynq.Task) string { return string(task.Payload()) }
	for name, tt := range map[string]struct {
		use  middleware
		key  string
		text string
	}{
		"nil Worker":    {func(*worker.Worker) asynq.MiddlewareFunc { return (*worker.Worker)(nil).WithoutOverlapping(key, nil) }, "k", "nil Worker"},
		"nil key":       {func(w *worker.Worker) asynq.MiddlewareFunc { return w.WithoutOverlapping(nil, nil) }, "k", "nil key function"},
		"MaxConcurrent": {overlap(worker.OverlapConfig{MaxConcurrent: -1})[0], "k", "MaxConcurrent is -1"},
		"two policies":  {overlap(worker.OverlapConfig{DropIfBusy: true, FailIfBusy: true})[0], "k", "both DropIfBusy and FailIfBusy"},
		"two numbers": {overlap(worker.OverlapConfig{
			MaxConcurrent: 1, MaxConcurrentOf: func(context.Context, *asynq.Task) int { return 1 },
		})[0], "k", "both MaxConcurrent and MaxConcurrentOf"},
		"control in key": {overlap()[0], "a\x00b", "control character"},
		"key too long":   {overlap()[0], strings.Repeat("x", driver.MaxKeyBytes+1), "at most 512"},
		"nil handler": {func(w *worker.Worker) asynq.MiddlewareFunc {
			return func(asynq.Handler) asynq.Handler { return w.WithoutOverlapping(key, nil)(nil) }
		}, "k", "nil handler"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.serve(service{use: []middleware{tt.use}, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				r.submit("a", asynq.NewTask(taskType, []byte(tt.key)), 0)
				r.untilTask("a", "archived")
				told := p.heard()
				if len(told) != 1 || !errors.Is(told[0].err, joblock.ErrInvalid) || !strings.Contains(told[0].err.Error(), tt.text) {
					t.Errorf("the ErrorHandler heard %+v, want ErrInvalid with %q", told, tt.text)
				}
				r.wantRuns(&p, 0)
			})
		})
	}
	w := new(worker.Worker)
	if err := w.WithoutOverlapping(key, nil)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })).
		ProcessTask(context.Background(), asynq.NewTask(taskType, []byte("k"))); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("outside of a server: %v, want ErrInvalid", err)
	}
}

// A name of a task that is no holder's label does not keep it from its lock.
func TestTaskWithAStrangeName(t *testing.T) {
	for _, id := range []string{strings.Repeat("x", 300), "a\nb"} {
		virtual(t, func(r *rig) {
			var p probe
			r.serve(service{use: overlap()}, p.handler(succeed))
			r.submit(id, asynq.NewTask(taskType, []byte("k")), 0)
			r.wantDone(id)
			r.wantRuns(&p, 1)
		})
	}
}

// A handler does not begin when the attempt's time was up while the lock was being taken. The task is snoozed before.
func TestLockThatComesWhenTheTasksTimeIsUp(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.faults.Set(faultstore.Fault{Mode: faultstore.Late, Delay: 5 * time.Second, Times: 1}, faultstore.Acquire)
		r.serve(service{use: overlap()}, p.handler(succeed))
		r.plain(1, "k", 1, asynq.Timeout(2*time.Second))
		r.untilRetry("k-0", 0)
		time.Sleep(6 * time.Second) // the store remembers only briefly that the lock was there
		r.wantRuns(&p, 0)
		r.wantEnded("k", "attempt over")
		r.wantDone("k-0")
		r.wantRuns(&p, 1)
	})
}
