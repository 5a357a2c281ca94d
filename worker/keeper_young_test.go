package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// A task that ends where no code of ours runs just after it was enqueued is no slower
// to free its lock than one that has waited for long. Only of one that was deleted it
// might be thought that it is still on its way.
func TestLockOfATaskThatEndsJustAfterItsEnqueue(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   []asynq.Option
		end    func(r *rig) error
		reason string
		within time.Duration
	}{
		{"archived", nil, func(r *rig) error { return r.inspector.ArchiveTask(queue, "a") }, archived, defaultEvery},
		{"completed", []asynq.Option{asynq.Retention(time.Hour)}, func(r *rig) error {
			var p probe
			r.serve(service{bare: true}, p.handler(succeed))
			return nil
		}, "keeper: the task is completed", defaultEvery},
		{"done", nil, func(r *rig) error {
			var p probe
			r.serve(service{bare: true}, p.handler(succeed))
			r.until("it ran", func() bool { return p.count() == 1 })
			return nil
		}, absent, time.Minute + defaultEvery},
		{"deleted", nil, func(r *rig) error { return r.inspector.DeleteTask(queue, "a") }, absent, time.Minute + defaultEvery},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{Interval: defaultEvery}})
				time.Sleep(time.Minute + 1234*time.Millisecond)
				r.enqueue("a", 1, append(tt.opts, asynq.ProcessIn(time.Millisecond))...)
				if err := tt.end(r); err != nil {
					t.Fatal(err)
				}
				if tt.within > defaultEvery { // the enqueue might still be under way
					time.Sleep(defaultEvery)
					r.wantState("key-a", joblock.StateParked, "a")
					time.Sleep(tt.within - defaultEvery)
				} else {
					time.Sleep(tt.within)
				}
				r.wantFreed("key-a", tt.reason)
			})
		})
	}
}

// However often the keeper checks a lock, the first check comes joblock.Config.JobGrace after the Park.
func TestFirstCheckOfALock(t *testing.T) {
	const jobGrace, interval = 20 * time.Second, 2 * time.Second
	virtual(t, func(r *rig) {
		r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{Interval: interval}})
		time.Sleep(time.Minute)
		r.enqueue("a", 1)
		if err := r.inspector.ArchiveTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(jobGrace - time.Millisecond)
		r.wantState("key-a", joblock.StateParked, "a")
		time.Sleep(interval)
		r.wantFreed("key-a", archived)
	})
}

// The ID of a task that has ended may be asked for again. The lock that is parked for
// an enqueue that asynq is about to refuse is not freed for what was there before.
func TestLockParkedForATaskIDThatIsTaken(t *testing.T) {
	kept(t, func(r *rig) {
		r.submit("a", asynq.NewTask(taskType, nil), 0)
		if err := r.inspector.ArchiveTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		r.park("a", "key-a")
		time.Sleep(time.Minute - time.Second)
		r.wantState("key-a", joblock.StateParked, "a")
		time.Sleep(every + 2*time.Second)
		r.wantFreed("key-a", archived)
	})
}

// However short the time for which a lock is reserved, the keeper comes before it is
// over.
func TestShortReservationsDoNotLapse(t *testing.T) {
	virtual(t, func(r *rig) {
		r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{Interval: defaultEvery}})
		for i := range 20 {
			time.Sleep(777 * time.Millisecond) // against the keeper's own rhythm
			id := string(rune('a' + i))
			lock := r.occupy("key-" + id)
			token, err := lock.Park(context.Background(), joblock.Reserve(3*time.Second), joblock.ForJob(envelope.Job(queue, id)))
			if err != nil {
				t.Fatal(err)
			}
			r.submit(id, r.seal(0, token), 1, asynq.ProcessIn(2*time.Hour))
		}
		for range 200 {
			time.Sleep(500 * time.Millisecond)
			for i := range 20 {
				id := string(rune('a' + i))
				r.wantState("key-"+id, joblock.StateParked, id)
			}
			if t.Failed() {
				return
			}
		}
		time.Sleep(reserve)
		r.wantState("key-a", joblock.StateParked, "a")
	})
}
