//go:build servers

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
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// A task that carries a lock, enqueued by the clock on two nodes: while one is queued or
// running the ticks that come are skipped, and no two are at work at once.
func TestScheduledTaskCarriesALock(t *testing.T) {
	t.Parallel()
	var inside, done atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	var node atomic.Pointer[admin.Admin]
	counts := func() admin.Counts {
		e, err := node.Load().Entry(context.Background(), "digest")
		if err != nil {
			t.Error(err)
		}
		return e.Counts
	}
	a := newApp(t, func(job context.Context, task *asynq.Task) error {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d at work", n)
		}
		defer inside.Add(-1)
		if _, ok := joblock.FromContext(job); !ok {
			t.Error("the task came without its lock")
		}
		for before := counts().Overlapped; counts().Overlapped == before && ctx.Err() == nil; { // a tick is skipped meanwhile
			time.Sleep(20 * time.Millisecond)
		}
		done.Add(1)
		return nil
	})
	var nodes sync.WaitGroup
	t.Cleanup(func() { stop(); nodes.Wait() })
	for range 2 {
		locks := newLocks(t, a.addr, nil)
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "e2e", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Task("digest", "@every 1s", asynqtick.Once(func(ctx context.Context, tick scheduler.Tick) error {
			_, err := a.jobs.Enqueue(ctx, handoff.Unique{Key: "digest"}, asynq.NewTask("job", nil), asynq.TaskID(tick.ID()))
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
		node.Store(admin.Of(s))
		nodes.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	await(t, "three tasks, and the ledger to have their ticks", func() bool {
		c := counts()
		return done.Load() >= 3 && c.Enqueued >= 3 && c.Overlapped >= 3
	})
	t.Logf("%d tasks done, counts %+v", done.Load(), counts())
	if n := counts().Failed; n > 0 {
		t.Errorf("%d ticks failed", n)
	}
	stop()
	nodes.Wait()
	a.awaitFree(t, "digest")
}
