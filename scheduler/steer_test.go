package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// Who has paused a job, when and why; and all jobs at once, also those that come later.
func TestPauseAll(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var a, b, late runs
		start := time.Now()
		for range 2 {
			n := c.node(0)
			n.add("a", "@every 10m", a.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
			n.add("b", "@every 1h", b.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
			n.start()
		}
		ops := c.admin()
		wantErr(t, ops.Pause(c.Context(), "a", "a\nb"), joblock.ErrInvalid)
		wantErr(t, ops.PauseAll(c.Context(), strings.Repeat("x", 257)), joblock.ErrInvalid)
		until(start, 15*min)
		wantNil(t, "PauseAll", ops.PauseAll(c.Context(), "the database moves"))
		wantNil(t, "PauseAll", c.nodes[0].PauseAll(c.Context(), "the database moves")) // nothing new
		wantNil(t, "PauseAll", c.nodes[0].PauseAll(c.Context(), ""))
		until(start, 16*min)
		wantNil(t, "Pause", c.nodes[1].Pause(c.Context(), "a", "broken"))
		c.nodes[0].add("late", "@every 10m", late.fn(c.nodes[0], sec))
		see := func(name string, want ...admin.Pause) {
			t.Helper()
			e, err := ops.Entry(c.Context(), name)
			wantNil(t, "Entry", err)
			if len(e.Pauses) != len(want) || e.Paused != (len(want) > 0) || e.Next.IsZero() != e.Paused {
				t.Errorf("%s: pauses %+v, next %s", name, e.Pauses, e.Next)
				return
			}
			for i, p := range e.Pauses {
				p.At = start.Add(p.At.Sub(start).Truncate(sec))
				if p != want[i] {
					t.Errorf("%s: paused %+v, want %+v", name, p, want[i])
				}
			}
		}
		all := admin.Pause{At: start.Add(15 * min), By: ops.name, Note: "the database moves", All: true}
		alone := admin.Pause{At: start.Add(16 * min), By: "node1", Note: "broken"}
		see("a", alone, all)
		see("b", all)
		wantNil(t, "PauseAll", c.nodes[1].PauseAll(c.Context(), "the disk is full")) // only says why
		all.By, all.Note = "node1", "the disk is full"
		see("b", all)
		until(start, 25*min)
		see("late", all)
		resumed := func(name string, want admin.Pause) {
			t.Helper()
			e, err := ops.Entry(c.Context(), name)
			wantNil(t, "Entry", err)
			if e.Resumed == nil {
				t.Errorf("%s: no end of a pause, want %+v", name, want)
				return
			}
			got := *e.Resumed
			got.At = start.Add(got.At.Sub(start).Truncate(sec))
			if got != want {
				t.Errorf("%s: resumed %+v, want %+v", name, got, want)
			}
		}
		wantErr(t, ops.Resume(c.Context(), "a", "a\nb"), joblock.ErrInvalid)
		wantErr(t, ops.ResumeAll(c.Context(), strings.Repeat("x", 257)), joblock.ErrInvalid)
		wantNil(t, "ResumeAll", ops.ResumeAll(c.Context(), "moved"))
		wantNil(t, "ResumeAll", ops.ResumeAll(c.Context(), "again")) // nothing new
		moved := admin.Pause{At: start.Add(25 * min), By: ops.name, Note: "moved", All: true}
		see("a", alone)
		see("b")
		resumed("b", moved)
		until(start, 35*min)
		wantNil(t, "Resume", c.nodes[0].Resume(c.Context(), "a", "mended"))
		mended := admin.Pause{At: start.Add(35 * min), By: "node0", Note: "mended"}
		resumed("a", mended)
		until(start, 54*min)
		wantNil(t, "Pause", ops.Pause(c.Context(), "b", "")) // orders that were carried out are removed
		wantNil(t, "Resume", ops.Resume(c.Context(), "b", "never mind"))
		resumed("a", mended)
		resumed("b", admin.Pause{At: start.Add(54 * min), By: ops.name, Note: "never mind"})
		resumed("late", moved)
		until(start, 55*min)
		wantNil(t, "PauseAll", ops.PauseAll(c.Context(), ""))
		until(start, 65*min)
		wantNil(t, "ResumeAll", ops.ResumeAll(c.Context(), ""))
		until(start, 125*min)
		a.wantTicks(t, start, 10*min, 40*min, 50*min, 70*min, 80*min, 90*min, 100*min, 110*min, 120*min)
		b.wantTicks(t, start, 120*min)
		late.wantTicks(t, start, 30*min, 40*min, 50*min, 70*min, 80*min, 90*min, 100*min, 110*min, 120*min)
	})
}

