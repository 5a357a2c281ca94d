package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker"
)

// crew counts the jobs of one sequence that run at a time.
type crew struct {
	mu      sync.Mutex
	running map[string]string // the job that runs, by slot
	started []string          // the jobs, each at its first run
	most    int
	wrong   []string
}

// work runs d long under the slot of the job.
func (c *crew) work(ctx context.Context, d time.Duration) {
	id, _ := asynq.GetTaskID(ctx)
	lock, _ := joblock.FromContext(ctx)
	slot := lock.Key()
	c.mu.Lock()
	if c.running == nil {
		c.running = make(map[string]string)
	}
	if line, _ := driver.LineOf(slot); line != seqKey || c.running[slot] != "" {
		c.wrong = append(c.wrong, fmt.Sprintf("%s runs in slot %s at the same time as %q", id, slot, c.running[slot]))
	}
	c.running[slot] = id
	if !slices.Contains(c.started, id) {
		c.started = append(c.started, id)
	}
	c.most = max(c.most, len(c.running))
	c.mu.Unlock()
	time.Sleep(d)
	c.mu.Lock()
	delete(c.running, slot)
	c.mu.Unlock()
}

// wantFreeSlots checks that no job has a slot of the sequence.
func (l *line) wantFreeSlots(limit int) {
	l.t.Helper()
	for n := range limit {
		st, err := l.locks.Status(context.Background(), driver.SlotKey(seqKey, n+1))
		if err != nil || st[0].Locked() {
			l.t.Errorf("slot %d is %+v, %v, want it free", n+1, st, err)
		}
	}
}

// As many jobs run at a time as the Limit says, they start in the order of their enqueues, and a job that fails keeps its
// slot until its retry has ended.
func TestSeveralJobsOfASequenceAtATime(t *testing.T) {
	const limit, n = 3, 12
	virtual(t, func(r *rig) {
		l := r.line()
		var c crew
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprintf("job-%02d", i))
		}
		l.add(handoff.Sequence{Limit: limit}, ids...)
		l.wantLine(ids[limit:]...)
		var p probe
		r.serve(service{}, p.handler(func(ctx context.Context, run int) error {
			id, _ := asynq.GetTaskID(ctx)
			c.work(ctx, time.Duration(10+len(id)+int(id[len(id)-1]))*time.Second)
			if id == "job-04" && run < 2*n {
				if retried, _ := asynq.GetRetryCount(ctx); retried == 0 {
					return errBoom
				}
			}
			return nil
		}))
		for _, id := range ids {
			l.untilTask(id, "gone")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.wrong) > 0 || c.most != limit {
			t.Errorf("%d jobs ran at a time, want %d; %q", c.most, limit, c.wrong)
		}
		for i, id := range ids { // handlers that are called at the same instant note their starts in any order
			if at := slices.Index(c.started, id); max(at-i, i-at) >= limit {
				t.Errorf("started in the order %q, want %q", c.started, ids)
				break
			}
		}
		if p.count() != n+1 {
			t.Errorf("%d runs, want %d and one retry", p.count(), n)
		}
		l.wantLine()
		time.Sleep(time.Minute)
		l.wantFreeSlots(limit)
	})
}

// A job that has waited finds its slot, whichever slot that is, even if its task is run too early.
func TestJobFindsItsSlot(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		first := l.hold() // slot 1
		s := handoff.Sequence{Limit: 2}
		l.addOne(s, "a", asynq.MaxRetry(1))
		l.addOne(s, "b", asynq.MaxRetry(1))
		l.wantLine("b")
		var c crew
		r.serve(service{}, func(ctx context.Context, _ *asynq.Task) error { c.work(ctx, time.Minute); return nil })
		r.untilTask("a", "active")
		l.run("b")
		r.untilTask("b", "scheduled", "retry")
		l.wantLine("b")
		r.untilTask("a", "gone")
		r.untilTask("b", "gone")
		if err := first.Release(context.Background()); err != nil {
			t.Error(err)
		}
		if !slices.Equal(c.started, []string{"a", "b"}) || len(c.wrong) > 0 {
			t.Errorf("started %q, %q", c.started, c.wrong)
		}
		l.wantFreeSlots(2)
	})
}

// The process that gives a slot to a job dies before it starts the job, or after the task of the job has ended: the
// keeper starts the job, or gives the slot to the next.
func TestKeeperLooksAfterSlots(t *testing.T) {
	slot := driver.SlotKey(seqKey, 2)
	kept(t, func(r *rig) {
		l := r.line()
		l.hold()
		s := handoff.Sequence{Limit: 2}
		l.add(s, "a", "b", "c")
		l.wantLine("b", "c")
		if err := (*core.Locker)(l.locks).FreeJobs(context.Background(), crashed, []core.JobRelease{{Key: slot, Job: envelope.Job(queue, "a")}})[0]; err != nil {
			t.Fatal(err)
		}
		r.wantState(slot, joblock.StateParked, "b")
		r.wantTask("b", "scheduled", 0)
		r.serve(service{}, func(context.Context, *asynq.Task) error { return nil })
		r.untilTask("b", "gone")
		r.untilTask("c", "gone")
		r.untilFree(slot)
		l.wantLine()
	})
}

