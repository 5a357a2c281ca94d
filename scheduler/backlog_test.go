package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/scheduler"
)

// Over many outages, no more ticks wait than the limit, each tick is accounted for, and the
// job goes on.
func TestBacklogIsBoundedAcrossOutages(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		const limit = 1000
		var done int64
		start := time.Now()
		for i := range 6 {
			n := c.node(0)
			n.add("job", "@every 1s", func(context.Context) error { time.Sleep(3 * sec); return nil }, scheduler.CatchUpAll(24*hour, limit))
			until(start, time.Duration(i)*21*min)
			n.start()
			until(start, time.Duration(i)*21*min+min)
			e, err := n.Entry(c.Context(), "job")
			wantNil(t, "Entry", err)
			if e.Waiting > limit {
				t.Errorf("outage %d: %d ticks wait, want %d at most", i, e.Waiting, limit)
			}
			if e.Counts.Done < done+10 {
				t.Errorf("outage %d: %d runs, and %d before it", i, e.Counts.Done, done)
			}
			done = e.Counts.Done
			n.end()
			e, err = n.Entry(c.Context(), "job")
			wantNil(t, "Entry", err)
			last := e.Latest.Ended
			all := e.Counts.Done + e.Counts.Missed + e.Counts.Overlapped + int64(e.Waiting)
			if want := int64(last.Sub(start) / sec); all < want-1 || all > want+1 {
				t.Errorf("outage %d: %d ticks are accounted for, want %d: %+v, %d wait", i, all, want, e.Counts, e.Waiting)
			}
			if e.Problem != "" {
				t.Errorf("outage %d: %s", i, e.Problem)
			}
		}
	})
}

// CatchUpOne catches up with one tick, however many outages came before it could be
// executed.
func TestCatchUpOneAcrossOutages(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, min))
		}
		a.start()
		until(start, 10*min+30*sec)
		a.cut() // it dies during the first tick
		until(start, 35*min)
		b.start()
		until(start, 35*min+30*sec)
		b.cut() // it dies during the same tick, while that of 30 min waits
		until(start, 65*min)
		b.heal()
		until(start, 69*min)
		var at []time.Duration
		for _, call := range r.all() {
			at = append(at, call.tick.At.Sub(start))
		}
		if len(at) != 4 || at[3] != 60*min {
			t.Errorf("ran for %v, want the first one three times and then the newest", at)
		}
		if n := c.count(scheduler.Missed); n != 4 {
			t.Errorf("%d ticks reported as missed, want those of 20, 30, 40 and 50 min", n)
		}
	})
}

// A ledger that cannot be written is reported once and shown in the entry. Once it can be
// written the job goes on.
func TestWhatKeepsAJobFromRunningIsLogged(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10m", r.fn(n, sec))
		n.start()
		until(start, 9*min)
		n.store.Set(faultstore.Fault{}, faultstore.Renew) // memos are written by renewals
		until(start, 10*min+25*sec)
		e, err := n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if !strings.Contains(e.Problem, "write the ledger") {
			t.Errorf("problem %q, want one about writing the ledger", e.Problem)
		}
		n.store.Clear()
		until(start, 11*min)
		r.wantTicks(t, start, 10*min)
		e, err = n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if e.Problem != "" {
			t.Errorf("problem %q after it is over", e.Problem)
		}
		told := strings.Count(c.logs.String(), `level=WARN msg="scheduler: the store refused or did not answer a call for the job; trying again"`)
		if told == 0 || told > 3 {
			t.Errorf("logged %d times", told)
		}
	})
}
