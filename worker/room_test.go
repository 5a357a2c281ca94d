package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker"
)

// A crowd of short tasks with one key is soon through, although most of it was snoozed, and asynq looks for tasks whose pause
// is over only now and then: a Worker that releases the key runs the next ones.
func TestCrowdOfShortTasksIsSoonThrough(t *testing.T) {
	const tasks, stay = 30, 200 * time.Millisecond
	for _, concurrency := range []int{4, 10, 20} {
		for _, retries := range []int{0, 25} {
			t.Run(fmt.Sprintf("%d workers, %d retries", concurrency, retries), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					var c crowd
					start := time.Now()
					r.serve(service{use: overlap(), asynq: asynq.Config{
						Concurrency: concurrency, DelayedTaskCheckInterval: 5 * time.Second, ErrorHandler: p.ear(),
					}}, p.handler(func(context.Context, int) error { c.stay(stay); return nil }))
					r.plain(tasks, "k", retries)
					r.until("all have run", func() bool { return p.count() == tasks && p.running() == 0 })
					if took, ideal := time.Since(start), tasks*stay; took > 2*ideal {
						t.Errorf("it took %s, want some %s\n%s", took, ideal*3/2, r.log)
					}
					if c.most != 1 || len(p.heard()) != 0 {
						t.Errorf("%d ran at once, the ErrorHandler heard %+v", c.most, p.heard())
					}
				})
			})
		}
	}
}

// Only a task that is in its pause is run: one that has been archived or is retried after a failure stays where it is.
func TestTaskThatLeftItsPauseIsNotCalled(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		stays := asynq.Config{DelayedTaskCheckInterval: time.Hour}
		r.serve(service{use: overlap(worker.OverlapConfig{MaxWait: -1}), asynq: stays}, p.handler(only("k-1", func(context.Context, int) error { return errBoom })))
		lock := r.occupy("k")
		r.plain(1, "k", 5)
		r.untilTask("k-0", "retry")
		if err := r.inspector.ArchiveTask(queue, "k-0"); err != nil {
			t.Fatal(err)
		}
		r.release(lock)
		r.submit("k-1", asynq.NewTask(taskType, []byte("k")), 5)
		r.untilRetry("k-1", 1)
		time.Sleep(10 * time.Second)
		r.wantTask("k-0", "archived", 0)
		r.submit("k-2", asynq.NewTask(taskType, []byte("k")), 5)
		r.untilTask("k-2", "gone")
		time.Sleep(10 * time.Second)
		r.wantTask("k-1", "retry", 1)
		r.wantRuns(&p, 2)
	})
}

// Tasks that need no key run meanwhile: only few of the crowd are called at a time.
func TestCrowdDoesNotStarveTheServer(t *testing.T) {
	for _, concurrency := range []int{4, 10} {
		t.Run(fmt.Sprint(concurrency, " workers"), func(t *testing.T) {
			virtual(t, func(r *rig) {
				const others = 20
				var p, quick probe
				crowd := p.handler(deaf(200 * time.Millisecond))
				r.serve(service{use: overlap(), asynq: asynq.Config{Concurrency: concurrency}}, func(ctx context.Context, task *asynq.Task) error {
					if len(task.Payload()) > 0 {
						return crowd(ctx, task)
					}
					return quick.handler(succeed)(ctx, task)
				})
				r.plain(200, "k", 25)
				time.Sleep(10 * time.Second)
				start := time.Now()
				for i := range others {
					r.submit(fmt.Sprint("other-", i), asynq.NewTask(taskType, nil), 0)
				}
				r.until("the others have run", func() bool { return quick.count() == others })
				if took := time.Since(start); took > 5*time.Second || p.count() == 200 {
					t.Errorf("the others have run after %s, and %d of the crowd", took, p.count())
				}
			})
		})
	}
}