// Ticks of pauses of all jobs that no node was up to see are not missed ones.
func TestPausesOfAllThatNoNodeSaw(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		boot := func() *node {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
			return n.start()
		}
		boot()
		ops := c.admin()
		until(start, 5*min)
		c.nodes[0].end()
		for i := range 3 { // 10 to 20, 40 to 50, 70 to 80
			until(start, time.Duration(30*i+8)*min)
			wantNil(t, "PauseAll", ops.PauseAll(c.Context(), ""))
			until(start, time.Duration(30*i+22)*min)
			wantNil(t, "ResumeAll", ops.ResumeAll(c.Context(), ""))
		}
		until(start, 95*min)
		boot()
		until(start, 101*min)
		r.wantTicks(t, start, 30*min, 60*min, 90*min, 100*min)
	})
}

// A job that fails several times in a row is paused, with the reason, and the count starts again after Resume.
func TestPauseAfterFailures(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		fails := map[time.Duration]bool{10 * min: true, 20 * min: true, 40 * min: true, 50 * min: true, 60 * min: true, 100 * min: true, 110 * min: true}
		for range 2 {
			n := c.node(0)
			n.add("job", "@every 10m", func(ctx context.Context) error {
				r.note(ctx, n)
				if tick, _ := scheduler.TickFrom(ctx); fails[tick.At.Sub(start)] {
					return errors.New("no\nroute")
				}
				return nil
			}, scheduler.PauseAfter(3))
			n.start()
		}
		ops := c.admin()
		until(start, 95*min)
		e, err := ops.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		note := "3 executions in a row have failed, the last one with: no route"
		if len(e.Pauses) != 1 || e.Pauses[0].Note != note || !strings.HasPrefix(e.Pauses[0].By, "node") || e.Counts.Failed != 5 {
			t.Errorf("entry %+v, want it paused: %s", e, note)
		}
		wantNil(t, "Resume", ops.Resume(c.Context(), "job", ""))
		until(start, 125*min)
		r.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min, 50*min, 60*min, 100*min, 110*min, 120*min)
		for _, n := range []int{0, -1, 1001} {
			err := ops.Func("job", "@daily", func(context.Context) error { return nil }, scheduler.PauseAfter(n))
			wantErr(t, err, joblock.ErrInvalid)
		}
	})
}

// Ticks that are lost count as failures: a job that kills its nodes is paused.
func TestPauseAfterLosses(t *testing.T) {
	for name, opts := range map[string][]scheduler.Option{"one": nil, "lanes": {scheduler.MaxConcurrent(2)}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				for range 5 {
					n := c.node(0)
					n.add("job", "@every 10m", func(ctx context.Context) error {
						r.note(ctx, n)
						n.cut()
						n.stop() // killed
						<-ctx.Done()
						return ctx.Err()
					}, append(opts, scheduler.AtMostOnce(), scheduler.PauseAfter(3))...)
					n.start()
				}
				ops := c.admin()
				until(start, 70*min)
				r.wantTicks(t, start, 10*min, 20*min, 30*min)
				e, err := ops.Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				note := "3 executions in a row have failed, the last one with: the execution was broken off"
				if len(e.Pauses) != 1 || e.Pauses[0].Note != note || e.Counts.Lost != 3 {
					t.Errorf("pauses %+v, counts %+v, want it paused: %s", e.Pauses, e.Counts, note)
				}
				wantNil(t, "Resume", ops.Resume(c.Context(), "job", ""))
				until(start, 82*min)
				r.wantTicks(t, start, 10*min, 20*min, 30*min, 80*min) // the count starts again
			})
		})
	}
}

