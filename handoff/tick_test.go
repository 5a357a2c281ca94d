package handoff_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// asynq's Redis is away as a tick comes, so that nobody knows whether the tick's task exists. The retries find the key
// reserved for that task. When Redis is back, the task is enqueued: the tick is not done before.
func TestTicksDuringAnOutageAreNotLost(t *testing.T) {
	type enqueue = func(context.Context, scheduler.Tick) error
	task := asynq.NewTask("digest", nil)
	for name, with := range map[string]func(w *web) enqueue{
		"Reject": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs.EnqueueUnique, handoff.Unique{Key: "digest"}, task)
		},
		"Skip": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs.EnqueueUnique, handoff.Unique{Key: "digest", OnConflict: handoff.Skip}, task)
		},
		"Replace": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs.EnqueueUnique, handoff.Unique{Key: "digest", OnConflict: handoff.Replace}, task)
		},
		"KeepLast": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs.EnqueueUnique, handoff.Unique{Key: "digest", OnConflict: handoff.KeepLast}, task)
		},
		"sequence": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs.EnqueueInSequence, handoff.Sequence{Key: "digest"}, task)
		},
	} {
		for _, down := range []time.Duration{700 * time.Millisecond, 1800 * time.Millisecond, 4 * time.Second} {
			t.Run(name+" "+down.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					w.warm(t)
					s, err := scheduler.New(w.locks, &scheduler.Config{Scope: "shop", Logger: w.log.Text()})
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Task("digest", "0 0 1 1 *", with(w)); err != nil {
						t.Fatal(err)
					}
					ctx, stop := context.WithCancel(t.Context())
					ended := make(chan struct{})
					go func() { defer close(ended); _ = s.Run(ctx) }()
					defer func() { stop(); <-ended }()
					time.Sleep(200 * time.Millisecond)
					w.faults.setDown(errDown)
					time.AfterFunc(down, func() { w.faults.setDown(nil) })
					x, err := s.TriggerAndWait(t.Context(), "digest")
					if err != nil || x.State != scheduler.StateDone {
						t.Fatalf("the execution is %+v, %v", x, err)
					}
					time.Sleep(time.Minute) // whatever goes on in the background
					w.task(t, "default", x.Tick.ID())
				})
			})
		}
	}
}
