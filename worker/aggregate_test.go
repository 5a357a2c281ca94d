package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

// group starts a server that makes one task of the members of a group ten seconds
// after the last of them came. make may be nil.
func (r *rig) group(make func([]*asynq.Task) *asynq.Task, handler asynq.HandlerFunc) server {
	r.t.Helper()
	if make == nil {
		make = func([]*asynq.Task) *asynq.Task { return asynq.NewTask(taskType, nil, asynq.MaxRetry(0)) }
	}
	return r.serve(service{asynq: asynq.Config{
		GroupGracePeriod: 10 * time.Second,
		GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
			return make(tasks)
		}),
	}}, handler)
}

// keysHeld returns the keys of the locks that a handler has.
func keysHeld(ctx context.Context) []string {
	var keys []string
	for _, lock := range joblock.LocksFromContext(ctx) {
		keys = append(keys, lock.Key())
	}
	return keys
}

// The task that a group becomes has the locks of all members, from when they are
// deleted until it is done.
func TestAggregateTakesOverTheLocksOfItsMembers(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		keys := make(chan []string, 1)
		for _, id := range []string{"a", "b", "c"} {
			r.enqueue(id, 3, asynq.Group("g"))
		}
		r.submit("plain", asynq.NewTask(taskType, nil), 0, asynq.Group("g"))
		r.group(nil, p.handler(func(ctx context.Context, n int) error {
			if n > 1 {
				return nil
			}
			keys <- keysHeld(ctx)
			time.Sleep(12 * time.Minute)
			return nil
		}))
		r.until("the group's task runs", func() bool { return p.running() == 1 })
		if tasks, err := r.inspector.ListActiveTasks(queue); err != nil || len(tasks) != 1 || tasks[0].MaxRetry != 1 {
			t.Errorf("active are %+v, %v; want the group's task with a spare retry", tasks, err)
		}
		for range 11 {
			time.Sleep(time.Minute)
			for _, id := range []string{"a", "b", "c"} {
				r.wantTask(id, "gone", 0)
				r.wantHeld("key-" + id)
			}
		}
		r.until("the group's task is done", func() bool { return p.running() == 0 })
		time.Sleep(time.Second)
		for _, id := range []string{"a", "b", "c"} {
			r.wantEnded("key-"+id, "job done")
		}
		if got, want := <-keys, []string{"key-a", "key-b", "key-c"}; !slices.Equal(got, want) {
			t.Errorf("the group's task had %v, want %v", got, want)
		}
		if run := p.all()[0]; run.budget != 0 {
			t.Errorf("the group's task has %d retries, its author wanted none", run.budget)
		}
		r.wantRuns(&p, 1)
	})
}

// A large group becomes several tasks, each of which has the locks of all its members.
func TestLargeGroupIsSplit(t *testing.T) {
	for name, size := range map[string]int{"unlimited": 0, "too large": 5000} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				const n = 600
				for i := range n {
					id := fmt.Sprint("m", i)
					r.submit(id, r.seal(0, r.park(id, "a-"+id, "b-"+id)...), 1, asynq.Group("g"))
				}
				var p probe
				var held atomic.Int64
				r.serve(service{asynq: asynq.Config{
					GroupGracePeriod: 10 * time.Second,
					GroupMaxSize:     size,
					GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
						return asynq.NewTask(taskType, nil)
					}),
				}}, p.handler(func(ctx context.Context, _ int) error {
					held.Add(int64(len(keysHeld(ctx))))
					return nil
				}))
				r.until("both tasks ran", func() bool { return p.count() == 2 && p.running() == 0 })
				if held.Load() != 2*n {
					t.Errorf("the tasks had %d locks, want %d", held.Load(), 2*n)
				}
				r.wantEnded("a-m0", "job done")
				r.wantEnded(fmt.Sprint("b-m", n-1), "job done")
				if lowered := strings.Contains(r.log.String(), "GroupMaxSize was lowered"); lowered != (size > 0) {
					t.Errorf("a lowered GroupMaxSize is logged: %t", lowered)
				}
			})
		})
	}
}

// Locks with a shorter life than their job have it with the group's task too.
func TestAggregateOfJobsThatAreUniqueUntilTheyStart(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.queued("a", 0, asynq.Group("g"))
		r.enqueue("b", 0, asynq.Group("g"))
		busy := r.hold("run")
		r.group(nil, p.handler(func(ctx context.Context, _ int) error {
			r.wantEnded("slot-a", "job started")
			if got, want := keysHeld(ctx), []string{"key-b", "run"}; !slices.Equal(got, want) {
				t.Errorf("the group's task has %v, want %v", got, want)
			}
			return nil
		}))
		r.untilTask("a", "gone")
		time.Sleep(time.Minute)
		r.wantHeld("slot-a")
		r.wantRuns(&p, 0)
		if err := busy.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.until("the group's task is done", func() bool { return r.status("run").Reason == "job done" })
		r.wantRuns(&p, 1)
	})
}

// The deadline of the group's task has passed when a worker takes it: it ends at once, with all the locks.
func TestAggregateWhoseDeadlineHasPassed(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.queued("a", 3, asynq.Group("g"))
		r.enqueue("b", 3, asynq.Group("g"))
		r.group(func([]*asynq.Task) *asynq.Task {
			return asynq.NewTask(taskType, nil, asynq.TaskID("all"), asynq.Deadline(time.Now().Add(-time.Second)))
		}, p.handler(succeed))
		r.untilTask("all", "archived")
		r.wantTask("all", "archived", 1)
		r.untilFree("key-b")
		r.wantEnded("slot-a", "job failed")
		r.wantEnded("key-b", "job failed")
		r.wantRuns(&p, 0)
	})
}

