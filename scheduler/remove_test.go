package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// SetSpec on one node is in force on all nodes, and the instant of the change divides the ticks.
func TestSetSpecOnOneNode(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, sec))
			n.start()
		}
		until(start, 20*min)
		wantNil(t, "SetSpec", c.nodes[1].SetSpec("job", "@every 4m")) // at a tick of both specs
		until(start, 25*min)
		wantNil(t, "SetSpec", c.nodes[2].SetSpec("job", "5 * * * *"))
		until(start, 66*min)
		r.wantTicks(t, start, 10*min, 20*min, 24*min, 65*min)
		told := c.events.of(scheduler.SpecChanged)
		if len(told) != 2 || told[0].Tick.At.Sub(start).Round(sec) != 20*min || told[1].Tick.At.Sub(start).Round(sec) != 25*min {
			t.Errorf("reported %d changes: %v", len(told), told)
		}
	})
}

// When a job is removed or replaced during its execution, the execution goes on, and no other begins before its end.
func TestRemoveAndReplaceDuringAnExecution(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var old, next, last runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		add := func(n *node, r *runs, spec string, takes time.Duration, opts ...scheduler.Option) {
			n.add("job", spec, r.fn(n, takes), append(opts, scheduler.OverlapNewest())...)
		}
		add(a, &old, "@every 10m", 15*min)
		a.start()
		until(start, 11*min)
		wantErr(t, a.Func("job", "@every 4m", next.fn(a, sec)), joblock.ErrInvalid)
		add(a, &next, "@every 7m", sec, scheduler.Replace())
		add(a, &last, "@every 4m", sec, scheduler.Replace()) // the second one has not begun
		b.start()                                            // without the job
		until(start, 25*min+30*sec)
		old.wantTicks(t, start, 10*min)
		next.wantTicks(t, start)
		last.wantTicks(t, start, 20*min) // of the old spec: it came during the execution
		if at := last.all()[0].begun.Sub(start).Truncate(sec); at != 25*min {
			t.Errorf("begun at %s, want the end of the old execution", at)
		}
		until(start, 32*min+30*sec)
		last.wantTicks(t, start, 20*min, 28*min, 32*min)
		wantNil(t, "Remove", a.Remove("job"))
		wantErr(t, a.Remove("job"), joblock.ErrNotFound)
		wantErr(t, a.SetSpec("job", "@daily"), joblock.ErrNotFound)
		until(start, 41*min)
		last.wantTicks(t, start, 20*min, 28*min, 32*min)
		e, err := a.Entry(c.Context(), "job")
		if wantNil(t, "Entry", err); e.Here {
			t.Errorf("entry %+v, want the record of a removed job", e)
		}
	})
}

// A node that waits for the lock of a job stops to wait when the job is removed, and can have the job again.
func TestRemoveEndsTheWaitForTheLock(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, again runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, 5*min))
			n.start()
			until(start, time.Duration(len(c.nodes))*sec)
		}
		until(start, 11*min)
		on := map[string]*node{a.name: a, b.name: b}[r.all()[0].on]
		other := map[*node]*node{a: b, b: a}[on]
		waiters := func() int {
			status, err := on.locks.Status(c.Context(), "%cron:cron:job")
			wantNil(t, "Status", err)
			return status[0].Waiters
		}
		if n := waiters(); n != 1 {
			t.Fatalf("%d wait for the lock, want one", n)
		}
		wantNil(t, "Remove", other.Remove("job"))
		until(start, 11*min+sec)
		if n := waiters(); n != 0 {
			t.Errorf("%d wait for the lock of a removed job", n)
		}
		on.cut()
		until(start, 12*min)
		other.add("job", "@every 10m", again.fn(other, sec))
		until(start, 21*min)
		if calls := again.all(); len(calls) != 2 || calls[0].tick.Broken != 1 || !calls[1].tick.At.Equal(start.Add(20*min)) {
			t.Errorf("calls %+v, want the broken execution and the next tick", calls)
		}
	})
}

// lateStore can return the answer to the next write of a job's ledger late.
type lateStore struct {
	driver.Store
	late atomic.Bool
}

