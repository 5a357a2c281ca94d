package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// The task of a group stands for all members. A call about the key of one member must not delete the task, and so end the
// work of the others: whether they carry locks or not, and also if the aggregator has chosen the task's ID.
func TestAggregateIsNotReplaced(t *testing.T) {
	ids := map[string][]asynq.Option{"": {}, "chosen": {asynq.TaskID("chosen")}}
	for policy, onConflict := range map[string]handoff.OnConflict{"Replace": handoff.Replace, "KeepLast": handoff.KeepLast, "CancelInProgress": handoff.CancelInProgress} {
		for _, others := range []string{"unique jobs", "plain tasks"} {
			for id, opts := range ids {
				t.Run(strings.TrimSpace(policy+", "+others+" "+id), func(t *testing.T) {
					kept(t, func(r *rig) {
						l := r.line()
						unique := func(id string) (handoff.Result, error) {
							return l.jobs.Enqueue(context.Background(), handoff.Unique{Key: "key-" + id, OnConflict: onConflict},
								asynq.NewTask(taskType, []byte(id)), asynq.Group("g"))
						}
						var p probe
						var b handoff.Result
						for _, id := range []string{"a", "b", "c"} {
							if others == "plain tasks" && id != "b" {
								r.submit(id, asynq.NewTask(taskType, []byte(id)), 0, asynq.Group("g"))
								continue
							}
							got, err := unique(id)
							if err != nil {
								t.Fatal(err)
							}
							if id == "b" {
								b = got
							}
						}
						r.group(func(members []*asynq.Task) *asynq.Task {
							var all []byte
							for _, m := range members {
								all = append(all, m.Payload()...)
							}
							return asynq.NewTask(taskType, all, append(opts, asynq.ProcessIn(5*time.Minute))...)
						}, p.handler(succeed))
						var job *asynq.TaskInfo
						r.until("the group is aggregated", func() bool {
							waiting, err := r.inspector.ListScheduledTasks(queue)
							if err == nil && len(waiting) == 1 {
								job = waiting[0]
							}
							return job != nil
						})
						got, err := unique("b")
						if _, id, _ := handoff.JobOf(err); !errors.Is(err, joblock.ErrHeld) || got.Task != nil || id != job.ID || !strings.Contains(err.Error(), "3 tasks of a group") {
							t.Errorf("b again: %+v, %v; want an ErrHeld that names the task of the group and says why", got, err)
						}
						if err := l.jobs.Withdraw(context.Background(), b); !errors.Is(err, joblock.ErrNotFound) {
							t.Errorf("withdraw b: %v, want ErrNotFound", err)
						}
						whole, err := l.jobs.Job(context.Background(), "key-b")
						if err != nil || whole.Task.ID != job.ID {
							t.Fatalf("the job of key-b: %+v, %v; want the task of the group", whole.Task, err)
						}
						for call, err := range map[string]error{
							"withdraw":   l.jobs.Withdraw(context.Background(), whole),
							"reschedule": l.jobs.Reschedule(context.Background(), whole, time.Now().Add(time.Hour)),
						} {
							if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), "3 tasks of a group") {
								t.Errorf("%s the job of key-b: %v, want ErrInvalid that names the group", call, err)
							}
						}
						r.wantTask(job.ID, "scheduled", 0)
						r.wantRuns(&p, 0)
						r.until("the task of the group has run", func() bool { return p.count() == 1 })
						r.untilFree("key-b")
						if got, err := unique("b"); err != nil || got.Replaced != nil {
							t.Errorf("b after the group: %+v, %v; want it enqueued", got, err)
						}
					})
				})
			}
		}
	}
}

// Nor does the loss of one member's lock end the work of the others.
func TestAggregateRunsThoughOneOfItsLocksIsGone(t *testing.T) {
	for _, gone := range []policy{skipping, failing} {
		t.Run(string(gone), func(t *testing.T) {
			kept(t, func(r *rig) {
				var p probe
				r.enqueue("a", 3, asynq.Group("g"))
				r.enqueue("b", 3, asynq.Group("g"))
				r.serve(service{worker: worker.Config{OnLockLost: gone.decide}, asynq: asynq.Config{
					GroupGracePeriod: 10 * time.Second,
					GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task {
						return asynq.NewTask(taskType, nil, asynq.TaskID("ab"), asynq.ProcessIn(5*time.Minute))
					}),
				}}, p.handler(succeed))
				r.untilTask("ab", "scheduled")
				if err := r.locks.ForceRelease(context.Background(), "key-b", joblock.Reason("by hand")); err != nil {
					t.Fatal(err)
				}
				r.until("the task of the group has run", func() bool { return p.count() == 1 })
				r.wantEnded("key-a", "job done")
				r.wantEnded("key-b", "job done")
			})
		})
	}
}
