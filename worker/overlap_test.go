package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker"
)

type middleware = func(*worker.Worker) asynq.MiddlewareFunc

// overlap is WithoutOverlapping with the tasks' payloads as keys, and with cfg[0] if there is one.
func overlap(cfg ...worker.OverlapConfig) []middleware {
	return []middleware{func(w *worker.Worker) asynq.MiddlewareFunc {
		return w.WithoutOverlapping(func(task *asynq.Task) string { return string(task.Payload()) }, given(cfg))
	}}
}

// given returns a pointer to cfg[0], or nil.
func given(cfg []worker.OverlapConfig) *worker.OverlapConfig {
	if len(cfg) == 0 {
		return nil
	}
	return &cfg[0]
}

// plain enqueues tasks as a program without locks does, and returns their IDs.
func (r *rig) plain(n int, key string, retries int, opts ...asynq.Option) []string {
	r.t.Helper()
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", key, i))
		r.submit(ids[i], asynq.NewTask(taskType, []byte(key)), retries, opts...)
	}
	return ids
}

// wantDone waits for tasks to have left the queue, and checks that none was archived.
func (r *rig) wantDone(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		r.untilOver(id)
		r.wantTask(id, "gone", 0)
	}
}

// untilOver waits for a task to have ended. One that is in the archive because it was put
// back has not.
func (r *rig) untilOver(id string) {
	r.t.Helper()
	r.until(id+" is over", func() bool {
		state, info := r.task(id)
		return state == "gone" || state == "archived" && !strings.Contains(info.LastErr, "snoozed")
	})
}

// crowd counts who is inside.
type crowd struct {
	mu           sync.Mutex
	inside, most int
}

func (c *crowd) stay(d time.Duration) {
	c.mu.Lock()
	c.inside++
	c.most = max(c.most, c.inside)
	c.mu.Unlock()
	time.Sleep(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
}

// Ten tasks with one key and ten slots: one at a time, all run once, none is charged
// or archived, whatever their retries and however long they take.
func TestTasksWithOneKeyDoNotOverlap(t *testing.T) {
	for _, retries := range []int{0, 1, 5} {
		for _, stay := range []time.Duration{100 * time.Millisecond, 20 * time.Second} {
			t.Run(fmt.Sprintf("%d retries, %s each", retries, stay), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					var c crowd
					ids := r.plain(10, "k", retries)
					r.serve(service{use: overlap(), asynq: asynq.Config{ErrorHandler: p.ear()}},
						p.handler(func(context.Context, int) error { c.stay(stay); return nil }))
					start := time.Now()
					r.wantDone(ids...)
					r.wantRuns(&p, 10)
					if c.most != 1 {
						t.Errorf("%d ran at once", c.most)
					}
					// A crowd this small is soon through, though not all may wait in place.
					if took, most := time.Since(start), 10*stay+10*time.Second; stay < time.Second && took > most {
						t.Errorf("it took %s, want at most %s", took, most)
					}
					if told := p.heard(); len(told) != 0 {
						t.Errorf("the ErrorHandler heard %+v", told)
					}
					r.wantEnded("k", "attempt over")
				})
			})
		}
	}
}

func TestTasksThatDoNotShareAKeyRunConcurrently(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var c crowd
		ids := append(r.plain(1, "a", 0), r.plain(1, "b", 0)...)
		r.submit("x", asynq.NewTask(taskType, nil), 0)
		r.submit("y", asynq.NewTask(taskType, nil), 0)
		r.serve(service{use: overlap()}, p.handler(func(ctx context.Context, _ int) error {
			id, _ := asynq.GetTaskID(ctx)
			if _, ok := joblock.FromContext(ctx); ok != (id != "x" && id != "y") {
				t.Errorf("task %s: has a lock: %t", id, ok)
			}
			c.stay(10 * time.Second)
			return nil
		}))
		r.wantDone(append(ids, "x", "y")...)
		if c.most != 4 {
			t.Errorf("%d ran at once, want all 4", c.most)
		}
	})
}

// The next task begins in the moment in which the one before it ends.
func TestNextTaskBeginsWhenTheOneBeforeEnds(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var ended time.Time
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: 10 * time.Second})}, p.handler(func(_ context.Context, n int) error {
			if n > 1 && time.Since(ended) > 10*time.Millisecond {
				t.Errorf("call %d began %s after the one before it", n, time.Since(ended))
			}
			time.Sleep(1700 * time.Millisecond)
			ended = time.Now()
			return nil
		}))
		r.wantDone(r.plain(5, "k", 1)...)
		r.wantRuns(&p, 5)
	})
}

