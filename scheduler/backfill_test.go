package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// backfilled returns the ticks that were executed by backfills, in order.
func (r *runs) backfilled(start time.Time) (at []time.Duration) {
	for _, c := range r.all() {
		if c.tick.Cause == scheduler.CauseBackfill {
			at = append(at, c.tick.At.Sub(start))
		}
	}
	return at
}

func every(step, from, to time.Duration) (at []time.Duration) {
	for d := from; d <= to; d += step {
		at = append(at, d)
	}
	return at
}

func wantSame(t testing.TB, got, want []time.Duration) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Each tick of a range is executed once, in order, in addition to the ticks of the schedule.
// No tick of the schedule is skipped for it.
func TestBackfillDuringTheSchedule(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, 4*min), scheduler.StartDeadline(5*min))
			n.start()
		}
		ops := c.admin()
		until(start, 65*min)
		n, err := ops.Backfill(c.Context(), "job", start.Add(-100*min), start.Add(20*min))
		wantNil(t, "Backfill", err)
		if n != 13 {
			t.Errorf("%d ticks, want 13", n)
		}
		_, err = c.nodes[0].Backfill(c.Context(), "job", start, start.Add(min))
		wantErr(t, err, admin.ErrBackfilling)
		until(start, 88*min)
		e, err := ops.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		// At 65, 69, 77 (after the tick of 70) and 85 (after the tick of 80), each for four minutes.
		if b := e.Backfill; b == nil || b.Ticks != 13 || b.Done != 3 || !b.Upto.Equal(start.Add(-70*min)) || !b.Ended.IsZero() {
			t.Errorf("backfill %+v", e.Backfill)
		}
		until(start, 185*min)
		wantSame(t, r.backfilled(start), every(10*min, -100*min, 20*min))
		var own []time.Duration
		ids := make(map[string]bool)
		for _, call := range r.all() {
			if call.tick.Cause == scheduler.CauseTick {
				own = append(own, call.tick.At.Sub(start))
			}
			ids[call.tick.ID()] = true
		}
		wantSame(t, own, every(10*min, 10*min, 180*min))
		if len(ids) != len(r.all()) {
			t.Errorf("%d IDs of %d ticks", len(ids), len(r.all()))
		}
		e, err = ops.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if b := e.Backfill; b.Done != 13 || b.Ended.IsZero() || e.Counts.Overlapped+e.Counts.Missed != 0 {
			t.Errorf("backfill %+v, counts %+v", e.Backfill, e.Counts)
		}
		if ended := c.events.of(scheduler.Backfilled); len(ended) != 1 || ended[0].Count != 13 {
			t.Errorf("events %+v", ended)
		}
		_, err = ops.Backfill(c.Context(), "job", start, start.Add(10*min)) // the next one
		wantNil(t, "Backfill", err)
		until(start, 200*min)
		wantSame(t, r.backfilled(start)[13:], []time.Duration{0, 10 * min})
	})
}

// A backfill goes on while the job is paused, until StopBackfill.
func TestBackfillOfAPausedJob(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10m", r.fn(n, 3*min))
		n.start()
		until(start, 25*min)
		wantNil(t, "Pause", n.Pause(c.Context(), "job", ""))
		_, err := n.Backfill(c.Context(), "job", start.Add(-300*min), start)
		wantNil(t, "Backfill", err)
		until(start, 41*min)
		wantNil(t, "StopBackfill", n.StopBackfill(c.Context(), "job"))
		wantNil(t, "StopBackfill", n.StopBackfill(c.Context(), "job"))
		e, err := n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if !e.Backfill.Stopping {
			t.Errorf("backfill %+v", e.Backfill)
		}
		until(start, 60*min)
		r.wantTicks(t, start, append([]time.Duration{10 * min, 20 * min}, every(10*min, -300*min, -250*min)...)...)
		e, err = n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Backfill.Stopping || !e.Backfill.Ended.Equal(start.Add(43*min)) && e.Backfill.Ended.Sub(start.Add(43*min)) > sec {
			t.Errorf("backfill %+v", e.Backfill)
		}
		_, err = n.Backfill(c.Context(), "job", start, start)
		wantNil(t, "Backfill", err)
	})
}

// When a node dies or stops during a backfill, another one goes on with the tick at which
// it was.
func TestBackfillSurvivesItsNodes(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 4 {
			n := c.node(0)
			n.add("job", "@every 1h", r.fn(n, 20*sec), scheduler.OverlapCancel())
			n.start()
		}
		until(start, 10*min)
		_, err := c.nodes[0].Backfill(c.Context(), "job", start.Add(-20*hour), start)
		wantNil(t, "Backfill", err)
		for i, how := range []string{"kill", "stop", "kill"} {
			until(start, 10*min+time.Duration(i+1)*70*sec)
			calls := r.all()
			for _, n := range c.nodes {
				if n.name != calls[len(calls)-1].on {
					continue
				}
				if how == "kill" {
					n.cut()
				}
				n.stop()
			}
		}
		until(start, 30*min)
		done := 0
		seen := make(map[time.Time]int)
		last := start.Add(-21 * hour)
		for _, e := range c.events.of(scheduler.Done) {
			seen[e.Tick.At]++
			if done++; e.Tick.At.Before(last) {
				t.Errorf("%s was done after %s", e.Tick.At, last)
			}
			last = e.Tick.At
		}
		if done != 21 || len(seen) != 21 {
			t.Errorf("%d executions of %d ticks were done, want 21", done, len(seen))
		}
		if taken := len(c.events.of(scheduler.TakenOver)); taken != 3 {
			t.Errorf("%d were taken over, want 3", taken)
		}
	})
}

