package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

const (
	absent   = "keeper: the task does not exist"
	archived = "keeper: the task is archived"
)

// inState brings task "a", with the lock on "key-a", into a state where asynq keeps
// it without anybody at work.
func (r *rig) inState(state string) {
	r.t.Helper()
	later := asynq.ProcessIn(2 * time.Hour)
	switch state {
	case "pending":
		r.enqueue("a", 1)
	case "scheduled":
		r.enqueue("a", 1, later)
	case "aggregating":
		r.enqueue("a", 1, asynq.Group("g"))
	case "retry":
		var p probe
		r.enqueue("a", 1)
		srv := r.serve(service{asynq: asynq.Config{
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 2 * time.Hour },
		}}, p.handler(fail))
		r.untilTask("a", "retry")
		srv.Shutdown()
	}
	time.Sleep(2 * time.Minute) // the enqueue is long over
	r.untilTask("a", state)
	r.wantState("key-a", joblock.StateParked, "a")
}

// Whatever the Inspector does with a task that waits, its lock is free within a
// period if the task does not run again, and stays with it if it does.
func TestLockAfterTheInspector(t *testing.T) {
	waiting := []string{"pending", "scheduled", "retry", "aggregating"}
	for _, tt := range []struct {
		name   string
		states []string
		do     func(r *rig, state string) error
		reason string // "" where the lock stays reserved
	}{
		{"DeleteTask", waiting, func(r *rig, _ string) error { return r.inspector.DeleteTask(queue, "a") }, absent},
		{"ArchiveTask", waiting, func(r *rig, _ string) error { return r.inspector.ArchiveTask(queue, "a") }, archived},
		{"RunTask", waiting[1:], func(r *rig, _ string) error { return r.inspector.RunTask(queue, "a") }, ""},
		{"DeleteQueue by force", waiting[:3], func(r *rig, _ string) error { return r.inspector.DeleteQueue(queue, true) },
			"keeper: the queue was deleted"},
		{"PauseQueue", waiting, func(r *rig, _ string) error { return r.inspector.PauseQueue(queue) }, ""},
		{"DeleteAll", waiting, func(r *rig, state string) (err error) {
			switch state {
			case "pending":
				_, err = r.inspector.DeleteAllPendingTasks(queue)
			case "scheduled":
				_, err = r.inspector.DeleteAllScheduledTasks(queue)
			case "retry":
				_, err = r.inspector.DeleteAllRetryTasks(queue)
			case "aggregating":
				_, err = r.inspector.DeleteAllAggregatingTasks(queue, "g")
			}
			return err
		}, absent},
		{"ArchiveAll", waiting, func(r *rig, state string) (err error) {
			switch state {
			case "pending":
				_, err = r.inspector.ArchiveAllPendingTasks(queue)
			case "scheduled":
				_, err = r.inspector.ArchiveAllScheduledTasks(queue)
			case "retry":
				_, err = r.inspector.ArchiveAllRetryTasks(queue)
			case "aggregating":
				_, err = r.inspector.ArchiveAllAggregatingTasks(queue, "g")
			}
			return err
		}, archived},
		{"RunAll", waiting[1:], func(r *rig, state string) (err error) {
			switch state {
			case "scheduled":
				_, err = r.inspector.RunAllScheduledTasks(queue)
			case "retry":
				_, err = r.inspector.RunAllRetryTasks(queue)
			case "aggregating":
				_, err = r.inspector.RunAllAggregatingTasks(queue, "g")
			}
			return err
		}, ""},
	} {
		for _, state := range tt.states {
			t.Run(tt.name+" of a task that is "+state, func(t *testing.T) {
				kept(t, func(r *rig) {
					r.inState(state)
					if err := tt.do(r, state); err != nil {
						t.Fatal(err)
					}
					time.Sleep(every + time.Millisecond) // and the check itself
					if tt.reason != "" {
						r.wantFreed("key-a", tt.reason)
						return
					}
					time.Sleep(3 * reserve)
					r.wantState("key-a", joblock.StateParked, "a")
				})
			})
		}
	}
}

// asynq's recoverer archives the task of a worker that was killed in its last
// attempt, and calls nothing. Without a spare retry nothing but the keeper would free its lock.
func TestCrashOnTheLastAttemptWithoutASpareRetry(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		token := r.park("a", "key-a")[0]
		r.submit("a", r.seal(0, token), 0)
		r.crash("a", token)
		r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a")     // the lease of the dead runs on
		time.Sleep(ttl + every + every/10 + time.Second) // the keeper asks what is due ten times in a period
		r.wantFreed("key-a", archived)
		r.wantRuns(&p, 0)
		if told := p.heard(); len(told) != 0 {
			t.Errorf("the ErrorHandler heard %+v; asynq tells it nothing", told)
		}
	})
}

