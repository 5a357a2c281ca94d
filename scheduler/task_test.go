package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

func (n *node) addTask(name, spec string, enqueue func(context.Context, scheduler.Tick) error, opts ...scheduler.Option) {
	n.c.Helper()
	if err := n.Task(name, spec, enqueue, opts...); err != nil {
		n.c.Fatal(err)
	}
}

// queue takes one task per ID, as asynq does.
type queue struct {
	ids   []string
	calls int
}

func (q *queue) enqueue(id string) error {
	q.calls++
	if slices.Contains(q.ids, id) {
		return fmt.Errorf("queue: %w", asynq.ErrTaskIDConflict)
	}
	q.ids = append(q.ids, id)
	return nil
}

// A node dies after it has enqueued and before that is on record. The next node finds that
// the task exists.
func TestTaskIsEnqueuedOnceThoughItsNodeDies(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var q queue
		start := time.Now()
		for range 2 {
			n := c.node(0)
			n.addTask("digest", "@every 10m", asynqtick.Once(func(_ context.Context, tick scheduler.Tick) error {
				err := q.enqueue(tick.ID())
				if q.calls == 1 {
					n.cut()
				}
				return err
			}))
			n.start()
		}
		until(start, 35*min)
		var want []string
		for i := 1; i <= 3; i++ {
			want = append(want, fmt.Sprintf("digest@%d", start.Add(time.Duration(i)*10*min).Unix()))
		}
		if !slices.Equal(q.ids, want) || q.calls != 4 {
			t.Errorf("enqueued %v in %d calls, want %v in 4", q.ids, q.calls, want)
		}
		if n := len(c.events.of(scheduler.Enqueued)); n != 3 {
			t.Errorf("%d ticks are done, want 3", n)
		}
	})
}

func TestEnqueueIsTriedAgain(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		calls := 0
		away := errors.New("queue away")
		n.addTask("digest", "@every 10m", func(context.Context, scheduler.Tick) error {
			if calls++; calls < 4 {
				return away
			}
			return nil
		})
		fails := 0
		n.addTask("never", "@every 10m", func(context.Context, scheduler.Tick) error { fails++; return away }, scheduler.Retry(2, sec, sec))
		n.start()
		until(start, 11*min)
		if done := c.events.of(scheduler.Enqueued); len(done) != 1 || done[0].Attempts != 4 || done[0].Took < 7*sec {
			t.Errorf("done %+v, want at the fourth attempt, after pauses of 1, 2 and 4 s", done)
		}
		if failed := c.events.of(scheduler.Failed); len(failed) != 1 || !errors.Is(failed[0].Err, away) || fails != 3 {
			t.Errorf("failed %+v after %d calls", failed, fails)
		}
	})
}

// Task does not know asynq: a conflict counts as success only in asynqtick.
func TestAReturnedConflictIsAFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		wrap func(func(context.Context, scheduler.Tick) error) func(context.Context, scheduler.Tick) error
		kind scheduler.Kind
		want int
	}{
		"returned": {nil, scheduler.Failed, 6},
		"in Once":  {asynqtick.Once, scheduler.Enqueued, 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start := time.Now()
				enqueue := func(context.Context, scheduler.Tick) error {
					return fmt.Errorf("queue: %w", asynq.ErrTaskIDConflict)
				}
				if tc.wrap != nil {
					enqueue = tc.wrap(enqueue)
				}
				n := c.node(0)
				n.addTask("digest", "@every 10m", enqueue)
				n.start()
				until(start, 12*min)
				if got := c.events.of(tc.kind); len(got) != 1 || got[0].Attempts != tc.want {
					t.Errorf("%s: %+v, want one after %d attempts", tc.kind, got, tc.want)
				}
			})
		})
	}
}

// The task carries a lock of its own for 25 minutes. Ticks come every 10 minutes and find it
// held.
func TestTaskOverlaps(t *testing.T) {
	for name, tc := range map[string]struct {
		opts    []scheduler.Option
		want    []time.Duration
		skipped int64
	}{
		"skipped": {nil, []time.Duration{10 * min, 40 * min}, 4},
		"queued":  {[]scheduler.Option{scheduler.OverlapNewest()}, []time.Duration{10 * min, 20 * min, 30 * min}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start := time.Now()
				var got []time.Duration
				for range 2 {
					n := c.node(0)
					n.addTask("digest", "@every 10m", func(ctx context.Context, tick scheduler.Tick) error {
						lock, err := n.locks.TryAcquire(ctx, "digest")
						if err != nil {
							return err
						}
						got = append(got, tick.At.Sub(start))
						time.AfterFunc(25*min, func() { _ = lock.Release(context.Background()) }) // the task is done
						return nil
					}, tc.opts...)
					n.start()
				}
				until(start, 62*min)
				if fmt.Sprint(got) != fmt.Sprint(tc.want) {
					t.Errorf("enqueued for %v, want %v", got, tc.want)
				}
				e, err := c.nodes[0].Entry(c.Context(), "digest")
				wantNil(t, "Entry", err)
				if e.Counts.Overlapped != tc.skipped || e.Counts.Failed != 0 {
					t.Errorf("counts %+v, want %d overlapped", e.Counts, tc.skipped)
				}
				if n := c.count(scheduler.Overlapped); int64(n) != tc.skipped {
					t.Errorf("%d ticks reported as overlapped, want %d", n, tc.skipped)
				}
				time.Sleep(25 * min)
			})
		})
	}
}

// The lock is reserved for the task of the same tick, and that task does not exist: the node that was to enqueue the task
// has died. The tick is not done until the lock is free and the task is enqueued.
func TestLockOfTheTicksOwnTask(t *testing.T) {
	held := func(job string) error {
		return &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Job: "default/" + job}
	}
	for name, tc := range map[string]struct {
		freed    time.Duration // after the first call; 0 for never
		kind     scheduler.Kind
		attempts int
	}{
		"the keeper frees the lock": {95 * sec, scheduler.Enqueued, 1},
		"no keeper frees the lock":  {0, scheduler.Failed, 6},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start := time.Now()
				n := c.node(0)
				var first time.Time
				n.addTask("digest", "@every 10m", func(_ context.Context, tick scheduler.Tick) error {
					if first.IsZero() {
						first = time.Now()
					}
					if tc.freed > 0 && time.Since(first) >= tc.freed {
						return nil
					}
					return held(tick.ID())
				})
				n.addTask("other", "@every 10m", func(_ context.Context, tick scheduler.Tick) error { return held("x" + tick.ID()) })
				n.start()
				until(start, 15*min)
				var got []event
				for _, kind := range []scheduler.Kind{scheduler.Enqueued, scheduler.Failed} {
					got = append(got, c.events.of(kind)...)
				}
				if len(got) != 1 || got[0].Tick.Name != "digest" || got[0].Kind != tc.kind || got[0].Attempts != tc.attempts {
					t.Errorf("got %+v, want digest %s after %d attempts", got, tc.kind, tc.attempts)
				}
				if tc.kind == scheduler.Failed && len(got) == 1 && !errors.Is(got[0].Err, joblock.ErrHeld) {
					t.Errorf("the tick failed with %v, want ErrHeld", got[0].Err)
				}
				if skipped := c.events.of(scheduler.Overlapped); len(skipped) != 1 || skipped[0].Tick.Name != "other" {
					t.Errorf("overlapped %+v, want other", skipped)
				}
			})
		})
	}
}
