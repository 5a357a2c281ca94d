package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// call is one call of a function in asynq.Config.
type call struct {
	name string
	err  error // compared by identity
	n    int   // of RetryDelayFunc; the retry count of ErrorHandler
	max  int   // of ErrorHandler
}

// spies are a Config's functions, which take notes.
type spies struct {
	mu    sync.Mutex
	calls []call
}

func (s *spies) note(c call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, c)
}

func (s *spies) config(counts func(error) bool) asynq.Config {
	return asynq.Config{
		IsFailure: func(err error) bool {
			s.note(call{name: "IsFailure", err: err})
			return counts(err)
		},
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			s.note(call{name: "RetryDelayFunc", err: err, n: n})
			return 5 * time.Second
		},
		ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
			c := call{name: "ErrorHandler", err: err}
			c.n, _ = asynq.GetRetryCount(ctx)
			c.max, _ = asynq.GetMaxRetry(ctx)
			s.note(c)
		}),
	}
}

func (s *spies) got() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

func always(error) bool { return true }

// The user's functions see what they would see without this package, for tasks
// with locks and for tasks without.
func TestConfiguredFunctionsSeeTheHandlersOwnErrors(t *testing.T) {
	errs := []error{errors.New("first"), errors.New("second"), errors.New("third")}
	for name, locked := range map[string]bool{"without locks": false, "with a lock": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				var s spies
				if locked {
					r.enqueue("a", 2)
				} else {
					r.submit("a", asynq.NewTask(taskType, nil), 2)
				}
				r.serve(service{asynq: s.config(always)}, p.handler(func(_ context.Context, n int) error { return errs[n-1] }))
				r.untilTask("a", "archived")
				time.Sleep(time.Minute)
				r.wantTask("a", "archived", 2)
				if _, info := r.task("a"); info.LastErr != "third" {
					t.Errorf("last error %q, want %q", info.LastErr, "third")
				}
				// asynq asks for the delay after it has reported and judged the failure; the
				// worker asks before, because the reservation depends on it.
				seen := map[call]bool{}
				for _, c := range s.got() {
					seen[c] = true
				}
				for _, want := range []call{
					{"ErrorHandler", errs[0], 0, 2}, {"IsFailure", errs[0], 0, 0}, {"RetryDelayFunc", errs[0], 0, 0},
					{"ErrorHandler", errs[1], 1, 2}, {"IsFailure", errs[1], 0, 0}, {"RetryDelayFunc", errs[1], 1, 0},
					{"ErrorHandler", errs[2], 2, 2},
				} {
					if !seen[want] {
						t.Errorf("missing %+v", want)
					}
					delete(seen, want)
				}
				if len(seen) > 0 {
					t.Errorf("unexpected calls %+v", seen)
				}
			})
		})
	}
}

// The delay that RetryDelayFunc gave for the reservation is the one asynq uses.
func TestRetryDelayIsAskedForOncePerFailure(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		asked := 0
		r.enqueue("a", 1)
		r.serve(service{asynq: asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			asked++
			return time.Duration(asked) * time.Minute
		}}}, p.handler(first(fail)))
		start := time.Now()
		r.untilTask("a", "gone")
		if took := time.Since(start); asked != 1 || took > 90*time.Second {
			t.Errorf("asked %d times, retried within %s; want once, and about a minute", asked, took)
		}
	})
}

// An error that the user does not count is not charged, as without this package.
func TestErrorsThatDoNotCount(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var s spies
		r.enqueue("a", 1)
		r.serve(service{asynq: s.config(func(err error) bool { return !errors.Is(err, errBoom) })},
			p.handler(func(_ context.Context, n int) error {
				if n <= 5 {
					return fmt.Errorf("again: %w", errBoom)
				}
				return nil
			}))
		r.untilTask("a", "gone", "archived")
		r.wantTask("a", "gone", 0)
		r.wantRuns(&p, 6)
		r.wantEnded("key-a", "job done")
		for _, run := range p.all() {
			if run.retried != 0 {
				t.Errorf("run %+v was charged a retry", run)
			}
		}
	})
}

// Snoozes reach neither the user's IsFailure nor the RetryDelayFunc nor the
// ErrorHandler.
func TestSnoozesAreInvisible(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var s spies
		r.enqueue("a", 0)
		thief := r.steal("key-a")
		r.serve(service{asynq: s.config(always)}, p.handler(succeed))
		time.Sleep(5 * time.Minute)
		if err := thief.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone")
		if got := s.got(); len(got) != 0 {
			t.Errorf("the user's functions were called: %+v", got)
		}
	})
}

// A freed lock does not lie idle for longer than Config.Snooze, nor that of a
// holder who died for much longer than its lease.
func TestSnoozeBoundsThePause(t *testing.T) {
	for _, tt := range []struct {
		name   string
		snooze time.Duration
		holder []joblock.AcquireOption
		frees  func(*joblock.Lock) error
	}{
		{"released", 2 * time.Second, []joblock.AcquireOption{joblock.TTL(time.Hour)},
			func(lock *joblock.Lock) error { return lock.Release(context.Background()) }},
		{"died", 30 * time.Minute, []joblock.AcquireOption{joblock.MaxRenew(5 * time.Minute)},
			func(lock *joblock.Lock) error { <-lock.Done(); return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0)
				holder := r.steal("key-a", tt.holder...)
				r.serve(service{worker: worker.Config{Snooze: tt.snooze}}, p.handler(succeed))
				time.Sleep(5 * time.Minute)
				if err := tt.frees(holder); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				r.untilTask("a", "gone")
				// The pause, a quarter of it for the jitter, and asynq's own pauses.
				most := min(tt.snooze, ttl)*5/4 + 4*time.Second
				if took := time.Since(start); took > most {
					t.Errorf("the job ran %s after the lock was free, want %s at the most", took, most)
				}
			})
		})
	}
}

// Tasks without locks pass through the middleware and the configuration.
func TestTasksWithoutLocks(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.submit("a", asynq.NewTask(taskType, nil), 0)
		r.submit("b", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{"trace": "1"}), 1)
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, _ int) error {
			if lock, ok := joblock.FromContext(ctx); ok || joblock.LocksFromContext(ctx) != nil {
				t.Errorf("a task without locks has %v", lock)
			}
			if n, _ := asynq.GetMaxRetry(ctx); n > 1 {
				t.Errorf("asynq.GetMaxRetry gave %d in a task without locks", n)
			}
			return errBoom
		}))
		r.untilTask("a", "archived")
		r.untilTask("b", "archived")
		r.wantRuns(&p, 3)
		for _, tell := range p.heard() {
			if tell.err != errBoom {
				t.Errorf("the ErrorHandler was given %v", tell.err)
			}
		}
		if calls := r.faults.Calls(""); calls != 0 {
			t.Errorf("%d calls to the lock store for tasks without locks", calls)
		}
	})
}

// The spare retry is not to be seen by a handler.
func TestMaxRetryIsTheAuthorsOwn(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 7)
		r.serve(service{}, p.handler(func(ctx context.Context, _ int) error {
			if n, ok := asynq.GetMaxRetry(ctx); n != 7 || !ok {
				t.Errorf("asynq.GetMaxRetry gave %d, %t; want 7", n, ok)
			}
			return nil
		}))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
	})
}
