//go:build servers

package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// Many tasks on few keys, some of which fail at first, on a real Redis: all are
// done, and under each key one at a time, with growing fences.
func TestManyTasksOnRedis(t *testing.T) {
	const tasks, keys = 200, 40
	r := onRedis(t, time.Minute)
	ctx := context.Background()
	var p probe
	var mu sync.Mutex
	inside, fences := map[string]int{}, map[string]int64{}

	for i := range tasks {
		id := fmt.Sprintf("task-%03d", i)
		key := fmt.Sprintf("key-%02d", i%keys)
		if i >= keys { // the key is another task's: these two will contend
			if err := r.locks.ForceRelease(ctx, key, joblock.Reason("test")); err != nil {
				t.Fatal(err)
			}
		}
		r.submit(id, r.seal(1, r.park(id, key)...), 2)
	}
	r.serve(service{
		worker: worker.Config{Snooze: time.Second},
		asynq: asynq.Config{
			Concurrency: 20, RetryDelayFunc: atOnce,
			TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
		},
	}, p.handler(func(ctx context.Context, n int) error {
		lock, _ := joblock.FromContext(ctx)
		mu.Lock()
		inside[lock.Key()]++
		if inside[lock.Key()] > 1 {
			t.Errorf("two handlers under %q at once", lock.Key())
		}
		if lock.Fence() <= fences[lock.Key()] {
			t.Errorf("fence %d under %q after %d", lock.Fence(), lock.Key(), fences[lock.Key()])
		}
		fences[lock.Key()] = lock.Fence()
		mu.Unlock()
		time.Sleep(time.Millisecond) // room for another handler to be caught inside
		mu.Lock()
		inside[lock.Key()]--
		mu.Unlock()
		if retried, _ := asynq.GetRetryCount(ctx); retried == 0 && n%5 == 0 {
			return errBoom
		}
		return nil
	}))
	r.until("all tasks are done", func() bool {
		info, err := r.inspector.GetQueueInfo(queue)
		if err != nil {
			t.Fatal(err)
		}
		if info.Archived > 0 {
			t.Fatalf("%d tasks were archived", info.Archived)
		}
		return info.Size == 0
	})
	for i := range keys {
		r.wantEnded(fmt.Sprintf("key-%02d", i), "job done")
	}
	if n := p.count(); n < tasks {
		t.Errorf("%d runs of %d tasks", n, tasks)
	}
}

// The life of a task that fails, is aborted by a shutdown, and is finished by
// another server, on a real Redis.
func TestAbortOnRedis(t *testing.T) {
	r := onRedis(t, time.Minute)
	var p probe
	r.enqueue("a", 1)
	quick := asynq.Config{
		ShutdownTimeout: 100 * time.Millisecond, RetryDelayFunc: atOnce,
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
	}
	locks := r.newLockerOn(testkit.Must(redisstore.New(r.rdb, nil))) // a Locker closes its store
	srv := r.serve(service{locks: locks, asynq: quick}, p.handler(func(ctx context.Context, n int) error {
		if n == 1 {
			return errBoom
		}
		return tidy(300*time.Millisecond)(ctx, n)
	}))
	r.until("the second attempt runs", func() bool { return p.count() == 2 && p.running() == 1 })
	r.serve(service{asynq: quick}, p.handler(succeed))
	start := time.Now()
	r.stop(srv, locks)
	r.untilTask("a", "gone", "archived")
	if took := time.Since(start); took > r.ttl/2 {
		t.Errorf("the job was done %s after its first server began to stop: it has waited for the lease", took)
	}
	r.wantTask("a", "gone", 0)
	r.wantEnded("key-a", "job done")
	r.wantRuns(&p, 3)
	if p.most() != 1 {
		t.Errorf("%d attempts ran at once, want 1", p.most())
	}
}

// A worker killed in the middle of the last attempt, on a real Redis.
func TestCrashOnRedis(t *testing.T) {
	for retries := range 2 {
		t.Run(fmt.Sprintf("%d retries", retries), func(t *testing.T) {
			r := onRedis(t, 2*time.Second)
			var p probe
			r.crash("a", r.enqueue("a", retries))
			r.serve(service{asynq: asynq.Config{
				RetryDelayFunc: atOnce, ErrorHandler: p.ear(),
				TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
			}}, p.handler(succeed))
			r.untilTask("a", "gone", "archived")
			r.untilFree("key-a")
			if retries == 0 {
				r.wantTask("a", "archived", 1)
				r.wantEnded("key-a", "job failed")
				r.wantRuns(&p, 0)
				if told := p.heard(); len(told) != 1 || told[0].err != asynq.ErrLeaseExpired {
					t.Errorf("the ErrorHandler heard %+v, want one asynq.ErrLeaseExpired", told)
				}
				return
			}
			r.wantTask("a", "gone", 0)
			r.wantEnded("key-a", "job done")
			r.wantRuns(&p, 1)
		})
	}
}

// Tasks that must not overlap on a real Redis, with two servers.
func TestWithoutOverlappingOnRedis(t *testing.T) {
	const tasks, keys = 120, 12
	r := onRedis(t, time.Minute)
	var p probe
	var crowds [keys]crowd
	for i := range tasks {
		r.submit(fmt.Sprint("task-", i), asynq.NewTask(taskType, fmt.Append(nil, i%keys)), i%2)
	}
	for range 2 {
		r.serve(service{
			use: overlap(), locks: r.newLocker(), worker: worker.Config{Snooze: time.Second},
			asynq: asynq.Config{
				Concurrency: 20, ErrorHandler: p.ear(),
				TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
			},
		}, p.handler(func(ctx context.Context, _ int) error {
			lock, _ := joblock.FromContext(ctx)
			var i int
			if _, err := fmt.Sscan(lock.Key(), &i); err != nil {
				return err
			}
			crowds[i].stay(time.Millisecond)
			return nil
		}))
	}
	for i := range tasks {
		r.wantDone(fmt.Sprint("task-", i))
	}
	r.wantRuns(&p, tasks)
	for i := range crowds {
		if crowds[i].most != 1 {
			t.Errorf("%d tasks with key %d ran at once", crowds[i].most, i)
		}
	}
	if told := p.heard(); len(told) != 0 {
		t.Errorf("the ErrorHandler heard %+v", told)
	}
}