// TriggerAndWait returns the execution that the trigger has caused.
func TestTriggerAndWait(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		result := error(nil)
		for range 2 {
			n := c.node(0)
			n.add("job", "@every 1h", func(ctx context.Context) error {
				select {
				case <-time.After(30 * sec):
					return result
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
			n.start()
		}
		ops := c.admin()
		_, err := ops.TriggerAndWait(c.Context(), "never")
		wantErr(t, err, joblock.ErrNotFound)
		until(start, 10*min)
		want := func(on *node, state scheduler.Kind, least time.Duration) {
			t.Helper()
			asked := time.Now()
			x, err := on.TriggerAndWait(c.Context(), "job")
			wantNil(t, "TriggerAndWait", err)
			took := time.Since(asked)
			if x.State != state || x.Tick.Cause != scheduler.CauseTrigger || x.Tick.At.Before(asked.Truncate(time.Millisecond)) || x.Duration() < 30*sec {
				t.Errorf("execution %+v, want a trigger that is %s", x, state)
			}
			if took < least || took > least+15*sec {
				t.Errorf("returned after %s, want %s to %s", took, least, least+15*sec)
			}
		}
		want(ops, scheduler.Done, 30*sec)
		result = errors.New("no")
		want(c.nodes[0], scheduler.Failed, 30*sec)
		until(start, hour+10*sec) // a tick is being executed
		want(ops, scheduler.Failed, 50*sec)
		wantNil(t, "PauseAll", ops.PauseAll(c.Context(), ""))
		result = nil
		done := make(chan struct{})
		go func() { // its node dies
			defer close(done)
			time.Sleep(15 * sec)
			for _, n := range c.nodes[:2] {
				if e, err := n.Entry(c.Context(), "job"); err == nil && e.Latest.Node == n.name {
					n.cut()
					return
				}
			}
		}()
		x, err := ops.TriggerAndWait(c.Context(), "job")
		<-done
		if wantNil(t, "TriggerAndWait", err); x.State != scheduler.Done || x.Tick.Broken != 1 {
			t.Errorf("execution %+v, want the one that took over", x)
		}
		ctx, cancel := context.WithTimeoutCause(c.Context(), 5*sec, errors.New("impatient"))
		defer cancel()
		if _, err := ops.TriggerAndWait(ctx, "job"); err == nil || err.Error() != "impatient" {
			t.Errorf("error %v, want the cause of ctx", err)
		}
	})
}

// The next ticks of a job are those of the spec in force, for a process without the job too.
func TestNextTicks(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		n.add("job", "CRON_TZ=Europe/Berlin 30 2 25-28 3 *", func(context.Context) error { return nil }, scheduler.Jitter(10*min))
		n.start()
		until(start, min)
		ops := c.admin()
		e, err := ops.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		wantNil(t, "Pause", ops.Pause(c.Context(), "job", ""))
		ticks, err := ops.NextTicks(c.Context(), "job", 3)
		wantNil(t, "NextTicks", err)
		first := time.Date(2000, 3, 25, 1, 30, 0, 0, time.UTC) // summer time begins on the next day
		if len(ticks) != 3 || !ticks[0].At.Equal(e.Next) || ticks[0].At.Sub(first) > 10*min || ticks[1].At.Sub(ticks[0].At) != 24*hour-30*min ||
			!strings.Contains(ticks[1].Note, "the tick of 02:30 comes at 03:00") {
			t.Errorf("ticks %v, the next %s", ticks, e.Next)
		}
		if want := "at 02:30 on the 25th to 28th of March, Europe/Berlin"; e.Words != want {
			t.Errorf("words %q, want %q", e.Words, want)
		}
		_, err = ops.NextTicks(c.Context(), "never", 3)
		wantErr(t, err, joblock.ErrNotFound)
		for _, n := range []int{0, 1001} {
			_, err = ops.NextTicks(c.Context(), "job", n)
			wantErr(t, err, joblock.ErrInvalid)
		}
	})
}

// A trigger that comes during the run of another does not get between that run and the caller that waits for it.
func TestTriggerAndWaitDuringAnother(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		runs := 0
		n := c.node(0)
		n.add("job", "@every 1000h", func(context.Context) error {
			runs++
			if runs == 1 {
				time.Sleep(30 * sec)
				return errors.New("the first one fails")
			}
			time.Sleep(5 * min)
			return nil
		})
		n.start()
		ops := c.admin()
		start := time.Now()
		until(start, 10*min)
		begun := time.Now()
		go func() {
			time.Sleep(20 * sec)
			_ = ops.Trigger(c.Context(), "job")
		}()
		x, err := ops.TriggerAndWait(c.Context(), "job")
		wantNil(t, "TriggerAndWait", err)
		if took := time.Since(begun); x.State != scheduler.Failed || took > min {
			t.Errorf("after %s: %+v, want the run that has failed after half a minute", took, x)
		}
		until(begun, 10*min)
	})
}

// Of an execution that was broken off, what came of it may have left the history, while the history keeps the failure.
func TestTriggerAndWaitOfATakenOverExecution(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		add := func(n *node) {
			n.add("job", "@every 1m", func(ctx context.Context) error {
				if tick, _ := scheduler.TickFrom(ctx); tick.Cause == scheduler.CauseTrigger {
					time.Sleep(30 * sec)
				}
				return nil
			}, scheduler.KeepHistory(10, 1))
			n.start()
		}
		start := time.Now()
		dies := c.node(0)
		add(dies)
		until(start, 10*min+5*sec)
		wait, err := c.admin().Admin.Trigger(c.Context(), "job")
		wantNil(t, "Trigger", err)
		until(start, 10*min+15*sec)
		dies.cut()
		add(c.node(0))
		until(start, 20*min)
		ctx, cancel := context.WithTimeout(c.Context(), min)
		defer cancel()
		if x, err := wait(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("%+v, %v, want an error at once: the execution is no longer in the history", x, err)
		}
	})
}
