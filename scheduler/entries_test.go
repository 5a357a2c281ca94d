package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// Everybody can read what the options of a job are, as the node has them that has executed it last.
func TestPoliciesOfAJob(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		fn := func(context.Context) error { return nil }
		a := c.node(0)
		for name, opts := range map[string][]scheduler.Option{
			"plain":  nil,
			"queue":  {scheduler.OverlapQueue(3), scheduler.CatchUpAll(time.Hour, 7), scheduler.AtMostOnce(), scheduler.Timeout(time.Minute)},
			"newest": {scheduler.OverlapNewest(), scheduler.CatchUpNone(), scheduler.Retry(2, time.Second, time.Minute), scheduler.StartDeadline(time.Hour)},
			"cancel": {scheduler.OverlapCancel(), scheduler.PauseAfter(5), scheduler.Jitter(time.Second), scheduler.RunAtStart("r1")},
			"lanes":  {scheduler.MaxConcurrent(4)},
		} {
			a.add(name, "@every 10m", fn, opts...)
		}
		wantNil(t, "Task", a.Task("task", "@every 10m", func(context.Context, scheduler.Tick) error { return nil }))
		ops := c.admin()
		a.start()
		until(start, 25*min)
		all, err := ops.Entries(c.Context())
		wantNil(t, "AllEntries", err)
		want := map[string]string{
			"plain":  "ticks that come during a run are skipped; of missed ticks only the newest is executed late",
			"queue":  "ticks that come during a run wait, 3 at most; missed ticks of the last 1h0m0s are executed late, 7 at most; a run that is broken off is lost; an attempt may take 1m0s",
			"newest": "of the ticks that come during a run the newest waits; missed ticks are skipped; a tick that cannot begin within 1h0m0s is missed; an attempt that fails is repeated up to 2 times, after 1s to 1m0s",
			"cancel": "a tick that comes during a run cancels the run; of missed ticks only the newest is executed late; jitter up to 1s; runs once at start, in the whole cluster; paused after 5 failures in a row",
			"lanes":  "up to 4 runs at once; ticks that come during a run are skipped; of missed ticks only the newest is executed late",
			"task":   "ticks that come during a run are skipped; of missed ticks only the newest is executed late; an attempt that fails is repeated up to 5 times, after 1s to 30s; a run enqueues a task",
		}
		for _, e := range all {
			if e.Policies != want[e.Name] {
				t.Errorf("%s: %q, want %q", e.Name, e.Policies, want[e.Name])
			}
		}
		if len(all) != len(want) {
			t.Errorf("%d jobs, want %d", len(all), len(want))
		}
	})
}

// A process without jobs sees all jobs of its scope, and no others.
func TestAllEntriesFromAnywhere(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		fn := func(context.Context) error { return nil }
		a, b := c.node(0), c.node(0)
		want := []string{":", "100%", "a:b", "böse/name", "here", "rare", "task"}
		for _, name := range want[:4] {
			a.add(name, "@every 10m", fn)
		}
		a.add("here", "@every 10m", fn)
		b.add("rare", "CRON_TZ=Europe/Berlin 0 0 29 2 *", fn, scheduler.Jitter(hour))
		wantNil(t, "Task", b.Task("task", "@every 1h", func(context.Context, scheduler.Tick) error { return nil }))
		other := c.node(0, func(cfg *scheduler.Config) { cfg.Scope = "cron:a" })
		other.add("theirs", "@every 10m", fn)
		longer := c.node(0, func(cfg *scheduler.Config) { cfg.Scope = "crontab" })
		longer.add("theirs", "@every 10m", fn)
		for _, n := range c.nodes {
			n.start()
		}
		lock, err := a.locks.TryAcquire(c.Context(), "cron:lock") // an application's
		wantNil(t, "TryAcquire", err)
		until(start, 25*min)
		ops := c.admin()
		ops.Admin = admin.Of(ops.Scheduler)
		ops.add("here", "@every 10m", fn)
		ops.add("soon", "@every 10m", fn)
		want = append(want, "soon")
		slices.Sort(want)
		all, err := ops.Entries(c.Context())
		wantNil(t, "AllEntries", err)
		var names []string
		for _, e := range all {
			names = append(names, e.Name)
			if e.Here != (e.Name == "here" || e.Name == "soon") {
				t.Errorf("%s: registered here: %v", e.Name, e.Here)
			}
			if e.Problem != "" {
				t.Errorf("%s: %s", e.Name, e.Problem)
			}
			if e.Spec == "@every 10m0s" && e.Name != "soon" && e.Counts.Done != 2 {
				t.Errorf("%s: %d done, want 2", e.Name, e.Counts.Done)
			}
			theirs, err := b.Entry(c.Context(), e.Name)
			if e.Name == "soon" {
				continue // no other node has it
			}
			wantNil(t, "Entry", err)
			if theirs.Next != e.Next || e.Next.IsZero() {
				t.Errorf("%s: the next tick is %s, and %s to a node", e.Name, e.Next, theirs.Next)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("jobs %q, want %q", names, want)
		}
		wantNil(t, "Release", lock.Release(c.Context()))
	})
}

func TestAllEntriesOfManyJobs(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		for i := range 1100 {
			n.add(fmt.Sprintf("job%04d", i), "@every 1h", func(context.Context) error { return nil })
		}
		n.start()
		until(start, min)
		all, err := c.admin().Entries(c.Context())
		wantNil(t, "AllEntries", err)
		if len(all) != 1100 || all[0].Name != "job0000" || all[1099].Name != "job1099" {
			t.Errorf("%d entries", len(all))
		}
	})
}

