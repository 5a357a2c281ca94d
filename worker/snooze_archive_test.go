package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// Tasks that need a good part of their time have it when they begin: waiting for each
// other costs none of them a retry or its last attempt, on two servers.
func TestTasksWithLittleTimeDoNotLoseItToTheWait(t *testing.T) {
	for _, retries := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(retries, " retries"), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				var c crowd
				ids := r.plain(12, "k", retries, asynq.Timeout(3*time.Second))
				for range 2 {
					r.serve(service{use: overlap(), locks: r.newLocker(), asynq: asynq.Config{ErrorHandler: p.ear()}},
						p.handler(func(context.Context, int) error { c.stay(time.Second); return nil }))
				}
				for _, id := range ids {
					r.until(id+" is over", func() bool {
						state, info := r.task(id)
						if info.Retried > 0 || state == "archived" && len(p.heard()) > 0 {
							t.Fatalf("task %s is %s with %d retries charged: %s", id, state, info.Retried, info.LastErr)
						}
						return state == "gone"
					})
				}
				r.wantRuns(&p, 12)
				if c.most != 1 {
					t.Errorf("%d ran at once", c.most)
				}
				if told := p.heard(); len(told) != 0 {
					t.Errorf("the ErrorHandler heard %+v", told)
				}
			})
		})
	}
}

// The wait ends while the task has nine tenths of its time left, and no later.
func TestWaitLeavesTimeForTheRun(t *testing.T) {
	for _, tt := range []struct {
		cfg    worker.OverlapConfig
		waited time.Duration
	}{
		{worker.OverlapConfig{MaxWait: time.Hour}, 10 * time.Second},
		{worker.OverlapConfig{}, defaultMaxWait},
		{worker.OverlapConfig{DropIfBusy: true, MaxWait: time.Hour}, 10 * time.Second},
	} {
		virtual(t, func(r *rig) {
			var p probe
			// A task that is snoozed is to be seen: it stays where it is.
			stays := asynq.Config{DelayedTaskCheckInterval: time.Hour}
			r.serve(service{use: overlap(tt.cfg), asynq: stays}, p.handler(succeed))
			lock := r.occupy("k")
			r.plain(1, "k", 1, asynq.Timeout(100*time.Second))
			start := time.Now()
			r.untilTask("k-0", "retry", "gone")
			if d := time.Since(start); d < tt.waited || d > tt.waited+3*time.Second {
				t.Errorf("waited for some %s, want %s", d, tt.waited)
			}
			r.release(lock)
			r.wantRuns(&p, 0)
		})
	}
}

// Tasks that find their key busy do not take the slots of those that have nothing to do
// with it.
func TestBusyKeyDoesNotStarveTheServer(t *testing.T) {
	for _, retries := range []int{0, 25} {
		for _, concurrency := range []int{1, 2, 10} {
			t.Run(fmt.Sprintf("%d retries, %d slots", retries, concurrency), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var mu sync.Mutex
					others := 0
					r.serve(service{use: overlap(), asynq: asynq.Config{Concurrency: concurrency}}, func(_ context.Context, task *asynq.Task) error {
						mu.Lock()
						defer mu.Unlock()
						if len(task.Payload()) == 0 {
							others++
						}
						return nil
					})
					lock := r.occupy("k")
					ids := r.plain(60, "k", retries)
					time.Sleep(5 * time.Second)
					for i := range 30 {
						r.submit(fmt.Sprint("other-", i), asynq.NewTask(taskType, nil), 0)
					}
					time.Sleep(3 * time.Second)
					mu.Lock()
					if others != 30 {
						t.Errorf("%d of 30 tasks that need no key have run", others)
					}
					mu.Unlock()
					r.release(lock)
					for _, id := range ids {
						r.untilTask(id, "gone")
					}
				})
			})
		}
	}
}

// A wait that was asked for is not cut short for the sake of others.
func TestMaxWaitIsKept(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: time.Minute}), asynq: asynq.Config{Concurrency: 5}}, p.handler(succeed))
		lock := r.occupy("k")
		r.plain(5, "k", 1)
		r.until("all wait", func() bool { return r.status("k").Waiters == 5 })
		r.release(lock)
		r.until("all have run", func() bool { return p.count() == 5 })
	})
}

// byArchive snoozes a task without retries, and returns when it is in its pause.
func (r *rig) byArchive(opts ...asynq.Option) *joblock.Lock {
	r.t.Helper()
	lock := r.occupy("k")
	r.plain(1, "k", 0, opts...)
	r.untilPostponed("k-0")
	return lock
}

// untilPostponed waits until a task without retries is in the pause of a snooze by way of the archive.
func (r *rig) untilPostponed(id string) {
	r.t.Helper()
	r.untilTask(id, "retry", "archived")
}