// The locks' store is away when a job ends, and its process dies before it can repeat the release.
func TestReleaseThatTheProcessDidNotLiveToRepeat(t *testing.T) {
	for name, tt := range map[string]struct {
		opts   []asynq.Option
		err    error
		reason string
		grace  time.Duration
	}{
		"deleted":  {nil, nil, absent, time.Minute},
		"retained": {[]asynq.Option{asynq.Retention(time.Hour)}, nil, "keeper: the task is completed", 0},
		"archived": {nil, asynq.SkipRetry, archived, 0},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				dying := faultstore.New(r.faults)
				r.enqueue("a", 1, tt.opts...)
				var p probe
				r.serve(service{locks: r.newLockerOn(dying)}, p.handler(func(context.Context, int) error {
					dying.Set(faultstore.Fault{Err: errBoom}, everyCall...)
					return tt.err
				}))
				r.until("it ran", func() bool { return p.count() == 1 && p.running() == 0 })
				time.Sleep(max(ttl, tt.grace) - 2*time.Second)
				if st := r.status("key-a"); !st.Locked() {
					t.Errorf("the lock is %+v, want it with the job", st)
				}
				time.Sleep(min(ttl, tt.grace) + every + every/10 + 3*time.Second)
				r.wantFreed("key-a", tt.reason)
				dying.Clear()
			})
		})
	}
}

// A worker without the middleware, such as an old build, runs a task without its
// lock and leaves it behind.
func TestLockLeftBehindByATaskThatIsDone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   []asynq.Option
		f      func(context.Context, int) error
		reason string
	}{
		{"deleted", nil, succeed, absent},
		{"retained", []asynq.Option{asynq.Retention(time.Hour)}, succeed, "keeper: the task is completed"},
		{"archived", nil, returning(asynq.SkipRetry), archived},
	} {
		t.Run(tt.name, func(t *testing.T) {
			kept(t, func(r *rig) {
				var p probe
				r.enqueue("a", 1, append(tt.opts, asynq.ProcessIn(2*time.Minute))...)
				r.serve(service{bare: true}, p.handler(tt.f))
				r.until("it ran", func() bool { return p.count() == 1 })
				time.Sleep(every + time.Second)
				r.wantFreed("key-a", tt.reason)
			})
		})
	}
}

// asynq keeps the last 10,000 archived tasks for 90 days, and completed ones for
// their retention, and deletes the rest while it does something else. If no keeper
// was up meanwhile, the next one frees the locks.
func TestLockOfATaskThatWasTrimmed(t *testing.T) {
	virtual(t, func(r *rig) {
		r.enqueue("archived", 0, asynq.ProcessIn(time.Hour))
		r.enqueue("completed", 0, asynq.Retention(time.Minute), asynq.ProcessIn(time.Second))
		r.submit("another", asynq.NewTask(taskType, nil), 0, asynq.ProcessIn(5*time.Second))
		r.serve(service{bare: true, asynq: asynq.Config{JanitorInterval: time.Second}},
			func(ctx context.Context, _ *asynq.Task) error {
				if id, _ := asynq.GetTaskID(ctx); id == "another" {
					return asynq.SkipRetry // archived, which is when asynq trims
				}
				return nil
			})
		if err := r.inspector.ArchiveTask(queue, "archived"); err != nil {
			t.Fatal(err)
		}
		// It has been there for long.
		long := redis.Z{Member: "archived", Score: float64(time.Now().AddDate(0, 0, -91).Unix())}
		if err := r.rdb.ZAdd(context.Background(), "asynq:{default}:archived", long).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		for _, id := range []string{"archived", "completed"} {
			r.wantTask(id, "gone", 0)
			r.wantState("key-"+id, joblock.StateParked, id)
		}
		r.keep(r.locks, worker.Config{})
		time.Sleep(every)
		r.wantFreed("key-archived", absent)
		r.wantFreed("key-completed", absent)
	})
}

// Between the hand-over and the task lies an enqueue. One that never comes, because
// its process died, costs a minute, and one that is late costs nothing.
func TestLockWhoseTaskIsNotThereYet(t *testing.T) {
	for fences, newStore := range lockStores {
		for name, late := range map[string]time.Duration{"never": 0, "after fifty seconds": 50 * time.Second} {
			t.Run(name+", "+fences, func(t *testing.T) {
				virtualOn(t, newStore, func(r *rig) {
					r.keep(r.locks, worker.Config{})
					r.enqueue("b", 0, asynq.ProcessIn(time.Hour)) // the queue is known
					token := r.park("a", "key-a")[0]
					if late > 0 {
						time.Sleep(late)
						r.submit("a", r.seal(0, token), 1, asynq.ProcessIn(2*time.Hour))
						time.Sleep(reserve)
						r.wantState("key-a", joblock.StateParked, "a")
						return
					}
					time.Sleep(time.Minute - time.Second)
					r.wantState("key-a", joblock.StateParked, "a")
					time.Sleep(every + 2*time.Second)
					r.wantFreed("key-a", absent)
				})
			})
		}
	}
}
