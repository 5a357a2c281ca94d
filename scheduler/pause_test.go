package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// admin is a process without jobs.
func (c *cluster) admin() *node {
	c.Helper()
	n := c.node(0)
	var err error
	n.Admin, err = admin.New(n.locks, "cron", n.name)
	wantNil(c, "New", err)
	c.Cleanup(func() { wantNil(c, "Close", n.locks.Close(context.Background())) })
	return n
}

func TestPauseAndResumeFromAnywhere(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, other runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
			n.add("other", "@every 20m", other.fn(n, sec))
			n.start()
		}
		ops := c.admin()
		until(start, 20*min-10*time.Millisecond)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", "")) // in the last moment
		until(start, 45*min)
		e, err := ops.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if !e.Paused || !e.Next.IsZero() || e.Counts.Paused != 3 {
			t.Errorf("entry %+v, want it paused, three ticks skipped", e)
		}
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", "")) // again: nothing new
		wantNil(t, "Resume", c.nodes[1].Resume(c.Context(), "job", ""))
		wantNil(t, "Resume", c.nodes[1].Resume(c.Context(), "job", ""))
		until(start, 62*min)
		r.wantTicks(t, start, 10*min, 50*min, 60*min)
		other.wantTicks(t, start, 20*min, 40*min, 60*min)
		if n := c.count(scheduler.Paused); n != 3 {
			t.Errorf("%d ticks reported as paused, want 3", n)
		}
		if n := c.count(scheduler.Missed); n != 0 {
			t.Errorf("%d ticks reported as missed", n)
		}
	})
}

// Ticks that were paused while no node was up are not caught up with, and a second pause
// does not undo the first.
func TestPausedTicksAreNotMissedOnes(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		a.add("job", "@every 10m", r.fn(a, sec), scheduler.CatchUpAll(24*hour, 100))
		b.add("job", "@every 10m", r.fn(b, sec), scheduler.CatchUpAll(24*hour, 100))
		ops := c.admin()
		a.start()
		until(start, 15*min)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", ""))
		a.end()
		until(start, 25*min)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", "")) // it is paused already
		until(start, 35*min)
		wantNil(t, "Resume", ops.Resume(c.Context(), "job", "")) // 20 and 30 were paused
		until(start, 36*min)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", ""))
		until(start, 45*min)
		wantNil(t, "Resume", ops.Resume(c.Context(), "job", "")) // so was 40
		until(start, 55*min)
		b.start() // 50 was missed
		until(start, 62*min)
		r.wantTicks(t, start, 10*min, 50*min, 60*min)
	})
}

func TestTrigger(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		add := func(n *node) *node { n.add("job", "@every 1h", r.fn(n, 20*sec)); return n.start() }
		a, b := add(c.node(0)), add(c.node(0))
		ops := c.admin()
		trigger := func(n *node) time.Time {
			t.Helper()
			wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
			return time.Now()
		}
		wantRun := func(n int, since time.Time, within time.Duration) {
			t.Helper()
			time.Sleep(within)
			calls := r.all()
			if len(calls) != n {
				t.Fatalf("%d runs, want %d", len(calls), n)
			}
			last := calls[n-1]
			if last.tick.Cause != scheduler.CauseTrigger || last.begun.Before(since) {
				t.Errorf("run for %+v", last.tick)
			}
		}
		until(start, 10*min)
		at := trigger(a) // a node that has the job
		wantRun(1, at, 100*time.Millisecond)
		if on := r.all()[0].on; on != a.name {
			t.Errorf("ran on %s, not on the node that was asked", on)
		}
		until(start, 20*min)
		at = trigger(ops) // a node that does not have it
		wantRun(2, at, 10*sec+100*time.Millisecond)
		time.Sleep(5 * sec)
		for range 3 { // while it runs; they count as one
			trigger(a)
			trigger(b)
		}
		time.Sleep(15 * sec)
		wantRun(3, at, 10*sec)
		until(start, 40*min)
		wantNil(t, "Pause", b.Pause(c.Context(), "job", ""))
		at = trigger(b) // paused
		wantRun(4, at, 100*time.Millisecond)
		wantNil(t, "Resume", a.Resume(c.Context(), "job", ""))
		until(start, hour+min)
		r.wantTicks(t, start, append(ticksOf(r.all()[:4], start), hour)...)
	})
}

