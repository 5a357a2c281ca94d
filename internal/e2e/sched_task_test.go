package e2e

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// A task that carries a lock, enqueued by the clock on two nodes: while one is queued or
// running the ticks that come are skipped, and no two are at work at once.
func TestScheduledTaskCarriesALock(t *testing.T) {
	t.Parallel()
	var inside, done atomic.Int32
	a := newApp(t, func(ctx context.Context, task *asynq.Task) error {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d at work", n)
		}
		defer inside.Add(-1)
		if _, ok := joblock.FromContext(ctx); !ok {
			t.Error("the task came without its lock")
		}
		time.Sleep(2500 * time.Millisecond)
		done.Add(1)
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var nodes sync.WaitGroup
	t.Cleanup(func() { stop(); nodes.Wait() })
	var last *scheduler.Scheduler
	for range 2 {
		locks := newLocks(t, a.addr, nil)
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "e2e", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Task("digest", "@every 1s", asynqtick.Once(func(ctx context.Context, tick scheduler.Tick) error {
			_, err := a.jobs.EnqueueUnique(ctx, handoff.Unique{Key: "digest"}, asynq.NewTask("job", nil), asynq.TaskID(tick.ID()))
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
		nodes.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		last = s
	}
	await(t, "three tasks", func() bool { return done.Load() >= 3 })
	e, err := last.Entry(t.Context(), "digest")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tasks done, counts %+v", done.Load(), e.Counts)
	if e.Counts.Done < 3 || e.Counts.Overlapped < 3 || e.Counts.Failed > 0 {
		t.Errorf("counts %+v, want at least three done, three overlapped, none failed", e.Counts)
	}
	stop()
	nodes.Wait()
	a.awaitFree(t, "digest")
}
