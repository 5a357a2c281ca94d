package worker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

// The locks' Redis stops answering as the handlers return. Their result is asynq's all
// the same, within the tasks' own time, however many locks each carries; the locks are
// given back when it answers again.
func TestResultReachesAsynqWhileTheLocksStoreHangs(t *testing.T) {
	for _, tt := range []struct {
		tasks, locks int
		timeout      time.Duration
	}{{1, 1, 3 * time.Second}, {1, 5, 10 * time.Second}, {100, 1, 3 * time.Second}, {10, 64, 3 * time.Second}, {1, 1, time.Second}} {
		t.Run(fmt.Sprintf("%d tasks with %d locks and %s", tt.tasks, tt.locks, tt.timeout), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				var ids, keys []string
				for i := range tt.tasks {
					id := fmt.Sprintf("task-%d", i)
					var mine []string
					for k := range tt.locks {
						mine = append(mine, fmt.Sprintf("%s-key-%d", id, k))
					}
					r.submit(id, r.seal(0, r.park(id, mine...)...), 1, asynq.Timeout(tt.timeout), asynq.Retention(time.Hour))
					ids, keys = append(ids, id), append(keys, mine...)
				}
				var in sync.WaitGroup
				in.Add(tt.tasks)
				r.serve(service{asynq: asynq.Config{Concurrency: tt.tasks}}, p.handler(func(context.Context, int) error {
					in.Done()
					in.Wait()
					r.faults.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Release, faultstore.Park, faultstore.Renew, faultstore.Resume, faultstore.Inspect)
					return nil
				}))
				for _, id := range ids {
					r.untilTask(id, "completed", "archived", "retry")
					r.wantTask(id, "completed", 0)
				}
				r.wantRuns(&p, tt.tasks)
				time.Sleep(5 * time.Second)
				r.faults.Clear()
				time.Sleep(10 * time.Second)
				for _, key := range keys {
					r.wantEnded(key, "job done")
				}
			})
		})
	}
}

// A failure with retries left is asynq's at once as well. Its locks are the job's until
// the next attempt, which is not charged for finding them busy.
func TestFailureReachesAsynqWhileTheLocksStoreHangs(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"hangs": faultstore.Hang, "hangs after it was applied": faultstore.HangApplied} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				tokens := r.park("a", "key-a", "key-b", "key-c")
				r.submit("a", r.seal(1, tokens...), 2, asynq.Timeout(3*time.Second), asynq.Retention(time.Hour))
				r.serve(service{asynq: asynq.Config{RetryDelayFunc: atOnce}}, p.handler(first(func(context.Context, int) error {
					r.faults.Set(faultstore.Fault{Mode: mode}, faultstore.Park, faultstore.Renew)
					return errBoom
				})))
				r.until("retried", func() bool { _, info := r.task("a"); return info.Retried == 1 })
				if _, info := r.task("a"); info.LastErr != "boom" && !strings.HasPrefix(info.LastErr, "worker: snoozed") {
					t.Errorf("asynq got %q, want the handler's own error", info.LastErr)
				}
				time.Sleep(5 * time.Second)
				r.faults.Clear()
				r.untilTask("a", "completed", "archived")
				r.wantTask("a", "completed", 1)
				r.wantRuns(&p, 2)
				for _, key := range []string{"key-a", "key-b", "key-c"} {
					r.wantEnded(key, "job done")
				}
			})
		})
	}
}

// Close waits for what is settled behind asynq's back.
func TestCloseWaitsForWhatIsSettledBehindAsynq(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0)
		s := r.serve(service{}, p.handler(func(context.Context, int) error {
			r.faults.Set(faultstore.Fault{Mode: faultstore.Late, Delay: 2500 * time.Millisecond}, faultstore.Release)
			return nil
		}))
		r.untilTask("a", "gone", "archived")
		r.wantState("key-a", joblock.StateHeld, "a")
		s.Shutdown()
		if err := s.worker.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.wantEnded("key-a", "job done")
	})
}