// While the group's task waits for its time no other caller gets the locks, even without
// a keeper.
func TestLocksOfAnAggregateThatWaits(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.Group("g"))
		r.group(func([]*asynq.Task) *asynq.Task {
			return asynq.NewTask(taskType, nil, asynq.ProcessIn(2*reserve))
		}, p.handler(succeed))
		r.untilTask("a", "gone")
		for range 18 {
			time.Sleep(time.Minute)
			r.wantHeld("key-a")
		}
		r.until("the group's task ran", func() bool { return p.count() == 1 })
		r.untilFree("key-a")
		r.wantEnded("key-a", "job done")
	})
}

// again makes asynq read a group once more. It puts the members of an aggregation
// that failed back into their group after two minutes, and reads the group when
// another member comes.
func (r *rig) again(id string) {
	r.t.Helper()
	time.Sleep(4 * time.Minute)
	r.submit(id, asynq.NewTask(taskType, nil), 0, asynq.Group("g"))
	time.Sleep(time.Minute)
}

// An aggregate that asynq does not take, here because an equal one is still unique,
// leaves its members as they are, and their locks with them.
func TestLocksOfAGroupWhoseAggregateIsRefused(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		unique := asynq.Unique(10 * time.Hour)
		r.submit("earlier", asynq.NewTask(taskType, nil), 0, unique, asynq.ProcessIn(10*time.Hour))
		r.enqueue("a", 0, asynq.Group("g"))
		r.enqueue("b", 0, asynq.Group("g"))
		var another atomic.Bool
		r.group(func([]*asynq.Task) *asynq.Task {
			if another.Load() {
				return asynq.NewTask(taskType, []byte("another"), unique)
			}
			return asynq.NewTask(taskType, nil, unique)
		}, p.handler(succeed))
		for i := range 2 {
			r.again(fmt.Sprint("plain-", i))
			time.Sleep(reserve)
			for _, id := range []string{"a", "b"} {
				r.wantTask(id, "aggregating", 0)
				r.wantHeld("key-" + id)
			}
		}
		another.Store(true)
		r.again("last")
		r.wantRuns(&p, 1)
		for _, id := range []string{"a", "b"} {
			r.wantTask(id, "gone", 0)
			r.wantEnded("key-"+id, "job done")
		}
	})
}

// No aggregate without its locks is made while their store does not answer.
func TestAggregationWaitsForTheStore(t *testing.T) {
	for _, call := range []string{faultstore.Inspect, faultstore.Resume, faultstore.Park} {
		for name, outage := range map[string]time.Duration{"a fail-over": 10 * time.Second, "an outage": 5 * time.Minute} {
			t.Run(call+" in "+name, func(t *testing.T) {
				kept(t, func(r *rig) {
					var p probe
					r.enqueue("a", 0, asynq.Group("g"))
					r.enqueue("b", 0, asynq.Group("g"))
					var made atomic.Int32
					r.group(func([]*asynq.Task) *asynq.Task {
						if made.Add(1) == 1 {
							r.faults.Set(faultstore.Fault{Mode: faultstore.Drop}, call)
							time.AfterFunc(outage, func() { r.faults.Clear() })
						}
						return asynq.NewTask(taskType, nil)
					}, p.handler(succeed))
					r.until("the group is aggregated", func() bool { return made.Load() == 1 })
					time.Sleep(time.Minute)
					if outage > time.Minute {
						r.wantTask("a", "aggregating", 0)
						r.wantRuns(&p, 0)
						time.Sleep(4 * time.Minute)
						r.again("another")
					}
					r.wantRuns(&p, 1)
					for _, id := range []string{"a", "b"} {
						r.wantTask(id, "gone", 0)
						r.wantEnded("key-"+id, "job done")
					}
				})
			})
		}
	}
}

// A member cannot take another task's lock into the group by a copy of its token,
// whether that task waits in its queue or in another group.
func TestAggregateTakesNoOtherTasksLock(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		other := r.enqueue("other", 0, asynq.ProcessIn(time.Hour))
		elsewhere := r.enqueue("elsewhere", 0, asynq.Group("another"))
		r.submit("thief", r.seal(0, other, elsewhere), 1, asynq.Group("g"))
		r.enqueue("a", 0, asynq.Group("g"))
		r.serve(service{asynq: asynq.Config{
			GroupGracePeriod: 10 * time.Minute, GroupMaxSize: 2,
			GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task {
				return asynq.NewTask(taskType, nil)
			}),
		}}, p.handler(succeed))
		r.untilTask("thief", "gone")
		time.Sleep(time.Minute)
		r.wantState("key-other", joblock.StateParked, "other")
		r.wantState("key-elsewhere", joblock.StateParked, "elsewhere")
	})
}

// Tasks without locks are aggregated as asynq does it.
func TestAggregateOfMembersWithoutLocks(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		r.submit("plain", asynq.NewTask(taskType, nil), 0, asynq.Group("g"))
		r.group(func([]*asynq.Task) *asynq.Task {
			return asynq.NewTaskWithHeaders(taskType, nil, map[string]string{"mine": "kept"},
				asynq.TaskID("made"), asynq.Retention(time.Hour), asynq.MaxRetry(7))
		}, p.handler(succeed))
		r.untilTask("made", "completed")
		if _, info := r.task("made"); info.MaxRetry != 7 || fmt.Sprint(info.Headers) != "map[mine:kept]" {
			t.Errorf("the group's task has %d retries and headers %v; it was to be left as it is", info.MaxRetry, info.Headers)
		}
	})
}