// A trigger is not overlooked if the node wrote it while it was reading the orders, and the
// answer is older but arrives later.
func TestTriggerDuringARead(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0, func(cfg *scheduler.Config) { cfg.Sync = 20 * min })
		n.add("job", "@every 1h", r.fn(n, sec))
		n.start()
		until(start, 10*min)
		wantNil(t, "Pause", n.Pause(c.Context(), "job", ""))
		until(start, hour-10*sec)
		n.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: sec}, faultstore.Inspect)
		for reads := n.store.Calls(faultstore.Inspect); n.store.Calls(faultstore.Inspect) == reads; {
			time.Sleep(time.Millisecond)
		}
		wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
		until(start, hour+5*sec)
		if calls := r.all(); len(calls) != 1 || calls[0].tick.Cause != scheduler.CauseTrigger {
			t.Errorf("%d runs", len(calls))
		}
	})
}

func ticksOf(calls []call, start time.Time) (out []time.Duration) {
	for _, c := range calls {
		out = append(out, c.tick.At.Sub(start))
	}
	return out
}

// A trigger whose node dies is taken over, not repeated.
func TestTriggerIsTakenOver(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 2 {
			n := c.node(0)
			n.add("job", "@every 24h", r.fn(n, 20*sec))
			n.start()
		}
		until(start, min)
		wantNil(t, "Trigger", c.nodes[0].Trigger(c.Context(), "job"))
		time.Sleep(2 * sec)
		c.nodes[0].cut()
		time.Sleep(5 * min)
		calls := r.all()
		if len(calls) != 2 || calls[0].tick.ID() != calls[1].tick.ID() || calls[1].tick.Broken != 1 {
			t.Errorf("runs %+v, want one taken over", calls)
		}
	})
}

// A registered job can be triggered before any node has read its ledger.
func TestTriggerBeforeTheFirstRead(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		n := c.node(0)
		n.add("job", "@every 24h", r.fn(n, sec))
		wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
		time.Sleep(30 * sec)
		n.start()
		time.Sleep(5 * sec)
		if calls := r.all(); len(calls) != 1 || calls[0].tick.Cause != scheduler.CauseTrigger {
			t.Errorf("runs %+v, want the trigger's", calls)
		}
	})
}

func TestOrderErrors(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		ops := c.admin()
		ctx := c.Context()
		calls := map[string]func(name string) error{
			"Pause":   func(name string) error { return ops.Pause(ctx, name, "") },
			"Resume":  func(name string) error { return ops.Resume(ctx, name, "") },
			"Trigger": func(name string) error { return ops.Trigger(ctx, name) },
			"Entry":   func(name string) error { _, err := ops.Entry(ctx, name); return err },
		}
		for name, call := range calls {
			if err := call("unknown"); !errors.Is(err, joblock.ErrNotFound) {
				t.Errorf("%s of an unknown job: %v, want ErrNotFound", name, err)
			}
			if err := call(""); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s without a name: %v, want ErrInvalid", name, err)
			}
		}
		ops.store.Set(faultstore.Fault{}, faultstore.Inspect, faultstore.Acquire)
		for name, call := range calls {
			if err := call("job"); !errors.Is(err, joblock.ErrUnavailable) {
				t.Errorf("%s without a store: %v, want ErrUnavailable", name, err)
			}
		}
		ops.store.Clear()
		if err := (*admin.Admin)(nil).Pause(ctx, "job", ""); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("Pause of a nil Admin: %v", err)
		}
	})
}

// The record of the orders does not grow with every order that was ever given.
func TestOrdersThatAreCarriedOutAreForgotten(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		n := c.node(0)
		for i := range 20 {
			n.add(fmt.Sprint("job", i), "@every 1m", r.fn(n, 10*time.Millisecond))
		}
		n.start()
		time.Sleep(sec)
		for i := range 20 {
			wantNil(t, "Pause", n.Pause(c.Context(), fmt.Sprint("job", i), ""))
			wantNil(t, "Resume", n.Resume(c.Context(), fmt.Sprint("job", i), ""))
			wantNil(t, "Trigger", n.Trigger(c.Context(), fmt.Sprint("job", i)))
		}
		size := func() int {
			views, err := memo.Read(c.Context(), n.locks, "%cron:cron")
			wantNil(t, "Read", err)
			return len(views[0].Memo)
		}
		before := size()
		if before < 1000 {
			t.Errorf("%d bytes of orders, want those of twenty jobs", before)
		}
		time.Sleep(2 * min)
		wantNil(t, "Pause", n.Pause(c.Context(), "job7", ""))
		wantNil(t, "Pause", n.Pause(c.Context(), "job8", ""))
		if after := size(); after > before/10 {
			t.Errorf("%d bytes of orders, were %d before they were carried out", after, before)
		}
		e, err := n.Entry(c.Context(), "job7")
		wantNil(t, "Entry", err)
		if !e.Paused {
			t.Error("the pause is lost")
		}
	})
}

