package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// setLimit sets a named limit as an operator does.
func (r *rig) setLimit(name string, n int) {
	r.t.Helper()
	r.change(func(set *controls.Set, _ int64, now time.Time) {
		set.Clear(name)
		set.Limits = append(set.Limits, controls.Limit{Name: name, Value: n, By: "alice", Since: now})
	})
}

func (c *crew) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running)
}

// An operator raises the limit of a sequence, and more jobs start within a second or two, although none has ended. The operator
// lowers it, and the jobs that run go on; once they have ended, no more run than the new limit allows. The order stays, and at
// the end all slots are free.
func TestNamedLimitOfASequence(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var c crew
		r.keep(r.locks, worker.Config{})
		w := r.serve(service{}, func(ctx context.Context, _ *asynq.Task) error { c.work(ctx, time.Minute); return nil })
		r.keepOf(w.worker)
		var ids []string
		for i := range 16 {
			ids = append(ids, fmt.Sprintf("job-%02d", i))
		}
		l.add(handoff.Sequence{Limit: 2, LimitName: "provider"}, ids...)
		wantNow := func(n int) {
			t.Helper()
			time.Sleep(3 * time.Second) // asynq looks once a second
			if got := c.now(); got != n {
				t.Errorf("%d jobs run, want %d\n%s", got, n, r.log)
			}
		}
		wantNow(2)
		r.setLimit("provider", 5)
		wantNow(5)
		r.setLimit("another", 9)
		wantNow(5)
		r.setLimit("provider", 1)
		wantNow(5)
		time.Sleep(time.Minute)
		wantNow(1)
		time.Sleep(time.Minute)
		wantNow(1)
		r.setLimit("provider", 3)
		wantNow(3)
		for _, id := range ids {
			r.untilTask(id, "gone")
		}
		for i, id := range ids { // those that start together start in any order
			if at := slices.Index(c.started, id); at-i >= 5 || i-at >= 5 {
				t.Errorf("%s was started as number %d", id, at)
			}
		}
		if c.most != 5 || len(c.wrong) > 0 || len(c.started) != len(ids) {
			t.Errorf("at most %d ran at a time, in the order %q; wrong: %q", c.most, c.started, c.wrong)
		}
		time.Sleep(time.Second)
		l.wantFreeSlots(5)
		l.wantLine()
	})
}

// An operator changes how many tasks of a key WithoutOverlapping runs at a time.
func TestNamedLimitOfWithoutOverlapping(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{asynq: asynq.Config{Concurrency: 20}, use: overlap(worker.OverlapConfig{MaxConcurrent: 2, LimitName: "provider"})},
			p.handler(func(context.Context, int) error { time.Sleep(30 * time.Second); return nil }))
		ids := r.plain(40, "k", 1)
		for _, want := range []int{2, 4, 1} {
			if want != 2 {
				r.setLimit("provider", want)
			}
			time.Sleep(45 * time.Second) // those that ran, or were about to, have ended
			most := 0
			for range 90 {
				time.Sleep(time.Second)
				most = max(most, p.running())
			}
			if most != want {
				t.Errorf("up to %d run at a time, want %d", most, want)
			}
		}
		r.setLimit("provider", 1000) // as for a rate: it counts as 256
		r.wantDone(ids...)
	})
}

// How many run at a time may depend on the task.
func TestMaxConcurrentOf(t *testing.T) {
	plans := map[string]int{"free": 1, "pro": 3, "none": 0, "too many": 257}
	virtual(t, func(r *rig) {
		var mu sync.Mutex
		running, most, runs := make(map[string]int), make(map[string]int), make(map[string]int)
		var p probe
		of := worker.OverlapConfig{MaxConcurrentOf: func(_ context.Context, task *asynq.Task) int { return plans[string(task.Payload())] }}
		r.serve(service{use: overlap(of), asynq: asynq.Config{Concurrency: 20, ErrorHandler: p.ear()}}, func(_ context.Context, task *asynq.Task) error {
			plan := string(task.Payload())
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				running[plan] += n
				runs[plan] += max(0, n)
				most[plan] = max(most[plan], running[plan])
			}
			count(1)
			defer count(-1)
			time.Sleep(10 * time.Second)
			return nil
		})
		ids := append(r.plain(5, "free", 1), r.plain(9, "pro", 1)...)
		r.wantDone(ids...)
		for plan, n := range plans {
			if n == 0 || n > 256 {
				bad := r.plain(1, plan, 0)
				r.untilTask(bad[0], "archived")
			} else if most[plan] != n {
				t.Errorf("of %s up to %d ran at a time, want %d", plan, most[plan], n)
			}
		}
		if runs["none"]+runs["too many"] > 0 {
			t.Errorf("ran %v", runs)
		}
		for _, told := range p.heard() {
			if !errors.Is(told.err, joblock.ErrInvalid) {
				t.Errorf("a bad number gives %v, want ErrInvalid", told.err)
			}
		}
	})
}

func TestLimitNameIsChecked(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		for name, cfg := range map[string]worker.OverlapConfig{
			"without MaxConcurrent": {LimitName: "p"},
			"too long":              {MaxConcurrent: 1, LimitName: strings.Repeat("x", 129)},
		} {
			h := overlap(cfg)[0](r.newWorker(r.locks, worker.Config{}))(asynq.NotFoundHandler())
			if err := h.ProcessTask(context.Background(), asynq.NewTask(taskType, []byte("k"))); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		for name, s := range map[string]handoff.Sequence{
			"halts":        {Key: "k", LimitName: "p", HaltOnFailure: true},
			"too long":     {Key: "k", LimitName: strings.Repeat("x", 129)},
			"key too long": {Key: strings.Repeat("k", 510), LimitName: "p"},
		} {
			if _, err := l.jobs.Enqueue(context.Background(), s, asynq.NewTask(taskType, nil)); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
	})
}