func TestLimitOfTasks(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var c crowd
		ids := r.plain(10, "k", 0)
		r.serve(service{use: overlap(worker.OverlapConfig{MaxConcurrent: 3})}, p.handler(func(context.Context, int) error {
			c.stay(30 * time.Second)
			return nil
		}))
		r.wantDone(ids...)
		r.wantRuns(&p, 10)
		if c.most != 3 {
			t.Errorf("%d ran at once, want 3", c.most)
		}
		if st, err := limit.New(r.locks, 3).Status(context.Background(), "k"); err != nil || st.Taken+st.Waiters > 0 {
			t.Errorf("%d permits are taken, %d wait, %v", st.Taken, st.Waiters, err)
		}
	})
}

// While a task waits for its retry, others with its key run.
func TestRetryDoesNotHoldTheKey(t *testing.T) {
	for name, end := range map[string]func(context.Context) error{
		"an error": func(context.Context) error { return errBoom },
		"a panic":  func(context.Context) error { panic("boom") },
		"a timeout": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.serve(service{use: overlap()}, p.handler(func(ctx context.Context, n int) error {
					if n == 1 {
						return end(ctx)
					}
					return nil
				}))
				r.plain(1, "k", 1, asynq.Timeout(time.Minute))
				r.untilRetry("k-0", 1)
				r.wantEnded("k", "attempt over")
				r.submit("other", asynq.NewTask(taskType, []byte("k")), 0)
				r.untilOver("other")
				if state, _ := r.task("k-0"); state != "retry" {
					t.Errorf("the first task is %s: this proves nothing", state)
				}
				r.wantDone("other", "k-0")
				r.wantRuns(&p, 3)
			})
		})
	}
}

// The handler has the lock in its context, which ends when the lock is lost. Who
// holds a key can be seen.
func TestHandlerHasTheLock(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		causes := make(chan error, 1)
		r.serve(service{use: overlap()}, p.handler(first(func(ctx context.Context, _ int) error {
			lock, ok := joblock.FromContext(ctx)
			if !ok || lock.Key() != "k" || lock.Err() != nil {
				t.Errorf("the handler has %v", lock)
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		})))
		r.plain(1, "k", 1)
		r.until("running", func() bool { return p.running() == 1 })
		if st := r.status("k"); st.Holder != "default/k-0 attempt 1/2" {
			t.Errorf("the holder is %q", st.Holder)
		}
		thief := r.steal("k")
		if cause := <-causes; !errors.Is(cause, joblock.ErrLost) {
			t.Errorf("the handler's context ended with cause %v, want ErrLost", cause)
		}
		r.untilRetry("k-0", 1)
		if err := thief.Release(context.Background()); err != nil {
			t.Errorf("the new holder's lock: %v", err)
		}
		r.wantDone("k-0")
	})
}

// A handler that goes on after its time is up keeps the key for Config.Overrun; then
// its lease ends, and the next task gets it.
func TestOverrunOfALockThatIsNotCarried(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		began := make(chan time.Time, 2)
		// The next task waits in place all the time, or it would come a snooze late.
		use := overlap(worker.OverlapConfig{MaxWait: 5 * time.Minute})
		r.serve(service{use: use, worker: worker.Config{Overrun: time.Minute}},
			p.handler(func(_ context.Context, n int) error {
				began <- time.Now()
				if n == 1 {
					time.Sleep(10 * time.Minute)
				}
				return nil
			}))
		r.plain(1, "k", 0, asynq.Timeout(time.Second))
		start := <-began
		r.submit("next", asynq.NewTask(taskType, []byte("k")), 0)
		want := time.Second + time.Minute + ttl
		if d := (<-began).Sub(start); d > want+time.Second || d < want-ttl/3-time.Second {
			t.Errorf("the next task ran %s after the first began, want some %s", d, want)
		}
		r.untilTask("next", "gone")
		r.until("the first handler has ended", func() bool { return p.running() == 0 })
	})
}

// Close waits for a handler, and afterwards its lock is free.
func TestCloseWaitsForLocksThatAreNotCarried(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		s := r.serve(service{use: overlap(), asynq: asynq.Config{ShutdownTimeout: time.Second}}, p.handler(deaf(time.Minute)))
		r.plain(1, "k", 0)
		r.until("running", func() bool { return p.running() == 1 })
		s.Shutdown()
		r.wantTask("k-0", "pending", 0)
		if !r.status("k").Locked() {
			t.Error("the lock is free, and its handler runs")
		}
		if err := s.worker.Close(context.Background()); err != nil {
			t.Error(err)
		}
		r.wantEnded("k", "attempt over")
		if p.running() != 0 {
			t.Error("Close did not wait")
		}
	})
}