func (s *lateStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	replies, err := s.Store.Renew(ctx, reqs)
	if reqs[0].Key == "%cron:cron:job" && reqs[0].Memo != nil && s.late.CompareAndSwap(true, false) {
		time.Sleep(time.Second)
	}
	return replies, err
}

// The node has written into the ledger that an execution begins, when Remove is called. The function is not called after
// Remove has returned, and the next node executes the tick, as if for the first time.
func TestRemoveAtTheBeginOfAnExecution(t *testing.T) {
	for name, opts := range map[string][]scheduler.Option{
		"one": {scheduler.AtMostOnce()}, "lanes": {scheduler.AtMostOnce(), scheduler.MaxConcurrent(2)},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				store := &lateStore{Store: c.mem}
				a := c.nodeOn(store, 0)
				a.add("job", "@every 10m", r.fn(a, sec), opts...)
				a.start()
				until(start, 5*min)
				b := c.node(0)
				b.add("job", "@every 10m", r.fn(b, sec), opts...)
				until(start, 10*min-sec)
				store.late.Store(true)
				until(start, 10*min+500*time.Millisecond)
				wantNil(t, "Remove", a.Remove("job"))
				b.start()
				until(start, 11*min)
				_, err := b.Backfill(c.Context(), "job", start, start.Add(10*min))
				wantNil(t, "Backfill", err)
				until(start, 15*min)
				b.end()
				r.wantTicks(t, start, 10*min, 0, 10*min)
				for _, call := range r.all() {
					if call.on != b.name || call.tick.Broken != 0 {
						t.Errorf("%+v on %s, want the first execution on %s", call.tick, call.on, b.name)
					}
				}
				e, err := b.Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if e.Counts != (admin.Counts{Done: 3}) || len(c.events.of(scheduler.Started)) != 3 {
					t.Errorf("counts %+v, %d begun", e.Counts, len(c.events.of(scheduler.Started)))
				}
			})
		})
	}
}

// Removal and registration in turns, from several goroutines.
func TestRemoveAndRegisterAtTheSameTime(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 1s", r.fn(n, 300*time.Millisecond), scheduler.CatchUpAll(hour, 1000))
			n.start()
		}
		done := make(chan struct{})
		for _, n := range []*node{a, b} {
			for range 2 {
				go func() {
					defer func() { done <- struct{}{} }()
					for i := range 100 {
						time.Sleep(time.Duration(i%7) * 100 * time.Millisecond)
						switch i % 3 {
						case 0:
							_ = n.Remove("job") // the other goroutine may have removed the job
						case 1:
							_ = n.Func("job", "@every 1s", r.fn(n, 300*time.Millisecond), scheduler.CatchUpAll(hour, 1000))
						case 2:
							err := n.Func("job", "@every 1s", func(ctx context.Context) error { return r.fn(n, sec/2)(ctx) },
								scheduler.CatchUpAll(hour, 1000), scheduler.Replace())
							if err != nil {
								t.Error(err)
							}
						}
					}
				}()
			}
		}
		for range 4 {
			<-done
		}
		for _, n := range c.nodes {
			wantNil(t, "Func", n.Func("job", "@every 1s", r.fn(n, sec/10), scheduler.CatchUpAll(hour, 1000), scheduler.Replace()))
		}
		time.Sleep(5 * min)
		got := make(map[int64]int)
		for _, c := range r.all() {
			got[c.tick.At.Unix()]++
		}
		missing := 0
		for at := start.Add(sec); at.Before(time.Now().Add(-sec)); at = at.Add(sec) {
			if got[at.Unix()] == 0 {
				missing++
			}
			if got[at.Unix()] > 1 {
				t.Errorf("%s was executed %d times", at.Sub(start), got[at.Unix()])
			}
		}
		if e, err := a.Entry(c.Context(), "job"); err != nil || int(e.Counts.Overlapped) != missing || e.Counts.Missed != 0 {
			t.Errorf("%d ticks missing, counts %+v, %v", missing, e.Counts, err)
		}
	})
}
