package handoff_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// asynq's Redis is away as a tick comes, so that it is unknown whether the tick's task exists. The retries find the key
// reserved for that task. When Redis is back, the task is enqueued: the tick is not done before.
func TestTicksDuringAnOutageAreNotLost(t *testing.T) {
	type enqueue = func(context.Context, scheduler.Tick) error
	task := asynq.NewTask("digest", nil)
	for name, with := range map[string]func(w *web) enqueue{
		"Reject": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs, handoff.Unique{Key: "digest"}, task)
		},
		"Skip": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs, handoff.Unique{Key: "digest", OnConflict: handoff.Skip}, task)
		},
		"Replace": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs, handoff.Unique{Key: "digest", OnConflict: handoff.Replace}, task)
		},
		"KeepLast": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs, handoff.Unique{Key: "digest", OnConflict: handoff.KeepLast}, task)
		},
		"CancelInProgress": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs, handoff.Unique{Key: "digest", OnConflict: handoff.CancelInProgress}, task)
		},
		"sequence": func(w *web) enqueue {
			return asynqtick.EnqueueWith(w.jobs, handoff.Sequence{Key: "digest"}, task)
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
					wait, err := admin.Of(s).Trigger(t.Context(), "digest")
					if err != nil {
						t.Fatal(err)
					}
					x, err := wait(t.Context())
					if err != nil || x.State != scheduler.Enqueued {
						t.Fatalf("the execution is %+v, %v", x, err)
					}
					time.Sleep(time.Minute) // whatever goes on in the background
					w.task(t, "default", x.Tick.ID())
				})
			})
		}
	}
}

// Entries of an asynqtick.Scheduler carry a lock by the option With. While the first task waits, however long, the ticks
// after it are skipped and have not failed; a task that is deleted frees the key, and the next tick has a task.
func TestEntriesThatCarryALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		var told []string // by the hook, for each tick
		s := asynqtick.NewScheduler(w.locks, &scheduler.Config{Scope: "shop", Logger: w.log.Text()}, w.rdb, &asynq.SchedulerOpts{
			PreEnqueueFunc: func(_ *asynq.Task, opts []asynq.Option) {
				for _, opt := range opts {
					if opt.Type() < 0 {
						t.Errorf("the hook gets %s, which asynq does not know", opt)
					}
				}
			},
			PostEnqueueFunc: func(info *asynq.TaskInfo, err error) {
				switch {
				case errors.Is(err, joblock.ErrHeld):
					told = append(told, "held")
				case err != nil || info == nil || info.Queue != "low":
					t.Errorf("the hook got %+v, %v", info, err)
				default:
					told = append(told, "task")
				}
			},
		})
		task := asynq.NewTask("digest", []byte("7"))
		key := handoff.TaskKey(task)
		if _, err := s.Register("@every 10m", task, asynq.Queue("low"), asynqtick.With(w.jobs, handoff.Unique{Key: key})); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		defer s.Shutdown()
		time.Sleep(time.Duration(-time.Now().UnixNano())%(10*time.Minute) + 35*time.Minute)
		st := wantState(t, w.locks, key, joblock.StateParked)
		queue, id, _ := strings.Cut(st.Job, "/")
		if err := w.inspector.DeleteTask(queue, id); err != nil || queue != "low" {
			t.Fatal(st.Job, err)
		}
		time.Sleep(20 * time.Minute)
		wantState(t, w.locks, key, joblock.StateParked)
		if want := []string{"task", "held", "held", "task", "held"}; !slices.Equal(told, want) {
			t.Errorf("the ticks had %q, want %q", told, want)
		}
		entries, err := admin.Of(s.Scheduler()).Entries(t.Context())
		if err != nil || len(entries) != 1 {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		if n := entries[0].Counts; n.Enqueued != 2 || n.Overlapped != 3 || n.Failed != 0 {
			t.Errorf("counts %+v, want 2 enqueued and 3 overlapped", n)
		}
	})
}