// A ledger that cannot be read is shown as a problem.
func TestEntryOfWhatCannotBeRead(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		ops := c.admin()
		for name, tc := range map[string]struct{ memo, want string }{
			"page":    {"page 7", "the memo is not a ledger"},
			"later":   {`{"v":2,"spec":"@daily","last":0}`, "newer nodes execute the job"},
			"spec":    {`{"v":1,"spec":"0 25 * * *","last":0,"counts":{}}`, `hour is "25"`},
			"history": {`{"v":1,"spec":"@every 1h0m0s","last":0,"counts":{}}` + "\nx", "is not a history"},
		} {
			c.write(ops, "%cron:cron:"+name, tc.memo)
			c.enlist(ops, name)
			e, err := ops.Entry(c.Context(), name)
			wantNil(t, "Entry", err)
			if !strings.Contains(e.Problem, tc.want) {
				t.Errorf("%s: problem %q, want %s", name, e.Problem, tc.want)
			}
		}
		all, err := ops.Entries(c.Context())
		wantNil(t, "AllEntries", err)
		if len(all) != 4 {
			t.Errorf("%d entries, want all", len(all))
		}
	})
}

// A job that no node has any more becomes overdue at its next tick, and then shows no next
// tick. The same goes for a paused job.
func TestEntryOfARemovedJob(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, name := range []string{"old", "paused", "kept"} {
			a.add(name, "@every 10m", r.fn(a, sec))
		}
		b.add("kept", "@every 10m", r.fn(b, sec))
		b.add("new", "@every 10m", r.fn(b, sec))
		ops := c.admin()
		a.start()
		until(start, 5*min)
		b.start()
		until(start, 15*min)
		wantNil(t, "Pause", ops.Pause(c.Context(), "paused", ""))
		a.end()
		see := func(name string, next, overdue time.Duration) {
			t.Helper()
			e, err := ops.Entry(c.Context(), name)
			wantNil(t, "Entry", err)
			for what, pair := range map[string][2]any{"next": {e.Next, next}, "overdue": {e.Overdue, overdue}} {
				got, want := pair[0].(time.Time), pair[1].(time.Duration)
				if got.IsZero() != (want == 0) || want > 0 && !got.Equal(start.Add(want)) {
					t.Errorf("%s after %s: %s is %s, want %s", name, time.Since(start), what, got, want)
				}
			}
		}
		for _, name := range []string{"old", "kept", "new"} {
			see(name, 20*min, 0)
		}
		see("paused", 0, 0)
		until(start, 20*min+30*sec)
		see("old", 30*min, 0) // a node may still come for it
		until(start, 25*min)
		see("old", 0, 20*min)
		see("paused", 0, 20*min)
		see("kept", 30*min, 0)
		see("new", 30*min, 0)
		e, err := a.Entry(c.Context(), "old") // registered here, but not running
		wantNil(t, "Entry", err)
		if e.Overdue.IsZero() || !e.Next.Equal(start.Add(30*min)) {
			t.Errorf("entry %+v, want when it is run if Run is called again", e)
		}
	})
}

// If the store's clock is set back, jobs wait until it has caught up. That is reported once
// and shown.
func TestClockThatWasSetBackIsReported(t *testing.T) {
	for name, tc := range map[string]struct{ back time.Duration }{
		"by three hours": {3 * hour},
		"by 23 hours":    {23 * hour},
		"by a month":     {30 * 24 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &cluster{T: t, logs: new(testkit.Log)}
				var r runs
				start := time.Now()
				const when = 25 * min
				c.mem = memstore.New(&memstore.Config{Silent: true, Now: func() time.Time {
					if time.Since(start) >= when {
						return time.Now().Add(-tc.back)
					}
					return time.Now()
				}})
				for range 2 {
					n := c.node(0)
					n.add("job", "@every 10m", r.fn(n, 10*time.Millisecond))
					n.start()
				}
				ops := c.admin()
				until(start, when+5*min)
				e, err := ops.Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				told := c.events.of(scheduler.ClockSetBack)
				if tc.back > 24*hour {
					if len(told) != 1 || e.Behind != 0 {
						t.Errorf("reported %d times, entry %+v, want the job to start again", len(told), e)
					}
					until(start, when+16*min)
					if n := len(r.all()); n < 3 || n > 4 {
						t.Errorf("%d runs, want it to go on", n)
					}
					return
				}
				// It is 30 min by the store's clock, less what it was set back.
				if want := tc.back - 10*min; e.Behind != want || !e.Next.Equal(start.Add(30*min)) {
					t.Errorf("behind %s, next %s; want %s and %s", e.Behind, e.Next, want, start.Add(30*min))
				}
				wantNil(t, "Trigger", ops.Trigger(c.Context(), "job"))
				until(start, when+hour)
				told = c.events.of(scheduler.ClockSetBack)
				if len(told) != 2 || told[0].on == told[1].on || !told[0].Tick.At.Equal(start.Add(20*min)) {
					t.Errorf("reported %d times, want once by each node: %v", len(told), told)
				}
				for _, text := range []string{`level=WARN msg="scheduler: clock" scope=cron job=job`, "; the next tick to be executed is 2000-01-01T00:30:00Z"} {
					if !strings.Contains(c.logs.String(), text) {
						t.Errorf("not in the log: %s", text)
					}
				}
				if calls := r.all(); len(calls) != 3 || calls[2].tick.Cause != scheduler.CauseTrigger {
					t.Errorf("%d runs, want two ticks and the trigger", len(calls))
				}
				until(start, tc.back+51*min)
				if e, err = ops.Entry(c.Context(), "job"); err != nil || e.Behind != 0 || len(r.all()) != 6 {
					t.Errorf("entry %+v, %v, after %d runs; want it to go on", e, err, len(r.all()))
				}
			})
		})
	}
}