// eachAsynq calls f with asynq as it is, and as one that keeps its tasks elsewhere: there tasks are in the archive for the
// whole of their pause.
func eachAsynq(t *testing.T, f func(r *rig, pausing string)) {
	t.Helper()
	for pausing, unknown := range map[string]bool{"retry": false, "archived": true} {
		t.Run(pausing, func(t *testing.T) {
			onAsynq(t, unknown, func(r *rig) { f(r, pausing) })
		})
	}
}

// onAsynq is virtual, with an asynq that keeps its tasks elsewhere if unknown is true.
func onAsynq(t *testing.T, unknown bool, f func(r *rig)) {
	t.Helper()
	asynqprivate.Unknown.Store(unknown)
	defer asynqprivate.Unknown.Store(false)
	bubble(t, lockStores["fences by the clock"], f)
}

// Tasks that only wait for their key are in asynq's archive for moments: emptying the archive hardly ever deletes one.
func TestTasksThatWaitAreNotInTheArchive(t *testing.T) {
	for name, cfg := range map[string]worker.OverlapConfig{"snoozed": {}, "at once": {MaxWait: -1}, "in line": {InLine: true}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				const tasks, samples = 20, 6000
				var p probe
				lock := r.occupy("k")
				r.plain(tasks, "k", 0)
				r.serve(service{use: overlap(cfg)}, p.handler(succeed))
				found := 0
				for range samples {
					time.Sleep(10*time.Millisecond + 7*time.Microsecond) // against the rhythm of the server
					synctest.Wait()
					if n := r.rdb.ZCard(context.Background(), "asynq:{default}:archived").Val(); n > 0 {
						found++
					}
				}
				if found > samples/100 {
					t.Errorf("tasks were in the archive in %d of %d samples", found, samples)
				}
				if err := (*core.Lock)(lock).Release(context.Background(), core.Release{Granted: r.next()}); err != nil {
					t.Fatal(err)
				}
				r.until("all have run", func() bool { return p.count() == tasks })
			})
		})
	}
}

// A task without retries is snoozed by way of the archive, and comes out of it as it
// was.
func TestTaskSnoozedByWayOfTheArchiveIsTheSame(t *testing.T) {
	eachAsynq(t, func(r *rig, pausing string) {
		t := r.t
		var p probe
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1}), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		opts := []asynq.Option{asynq.Retention(time.Hour), asynq.Timeout(time.Minute), asynq.Unique(time.Hour)}
		lock := r.byArchive(opts...)
		if _, err := r.client.Enqueue(asynq.NewTask(taskType, []byte("k")), opts...); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("an enqueue of the same gave %v, want ErrDuplicateTask", err)
		}
		for range 3 {
			r.untilTask("k-0", "active", "pending")
			r.untilTask("k-0", pausing)
		}
		r.release(lock)
		r.untilTask("k-0", "completed")
		if _, info := r.task("k-0"); info.Timeout != time.Minute || info.Retention != time.Hour || string(info.Payload) != "k" || info.Retried != 0 {
			t.Errorf("the task has become %+v", info)
		}
		r.wantRuns(&p, 1)
		if told := p.heard(); len(told) != 0 {
			t.Errorf("the ErrorHandler heard %+v", told)
		}
		if st := r.status("%again:default/k-0"); st.Locked() {
			t.Errorf("the mark is %+v, want it released", st)
		}
	})
}