// A later enqueue with a larger Limit gives slots to jobs that know one slot only. These jobs find their slots, and the
// order stays.
func TestJobFindsASlotBeyondItsLimit(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		l.add(handoff.Sequence{}, "a", "b", "c")
		l.wantLine("b", "c")
		var c crew
		r.serve(service{}, func(ctx context.Context, _ *asynq.Task) error { c.work(ctx, time.Minute); return nil })
		r.untilTask("a", "active")
		l.addOne(handoff.Sequence{Limit: 3}, "d", asynq.MaxRetry(1))
		for _, id := range []string{"a", "b", "c", "d"} {
			l.untilTask(id, "gone")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.started) == 4 { // the handlers of b and c are called at the same instant, and note their starts in any order
			slices.Sort(c.started[1:3])
		}
		if !slices.Equal(c.started, []string{"a", "b", "c", "d"}) || len(c.wrong) > 0 {
			t.Errorf("started %q, %q", c.started, c.wrong)
		}
		if strings.Contains(l.log.String(), lostPlace) {
			t.Errorf("a job has lost its place:\n%s", l.log)
		}
		time.Sleep(time.Minute)
		l.wantFreeSlots(3)
	})
}

// A slot has lapsed, and the keeper's first tries to pass the slot on have no answer: the keeper tries again.
func TestLapsedSlotWithoutAnAnswer(t *testing.T) {
	slot := driver.SlotKey(seqKey, 2)
	virtual(t, func(r *rig) {
		l := r.line()
		l.hold()
		l.add(handoff.Sequence{Limit: 2}, "a", "b")
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reserve + time.Minute)
		r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
		r.keep(r.locks, worker.Config{})
		time.Sleep(3 * time.Minute)
		r.faults.Clear()
		r.serve(service{}, func(context.Context, *asynq.Task) error { return nil })
		r.untilTask("b", "gone")
		r.untilFree(slot)
	})
}

// A job has a slot that the job does not know of, and finds the key free: the job keeps the slot, and the key stays free.
func TestJobWithASlotFindsTheKeyFree(t *testing.T) {
	slot := driver.SlotKey(seqKey, 2)
	virtual(t, func(r *rig) {
		l := r.line()
		first := l.hold()
		l.add(handoff.Sequence{}, "a") // without a Limit
		if err := (*core.Locker)(r.locks).PassOn(context.Background(), "test", []string{slot}, r.next()); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "pending")
		if err := first.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		var c crew
		var p probe
		r.serve(service{}, p.handler(func(ctx context.Context, _ int) error { c.work(ctx, time.Second); <-over; return nil }))
		r.until("a runs", func() bool { return p.running() == 1 })
		if st := r.status(seqKey); st.Locked() {
			t.Errorf("while a runs under its slot, the key is %s for %q, want it free", st.State, st.Job)
		}
		r.wantState(slot, joblock.StateHeld, "a")
		close(over)
		r.untilTask("a", "gone")
		time.Sleep(time.Second) // no keeper runs
		l.wantFreeSlots(3)
		if strings.Contains(l.log.String(), lostPlace) {
			t.Errorf("a job has lost its place:\n%s", l.log)
		}
	})
}

// A job that has a slot, or is about to get one, lines up: the job runs under the one slot, and leaves no place behind.
// The answers of the calls do not matter. A Take may find a place that an earlier Take of the same job has just taken.
func TestJobWithASlotLinesUp(t *testing.T) {
	second, third := driver.SlotKey(seqKey, 2), driver.SlotKey(seqKey, 3)
	lost := func(calls ...string) func(*rig, func()) {
		return func(r *rig, grant func()) {
			grant()
			r.faults.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, calls...)
		}
	}
	for name, prepare := range map[string]func(r *rig, grant func()){
		"all answers come":                   func(_ *rig, grant func()) { grant() },
		"the answer about the place is lost": lost(faultstore.Reserve),
		"the answer to the Take is lost":     lost(faultstore.Take),
		"both are lost":                      lost(faultstore.Reserve, faultstore.Take),
		"the slot comes before the Worker asks for the place": func(r *rig, grant func()) {
			r.faults.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: sync.OnceFunc(grant)}, faultstore.Reserve, faultstore.Take)
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				l := r.line()
				l.hold()
				l.add(handoff.Sequence{}, "a", "b") // without a Limit
				prepare(r, func() {
					if err := (*core.Locker)(r.locks).PassOn(context.Background(), "test", []string{second}, nil); err != nil {
						t.Error(err)
					}
				})
				over := make(chan struct{})
				var p probe
				r.serve(service{}, p.handler(only("a", func(context.Context, int) error { <-over; return nil })))
				l.run("a")
				r.until("a runs", func() bool { return p.running() == 1 })
				r.wantState(second, joblock.StateHeld, "a")
				l.wantLine("b")
				if st := r.status(third); st.Locked() {
					t.Errorf("the third slot is %s for %q, want it free", st.State, st.Job)
				}
				close(over)
				r.untilTask("a", "gone")
				if strings.Contains(l.log.String(), lostPlace) {
					t.Errorf("a job has lost its place:\n%s", l.log)
				}
			})
		})
	}
}
