package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/worker"
)

// The web keeps its locks in one place, and the workers keep theirs in another, and both have a common secret. Jobs run
// without the web's locks, loudly. The keys in the web's place are free soon after the jobs, although no keeper sees them.
func TestWorkerInAnotherPlaceLeavesNoKeyTaken(t *testing.T) {
	for name, run := range map[string]error{"succeeds": nil, "fails for good": asynq.SkipRetry} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				const secret joblock.Secret = "shared by web and workers"
				r.locks = r.newLockerOn(r.faults, secret)
				var p probe
				web, account := r.line().jobs, handoff.Unique{Key: "account"}
				if _, err := web.Enqueue(context.Background(), account, asynq.NewTask(taskType, nil, asynq.TaskID("a"))); err != nil {
					t.Fatal(err)
				}
				there := r.newLockerOn(memstore.New(&memstore.Config{Silent: true}), secret)
				r.keep(there, worker.Config{})
				r.serve(service{locks: there}, p.handler(func(ctx context.Context, _ int) error {
					time.Sleep(5 * time.Minute)
					return run
				}))
				time.Sleep(4 * time.Minute)
				r.wantState("account", joblock.StateParked, "a") // the job runs
				time.Sleep(time.Minute + 2*defaultEvery)
				r.wantRuns(&p, 1)
				r.wantState("account", joblock.StateFree, "a")
				r.wantTrustErrors("uses a different Redis, database or prefix", "without taking its lock")
			})
		})
	}
}