// A tick does not cancel an execution of a backfill, and a task that overlaps waits: each
// tick of the range is executed.
func TestBackfillSkipsNoTickOfTheRange(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r, tasks runs
		start := time.Now()
		n := c.node(0)
		n.add("cancel", "@every 2m", r.fn(n, 90*sec), scheduler.OverlapCancel())
		busy := true
		wantNil(t, "Task", n.Task("task", "@every 1h", func(ctx context.Context, tick scheduler.Tick) error {
			if busy = !busy; !busy { // every other time the task of an earlier tick is not done
				return &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Job: "default/other"}
			}
			tasks.note(ctx, n)
			return nil
		}))
		n.start()
		until(start, 30*sec)
		for _, job := range []string{"cancel", "task"} {
			step := map[string]time.Duration{"cancel": 2 * min, "task": hour}[job]
			_, err := n.Backfill(c.Context(), job, start.Add(-4*step), start)
			wantNil(t, "Backfill", err)
		}
		until(start, 30*min)
		wantSame(t, r.backfilled(start), every(2*min, -8*min, 0))
		wantSame(t, tasks.backfilled(start), every(hour, -4*hour, 0))
		for _, job := range []string{"cancel", "task"} {
			e, err := n.Entry(c.Context(), job)
			wantNil(t, "Entry", err)
			if b := e.Backfill; b.Done != 5 || b.Failed != 0 || b.Ended.IsZero() {
				t.Errorf("%s: %+v", job, b)
			}
		}
	})
}

// Missed ticks of the range are not executed a second time, to be caught up with.
func TestBackfillOfMissedTicks(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, 30*sec), scheduler.CatchUpAll(24*hour, 100))
		}
		a.start()
		until(start, 5*min)
		a.end()
		until(start, 75*min)
		_, err := b.Backfill(c.Context(), "job", start, start.Add(50*min+500*time.Millisecond))
		wantNil(t, "Backfill", err)
		b.start()
		until(start, 90*min+min)
		r.wantTicks(t, start, append([]time.Duration{60 * min, 70 * min, 0, 10 * min, 20 * min, 30 * min, 40 * min, 50 * min}, 80*min, 90*min)...)
		e, err := b.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Counts.Missed != 0 || e.Backfill.Ticks != 6 {
			t.Errorf("%+v, backfill %+v", e.Counts, e.Backfill)
		}
	})
}

// A new spec gives the rest of the range more ticks than a backfill may have.
func TestBackfillUnderAnotherSpec(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 1h", r.fn(n, 40*sec))
		n.start()
		until(start, 10*min)
		_, err := n.Backfill(c.Context(), "job", start.Add(-10*hour), start)
		wantNil(t, "Backfill", err)
		until(start, 12*min)
		wantNil(t, "SetSpec", n.SetSpec("job", "@every 2h")) // during the fourth execution
		until(start, 12*min+50*sec)
		see := func(ticks, done int, ended bool) {
			t.Helper()
			e, err := n.Entry(c.Context(), "job")
			wantNil(t, "Entry", err)
			if b := e.Backfill; b.Ticks != ticks || b.Done != done || b.Ended.IsZero() == ended {
				t.Errorf("backfill %+v, want %d of %d ticks done", b, done, ticks)
			}
		}
		see(8, 4, false)
		until(start, 13*min)
		wantNil(t, "Func", n.Func("job", "@every 1s", func(ctx context.Context) error {
			r.note(ctx, n)
			return nil
		}, scheduler.Replace(), scheduler.CatchUpNone(), scheduler.OverlapSkip()))
		until(start, 14*min)
		if e, err := n.Entry(c.Context(), "job"); err != nil || e.Backfill.Ticks != 10_000 {
			t.Errorf("backfill %+v, %v", e.Backfill, err)
		}
		until(start, 16*min)
		see(10_000, 10_000, true)
		ended := c.events.of(scheduler.Backfilled)
		if len(ended) != 1 || ended[0].Count != 10_000 || ended[0].Err == nil || !strings.Contains(ended[0].Err.Error(), "are not executed") {
			t.Errorf("events %+v", ended)
		}
		if n := len(r.backfilled(start)); n != 10_000 {
			t.Errorf("%d ticks of the backfill, want 10,000", n)
		}
	})
}

// What a backfill may not be. The tick that is half a millisecond before the range is not in
// the range.
func TestBackfillBounds(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.admin()
		n.Admin = admin.Of(n.Scheduler)
		n.add("job", "@every 10m", func(context.Context) error { return errors.New("no") })
		for _, tc := range []struct {
			name     string
			job      string
			from, to time.Duration
			want     error
		}{
			{"backwards", "job", 0, -1, joblock.ErrInvalid},
			{"in the future", "job", 0, sec, joblock.ErrInvalid},
			{"too early", "job", -31 * 366 * 24 * hour, 0, joblock.ErrInvalid},
			{"no ticks", "job", time.Microsecond - 10*min, -1, joblock.ErrInvalid},
			{"too many", "job", -100_000 * min, 0, joblock.ErrInvalid},
			{"no job", "other", -hour, 0, joblock.ErrNotFound},
			{"no name", "", -hour, 0, joblock.ErrInvalid},
			{"the most", "job", -99_990 * min, 0, nil},
			{"a second one", "job", 0, 0, admin.ErrBackfilling},
		} {
			_, err := n.Backfill(c.Context(), tc.job, start.Add(tc.from), start.Add(tc.to))
			if !errors.Is(err, tc.want) {
				t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
			}
		}
	})
}