// An operator runs a task during its pause in the archive. Its key is still busy: the task is snoozed again, however
// short its time is, although the first snooze still has the task's mark.
func TestRunTaskDuringAPauseInTheArchive(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, 2 * time.Second} {
		for _, all := range []bool{false, true} {
			for name, cfg := range map[string]worker.OverlapConfig{
				"none": {}, "no wait": {MaxWait: -1}, "a long wait": {MaxWait: time.Minute}, "in line": {InLine: true},
			} {
				t.Run(fmt.Sprintf("%s, all: %t, %s", timeout, all, name), func(t *testing.T) {
					eachAsynq(t, func(r *rig, pausing string) {
						t := r.t
						runAll := r.inspector.RunAllRetryTasks
						if pausing == "archived" {
							runAll = r.inspector.RunAllArchivedTasks
						}
						var p probe
						r.serve(service{use: overlap(cfg), worker: worker.Config{Snooze: time.Minute}, asynq: asynq.Config{
							ErrorHandler: p.ear(), DelayedTaskCheckInterval: 30 * time.Second,
						}}, p.handler(succeed))
						lock := r.byArchive(asynq.Timeout(timeout))
						for range 3 {
							if all {
								if n, err := runAll(queue); err != nil || n != 1 {
									t.Fatalf("all were run: %d, %v", n, err)
								}
							} else if err := r.inspector.RunTask(queue, "k-0"); err != nil {
								t.Fatal(err)
							}
							r.untilTask("k-0", pausing) // it is in the archive for a moment on its way there
							if _, info := r.task("k-0"); !strings.Contains(info.LastErr, jobline.ArchiveText) {
								t.Fatalf("the task is %s because of %q", pausing, info.LastErr)
							}
						}
						r.release(lock)
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
}

// A task whose mark is held for longer than its timeout is snoozed without a mark: waiting for it takes a part of the
// attempt's time only.
func TestMarkThatIsHeldForLongerThanTheTimeout(t *testing.T) {
	eachAsynq(t, func(r *rig, _ string) {
		t := r.t
		mark, err := r.locks.Acquire(t.Context(), keyspace.Again("default/k-0"), core.OwnKey)
		if err != nil {
			t.Fatal(err)
		}
		lock := r.occupy("k")
		r.plain(1, "k", 0, asynq.Timeout(time.Second))
		start := time.Now()
		var p probe
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1}), worker: worker.Config{Snooze: time.Minute}}, p.handler(succeed))
		r.untilPostponed("k-0")
		if took := time.Since(start); took >= time.Second {
			t.Errorf("the attempt ended after %s, want it to end before its timeout", took)
		}
		r.release(lock)
		r.wantDone("k-0")
		r.wantRuns(&p, 1)
		if err := mark.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A stopping server does not leave it there.
func TestCloseLeavesNoTaskInTheArchive(t *testing.T) {
	eachAsynq(t, func(r *rig, pausing string) {
		t := r.t
		var p probe
		s := r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1}), worker: worker.Config{Snooze: reserve}}, p.handler(succeed))
		r.byArchive()
		s.Shutdown()
		if err := s.worker.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if state, _ := r.task("k-0"); state != "pending" && state != pausing || state == "archived" {
			t.Errorf("the task is %s", state)
		}
		if st := r.status("%again:default/k-0"); st.Locked() {
			t.Errorf("the mark is %+v, want it released", st)
		}
	})
}

// If the process dies meanwhile the keeper of another takes the task out. So it does if
// the store of the locks was away too long to know.
func TestKeeperTakesATaskOutOfTheArchive(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		own := r.inspector
		hook := r.hang() // the process can do nothing more with its task
		s := r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1})}, p.handler(succeed))
		r.inspector = own
		lock := r.byArchive()
		r.until("the mark is left behind", func() bool { return r.status("%again:default/k-0").State == joblock.StateOrphaned })
		r.untilTask("k-0", "archived")
		s.Shutdown()
		r.release(lock)
		time.Sleep(every + time.Second)
		r.wantTask("k-0", "pending", 0)
		r.wantFreed("%again:default/k-0", "keeper: the task is back from the archive")
		hook.answer.Store(true)
		r.serve(service{use: overlap()}, p.handler(succeed))
		r.untilTask("k-0", "gone")
		r.wantRuns(&p, 1)
	})
}

// What is in the archive for another reason stays there, whatever marks are about.
func TestKeeperLeavesWhatHasFailedInTheArchive(t *testing.T) {
	kept(t, func(r *rig) {
		mark, err := r.locks.TryAcquire(context.Background(), keyspace.Again("default/a"), core.OwnKey)
		if err != nil {
			t.Fatal(err)
		}
		r.parkLock(mark, "a")
		r.submit("a", asynq.NewTask(taskType, nil), 0)
		if err := r.inspector.ArchiveTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + 2*every)
		r.wantTask("a", "archived", 0)
		if st := r.status("%again:default/a"); st.Locked() {
			t.Errorf("the mark is %+v, want it freed", st)
		}
	})
}

// A task that is snoozed once more while the store of the locks is away waits for that
// in place.
func TestStoreAwayWhenATaskIsMarked(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		lock := r.occupy("k")
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1}), asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
		park := r.refuse(faultstore.Park)
		r.plain(1, "k", 0, asynq.Timeout(10*time.Minute))
		time.Sleep(30 * time.Second)
		r.wantTask("k-0", "active", 0)
		r.untilPostponed("k-0") // a tenth of its time is over
		park()
		r.release(lock)
		r.untilTask("k-0", "gone")
		r.wantRuns(&p, 1)
		if told := p.heard(); len(told) != 0 {
			t.Errorf("the ErrorHandler heard %+v", told)
		}
	})
}

// However many tasks without retries want a busy key, few are in the archive at a time, even if they cannot be postponed:
// asynq deletes the oldest from one that has ten thousand.
func TestArchiveIsNotFilledByTasksThatAreSnoozed(t *testing.T) {
	onAsynq(t, true, func(r *rig) {
		var p probe
		lock := r.occupy("k")
		r.plain(600, "k", 0)
		// Each command takes time. Without, the hundred tasks that are not left in the archive would come back again and again
		// at one instant, which would never end.
		r.rdb.AddHook(beforehand{func(redis.Cmder) { time.Sleep(time.Millisecond) }})
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1}), worker: worker.Config{Snooze: reserve}}, p.handler(succeed))
		time.Sleep(500 * time.Millisecond) // all of them have been in it
		r.release(lock)
		start := time.Now()
		r.until("tasks that come out of the archive and run", func() bool { return p.count() >= 75 })
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("75 tasks have run after %s, want them at once: all but 500 of 600", took)
		}
	})
}