func TestEntries(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		calls := 0
		n.add("b", "*/5 * * * *", func(context.Context) error {
			if calls++; calls%2 == 0 {
				return fmt.Errorf("no %d", calls)
			}
			time.Sleep(1500 * time.Millisecond)
			return nil
		})
		var r runs
		n.add("a", "@every 1h", r.fn(n, 90*min))
		n.start()
		until(start, 61*min)
		entries, err := n.Entries(c.Context())
		wantNil(t, "Entries", err)
		if len(entries) != 2 || entries[0].Name != "a" || entries[1].Name != "b" {
			t.Fatalf("entries %+v", entries)
		}
		a, b := entries[0], entries[1]
		if a.Spec != "@every 1h0m0s" || a.Latest.State != scheduler.Running || !a.Next.Equal(start.Add(2*hour)) || a.Latest.Duration() != 0 {
			t.Errorf("a is %+v", a)
		}
		if b.Spec != "CRON_TZ=UTC */5 * * * *" || !b.Next.Equal(start.Add(65*min)) {
			t.Errorf("b has spec %q, next %s", b.Spec, b.Next)
		}
		if b.Counts != (admin.Counts{Done: 6, Failed: 6}) {
			t.Errorf("b counts %+v", b.Counts)
		}
		if l := b.Latest; l.State != scheduler.Failed || l.Error != "no 12" || l.Node != n.name || !l.Tick.At.Equal(start.Add(hour)) || l.Attempts != 1 {
			t.Errorf("b's latest run is %+v", l)
		}
		if len(b.History) != 11 {
			t.Fatalf("%d runs in b's history, want 11", len(b.History))
		}
		if h := b.History[0]; h.State != scheduler.Done || h.Duration() != 1500*time.Millisecond || !h.Tick.At.Equal(start.Add(55*min)) {
			t.Errorf("before that %+v", h)
		}
		n.cut()
		time.Sleep(ttl)
		e, err := c.admin().Entry(c.Context(), "a") // which only has the ledger
		wantNil(t, "Entry", err)
		if e.Spec != a.Spec || !e.Next.Equal(a.Next) || e.Latest.State != scheduler.Died {
			t.Errorf("a is %+v after its node died", e)
		}
	})
}

// If only the ledger is lost, an old trigger is not executed again.
func TestTriggerOfALostLedger(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 1h", r.fn(n, sec))
		n.start()
		until(start, min)
		wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
		until(start, 10*min)
		c.write(n, "%cron:cron:job", "")
		until(start, hour+min)
		r.wantTicks(t, start, ticksOf(r.all()[:1], start)[0], hour)
	})
}

// Ticks to catch up with wait while the job is paused; a trigger does not.
func TestPauseHoldsTheBacklog(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 1h", r.fn(n, 20*sec), scheduler.CatchUpAll(24*hour, 10))
		}
		a.start()
		until(start, min)
		a.end()
		until(start, 3*hour+min)
		b.start() // 1h, 2h, 3h
		until(start, 3*hour+min+19*sec)
		wantNil(t, "Pause", c.admin().Pause(c.Context(), "job", "")) // sooner than b would find out by Config.Sync
		until(start, 3*hour+10*min)
		r.wantTicks(t, start, hour)
		wantNil(t, "Trigger", b.Trigger(c.Context(), "job"))
		until(start, 3*hour+20*min)
		e, err := b.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Waiting != 2 {
			t.Errorf("%d wait, want 2", e.Waiting)
		}
		wantNil(t, "Resume", b.Resume(c.Context(), "job", ""))
		until(start, 3*hour+30*min)
		r.wantTicks(t, start, hour, 3*hour+10*min, 2*hour, 3*hour)
	})
}

// A pause does not touch the running execution, not even with OverlapCancel:
// nothing would be executed in its place. After Resume the next tick cancels it.
func TestPausedTicksCancelNothing(t *testing.T) {
	for name, resumed := range map[string]time.Duration{"until the run is done": 0, "until a later tick": 35 * min} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				for range 2 {
					n := c.node(0)
					n.add("job", "@every 10m", r.fn(n, 35*min), scheduler.OverlapCancel())
					n.start()
				}
				ops := c.admin()
				until(start, 20*min-10*time.Millisecond)
				wantNil(t, "Pause", ops.Pause(c.Context(), "job", "")) // in the last moment
				if resumed > 0 {
					until(start, resumed)
					wantNil(t, "Resume", ops.Resume(c.Context(), "job", ""))
					until(start, 41*min)
					r.wantTicks(t, start, 10*min, 40*min)
				} else {
					until(start, 65*min)
					r.wantTicks(t, start, 10*min)
				}
				cancelled, done := len(c.events.of(scheduler.Cancelled)), len(c.events.of(scheduler.Done))
				if resumed > 0 && (cancelled != 1 || done != 0) || resumed == 0 && (cancelled != 0 || done != 1) {
					t.Errorf("%d cancelled and %d done", cancelled, done)
				}
			})
		})
	}
}
