package worker_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// A job that waits for longer than any reservation does not lose its lock, though
// all workers are down for half an hour of it.
func TestLockOfAScheduledJobNeverLapses(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.ProcessIn(2*time.Hour))
		watch := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Minute) {
				r.wantState("key-a", joblock.StateParked, "a")
				r.wantHeld("key-a")
			}
		}
		_, stop := r.keep(r.locks, worker.Config{})
		watch(time.Hour)
		stop()
		watch(30 * time.Minute)
		r.keep(r.locks, worker.Config{})
		watch(20 * time.Minute)
		r.serve(service{}, p.handler(succeed))
		watch(5 * time.Minute)
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 1)
	})
}

func TestLockOfADeletedJobIsFreeWithinOnePeriod(t *testing.T) {
	kept(t, func(r *rig) {
		r.enqueue("a", 0, asynq.ProcessIn(2*time.Hour))
		time.Sleep(time.Hour)
		r.wantState("key-a", joblock.StateParked, "a")
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every + time.Second) // what falls into the same instant may come in any order
		r.wantFreed("key-a", "keeper: the task does not exist")
	})
}
