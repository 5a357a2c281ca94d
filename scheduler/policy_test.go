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

const (
	sec  = time.Second
	min  = time.Minute
	hour = time.Hour
)

// count returns how many ticks the events of that kind are about.
func (c *cluster) count(kind scheduler.Kind) (n int) {
	for _, e := range c.events.of(kind) {
		n += e.Count
	}
	return n
}

func TestMissedTicks(t *testing.T) {
	for name, tc := range map[string]struct {
		opt    scheduler.Option
		back   time.Duration // when a node is up again
		want   []time.Duration
		missed int
	}{
		"one by default":              {nil, 35*min + 90*sec, []time.Duration{10 * min, 30 * min}, 1},
		"one":                         {scheduler.CatchUpOne(), 35 * min, []time.Duration{10 * min, 30 * min}, 1},
		"none":                        {scheduler.CatchUpNone(), 35 * min, []time.Duration{10 * min}, 2},
		"none, but one is not yet":    {scheduler.CatchUpNone(), 30*min + 50*sec, []time.Duration{10 * min, 30 * min}, 1},
		"all":                         {scheduler.CatchUpAll(hour, 100), 35 * min, []time.Duration{10 * min, 20 * min, 30 * min}, 0},
		"all within a window":         {scheduler.CatchUpAll(8*min, 100), 35 * min, []time.Duration{10 * min, 30 * min}, 1},
		"all, but two":                {scheduler.CatchUpAll(24*hour, 2), 65 * min, []time.Duration{10 * min, 50 * min, 60 * min}, 3},
		"all, none within a window":   {scheduler.CatchUpAll(min, 100), 35 * min, []time.Duration{10 * min}, 2},
		"all, the newest is punctual": {scheduler.CatchUpAll(sec, 100), 30*min + 30*sec, []time.Duration{10 * min, 30 * min}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				opts := []scheduler.Option{}
				if tc.opt != nil {
					opts = append(opts, tc.opt)
				}
				start := time.Now()
				a, b := c.node(0), c.node(0)
				a.add("job", "@every 10m", r.fn(a, sec), opts...)
				b.add("job", "@every 10m", r.fn(b, sec), opts...)
				a.start()
				until(start, 15*min)
				a.end()
				until(start, tc.back)
				b.start()
				until(start, tc.back+10*sec)
				r.wantTicks(t, start, tc.want...)
				if n := c.count(scheduler.Missed); n != tc.missed {
					t.Errorf("%d ticks reported as missed, want %d", n, tc.missed)
				}
				e, err := b.Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if e.Counts.Missed != int64(tc.missed) || e.Counts.Done != int64(len(tc.want)) {
					t.Errorf("counts %+v, want %d missed and %d done", e.Counts, tc.missed, len(tc.want))
				}
			})
		})
	}
}

// When a node dies while it catches up, another executes the remaining ticks.
func TestBacklogSurvivesItsNode(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b, d := c.node(0), c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, 20*sec), scheduler.CatchUpAll(24*hour, 10))
		}
		a.start()
		until(start, 5*min)
		a.end()
		until(start, 45*min)
		b.start() // 10, 20, 30, 40
		until(start, 45*min+25*sec)
		b.end() // in the middle of 20
		until(start, 46*min)
		d.start()
		until(start, 49*min)
		r.wantTicks(t, start, 10*min, 20*min, 20*min, 30*min, 40*min)
	})
}

// A trigger does not wait for ticks that are caught up with.
func TestTriggerComesBeforeTheBacklog(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "@every 10m", r.fn(n, 20*sec), scheduler.CatchUpAll(24*hour, 10))
		}
		a.start()
		until(start, 5*min)
		a.end()
		until(start, 45*min)
		b.start()
		until(start, 45*min+10*sec)
		wantNil(t, "Trigger", b.Trigger(c.Context(), "job"))
		until(start, 49*min)
		r.wantTicks(t, start, 10*min, 45*min+10*sec, 20*min, 30*min, 40*min)
	})
}

// A job that is new to the cluster has missed nothing.
func TestNewJobHasMissedNothing(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		until(start, 5*min+30*sec)
		n := c.node(0)
		n.add("job", "@every 5m", r.fn(n, sec), scheduler.CatchUpAll(24*hour, 100))
		n.start()
		until(start, 11*min)
		r.wantTicks(t, start, 10*min)
	})
}

// A job that ticks every second and was away for a month is caught up with at once.
func TestVeryManyMissedTicks(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		for _, n := range c.nodes {
			n.add("job", "* * * * * *", func(ctx context.Context) error { r.note(ctx, n); return nil }, scheduler.CatchUpAll(forever, 3))
		}
		a.start()
		until(start, 2*sec+500*time.Millisecond)
		a.end()
		until(start, 30*24*hour+500*time.Millisecond)
		b.start()
		until(start, 30*24*hour+900*time.Millisecond)
		month := 30 * 24 * hour
		r.wantTicks(t, start, sec, 2*sec, month-2*sec, month-sec, month)
		if n := c.count(scheduler.Missed); n < 9000 || n > 10_000 {
			t.Errorf("%d counted as missed, want about 10000", n)
		}
	})
}

const forever = 1<<63 - 1

func TestOverlap(t *testing.T) {
	for name, tc := range map[string]struct {
		opts    []scheduler.Option
		want    []time.Duration
		skipped int
		kind    scheduler.Kind
	}{
		"skipped by default":   {nil, []time.Duration{min, 5 * min}, 6, scheduler.Done},
		"the first are queued": {[]scheduler.Option{scheduler.OverlapQueue(2)}, []time.Duration{min, 2 * min, 3 * min}, 3, scheduler.Done},
		"one is queued":        {[]scheduler.Option{scheduler.OverlapQueue(1)}, []time.Duration{min, 2 * min, 5 * min}, 4, scheduler.Done},
		"the newest is kept":   {[]scheduler.Option{scheduler.OverlapNewest()}, []time.Duration{min, 4 * min, 7 * min}, 4, scheduler.Done},
		"cancelled":            {[]scheduler.Option{scheduler.OverlapCancel()}, []time.Duration{min, 2 * min, 3 * min, 4 * min, 5 * min, 6 * min, 7 * min, 8 * min}, 0, scheduler.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				for range 3 {
					n := c.node(0)
					n.add("job", "@every 1m", r.fn(n, 3*min+20*sec), tc.opts...)
					n.start()
				}
				until(start, 8*min+10*sec)
				r.wantTicks(t, start, tc.want...)
				if n := c.count(scheduler.Overlapped); n != tc.skipped {
					t.Errorf("%d ticks reported as overlapped, want %d", n, tc.skipped)
				}
				ended := c.events.of(tc.kind)
				if len(ended) == 0 {
					t.Fatalf("no event %q", tc.kind)
				}
				if e := ended[0]; tc.kind == scheduler.Cancelled && !errors.Is(e.Err, scheduler.ErrOverlapped) {
					t.Errorf("cancelled with %v", e.Err)
				}
			})
		})
	}
}

// What waits and what was skipped is on record while the execution goes on.
func TestOverlapIsBookedWhenATickComes(t *testing.T) {
	for name, tc := range map[string]struct {
		opts          []scheduler.Option
		waits, booked int // after 4.5 s
	}{
		"skipped by default":   {nil, 0, 4},
		"the first are queued": {[]scheduler.Option{scheduler.OverlapQueue(3)}, 3, 1},
		"the newest is kept":   {[]scheduler.Option{scheduler.OverlapNewest()}, 1, 3},
		"two at once":          {[]scheduler.Option{scheduler.OverlapQueue(2), scheduler.MaxConcurrent(2)}, 2, 1},
		"jitter":               {[]scheduler.Option{scheduler.Jitter(300 * time.Millisecond)}, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				n := c.node(0)
				n.add("job", "@every 1s; from 2000-01-01T00:01", r.fn(n, 20*sec), tc.opts...)
				n.start()
				until(start, min+4500*time.Millisecond)
				look := func(triggered int) {
					t.Helper()
					e, err := c.admin().Entry(t.Context(), "job")
					if wantNil(t, "Entry", err); e.Waiting != tc.waits+triggered || e.Counts.Overlapped != int64(tc.booked) || e.Counts.Missed != 0 {
						t.Errorf("%d wait, %+v; want %d that wait, %d overlapped", e.Waiting, e.Counts, tc.waits+triggered, tc.booked)
					}
				}
				look(0)
				wantNil(t, "Trigger", n.Trigger(t.Context(), "job"))
				until(start, min+4900*time.Millisecond)
				look(1)
			})
		})
	}
}

// A job whose ticks are skipped as overlapped again and again is stuck, until an execution ends.
func TestAJobThatIsStuck(t *testing.T) {
	for name, tc := range map[string]struct {
		every time.Duration
		opts  []scheduler.Option
		task  bool
		stuck bool // after half an hour
	}{
		"a function":   {every: min, stuck: true},
		"at once":      {every: min, opts: []scheduler.Option{scheduler.MaxConcurrent(2)}, stuck: true},
		"queued":       {every: min, opts: []scheduler.Option{scheduler.OverlapQueue(5)}, stuck: true},
		"a task":       {every: 20 * sec, task: true, stuck: true},
		"queued tasks": {every: 20 * sec, task: true, opts: []scheduler.Option{scheduler.OverlapNewest()}, stuck: true},
		"rare ticks":   {every: 14 * min},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start, busy := time.Now(), make(chan struct{})
				every := fmt.Sprintf("@every %s", tc.every)
				enqueued := false
				for range 2 {
					n := c.node(0)
					if tc.task {
						n.addTask("job", every, func(context.Context, scheduler.Tick) error {
							select {
							case <-busy:
							default:
								if enqueued {
									return &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Job: "q/other"}
								}
								enqueued = true
							}
							return nil
						}, tc.opts...)
					} else {
						n.add("job", every, func(context.Context) error {
							<-busy
							return nil
						}, tc.opts...)
					}
					n.start()
				}
				look := func(at time.Duration, stuck bool, events int) {
					t.Helper()
					until(start, at)
					e, err := c.admin().Entry(t.Context(), "job")
					if wantNil(t, "Entry", err); e.Stuck != stuck || stuck && (e.Overlaps < 3 || time.Since(e.OverlapsSince) < 10*min) {
						t.Errorf("after %s: stuck %v, %d in a row since %s", at, e.Stuck, e.Overlaps, e.OverlapsSince)
					}
					if all := c.events.of(scheduler.Stuck); len(all) != events || events > 0 && (all[0].Err == nil || all[0].Count < 3) {
						t.Errorf("after %s: events %+v, want %d", at, all, events)
					}
				}
				look(9*min, false, 0)
				events := 0
				if tc.stuck {
					events = 1
				}
				look(30*min, tc.stuck, events)
				close(busy)
				look(60*min, false, events)
				if n := strings.Count(c.logs.String(), "level=WARN msg=\"scheduler: stuck\""); n != events {
					t.Errorf("%d warnings, want %d", n, events)
				}
			})
		})
	}
}

// While a job is paused, the ticks that come during an execution are skipped because of the pause.
func TestAPauseDuringAnExecution(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10s", r.fn(n, 55*sec), scheduler.OverlapQueue(10))
		n.start()
		until(start, 25*sec)
		ops := c.admin()
		wantNil(t, "Pause", ops.Pause(t.Context(), "job", ""))
		until(start, 45*sec)
		wantNil(t, "Resume", ops.Resume(t.Context(), "job", ""))
		until(start, 65*sec+100*time.Millisecond)
		e, err := ops.Entry(t.Context(), "job")
		if wantNil(t, "Entry", err); e.Waiting != 2 || e.Counts.Paused != 2 { // 50 s and 60 s; the one of 20 s runs
			t.Errorf("%d wait, %+v", e.Waiting, e.Counts)
		}
	})
}

// If a node dies, the ticks that came while it lived stay booked, and only those that came after are missed.
func TestBookedTicksOfANodeThatDies(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10s", r.fn(n, hour))
		n.start()
		until(start, 35*sec)
		n.cut()
		other := c.node(0)
		other.add("job", "@every 10s", r.fn(other, hour))
		other.start()
		until(start, 65*sec)
		e, err := other.Entry(t.Context(), "job")
		if wantNil(t, "Entry", err); e.Counts.TakenOver != 1 || e.Counts.Overlapped != 4 || e.Waiting != 1 || e.Counts.Missed != 0 {
			t.Errorf("%d wait, %+v; want that of 40 s to wait, those of 20, 30, 50 and 60 s overlapped", e.Waiting, e.Counts)
		}
	})
}

// A tick begins within the deadline or is missed, also if it waits for the end of an
// execution or is caught up with. A trigger has no deadline.
func TestStartDeadline(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var short, long, once runs
		start := time.Now()
		begin := func() *node {
			n := c.node(0)
			n.add("short", "@every 10m", short.fn(n, sec), scheduler.StartDeadline(6*min), scheduler.CatchUpAll(24*hour, 100))
			n.add("long", "@every 10m", long.fn(n, 34*min), scheduler.StartDeadline(18*min), scheduler.OverlapQueue(100))
			n.add("once", "@every 10m", once.fn(n, sec), scheduler.StartDeadline(5*sec), scheduler.CatchUpNone())
			return n.start()
		}
		a := begin()
		until(start, 55*min)
		a.end() // during the execution of the tick of 30 min, before that of 40 min
		until(start, 80*min+30*sec)
		begin()
		until(start, 95*min)
		wantNil(t, "Trigger", c.nodes[0].Trigger(c.Context(), "long"))
		wantNil(t, "Pause", c.nodes[0].Pause(c.Context(), "long", ""))
		until(start, 170*min+5*sec)
		short.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min, 50*min, 80*min, 90*min, 100*min, 110*min, 120*min, 130*min, 140*min, 150*min, 160*min, 170*min)
		once.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min, 50*min, 90*min, 100*min, 110*min, 120*min, 130*min, 140*min, 150*min, 160*min, 170*min)
		long.wantTicks(t, start, 10*min, 30*min, 30*min, 95*min)
		e, err := c.nodes[0].Entry(c.Context(), "long")
		wantNil(t, "Entry", err)
		if want := (admin.Counts{Done: 3, TakenOver: 1, Missed: 7, Paused: 8}); e.Counts != want || e.Waiting != 0 {
			t.Errorf("%d wait, counts %+v, want %+v", e.Waiting, e.Counts, want)
		}
	})
}

// A failure stays in the history, however many successes follow.
func TestKeepHistory(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 1m", func(ctx context.Context) error {
			if tick, _ := scheduler.TickFrom(ctx); tick.At.Sub(start)%hour == 30*min {
				return errors.New("half past")
			}
			return nil
		}, scheduler.KeepHistory(2, 3))
		n.start()
		until(start, 5*hour+5*sec)
		e, err := n.Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		var got []time.Duration
		for _, x := range e.History {
			got = append(got, x.Tick.At.Sub(start))
			if failed := x.Tick.At.Sub(start)%hour == 30*min; failed != (x.State == scheduler.Failed) || failed != (x.Error == "half past") {
				t.Errorf("%+v", x)
			}
		}
		want := []time.Duration{299 * min, 298 * min, 297 * min, 270 * min, 210 * min}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the history has %v, want %v", got, want)
		}
	})
}

// Every node uses the same part of the jitter, and the tick's time does not include it.
func TestJitter(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		all := make(map[string]*runs)
		for i := range 20 {
			all[fmt.Sprint("job", i)] = new(runs)
		}
		for range 2 {
			n := c.node(0)
			for name, r := range all {
				n.add(name, "@every 10m", r.fn(n, 10*time.Millisecond), scheduler.Jitter(5*min))
			}
			n.start()
		}
		until(start, 30*min+2*sec) // a node that starts between a tick and its delayed time does not execute it
		n := c.node(0)
		for name, r := range all {
			n.add(name, "@every 10m", r.fn(n, 10*time.Millisecond), scheduler.Jitter(5*min))
		}
		n.start()
		until(start, 36*min)
		var least, most time.Duration = hour, 0
		for name, r := range all {
			calls := r.all()
			if len(calls) != 3 {
				t.Fatalf("%s ran %d times, want 3", name, len(calls))
			}
			first := calls[0].begun.Sub(calls[0].tick.At)
			for i, call := range calls {
				if want := start.Add(time.Duration(i+1) * 10 * min); !call.tick.At.Equal(want) {
					t.Errorf("%s: tick %v, want %v", name, call.tick.At, want)
				}
				if d := call.begun.Sub(call.tick.At) - first; d.Abs() > 100*time.Millisecond {
					t.Errorf("%s: delayed by %s more than before", name, d)
				}
			}
			if first < least {
				least = first
			}
			if first > most {
				most = first
			}
		}
		if least > 90*sec || most < 3*min || most > 5*min+sec {
			t.Errorf("delays from %s to %s, want them spread over 5m", least, most)
		}
		for _, e := range c.events.of(scheduler.Started) {
			if e.Late < 0 || e.Late > 100*time.Millisecond {
				t.Errorf("reported to be %s late", e.Late)
			}
		}
	})
}

func TestRunAtStart(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		begin := func(id string) {
			n := c.node(0)
			n.add("warm", "@every 24h", r.fn(n, sec), scheduler.RunAtStart(id))
			n.start()
			time.Sleep(5 * sec)
		}
		for _, id := range []string{"v1", "v1", "v2", "v1", "v2"} { // a node with v1 restarts while v2 is rolled out
			begin(id)
		}
		calls := r.all()
		if len(calls) != 2 {
			t.Fatalf("%d runs, want one for each release", len(calls))
		}
		for _, call := range calls {
			if call.tick.Cause != scheduler.CauseStart || call.tick.At.Before(start) {
				t.Errorf("run for %+v", call.tick)
			}
		}
		if calls[0].tick.ID() == calls[1].tick.ID() {
			t.Errorf("both have the ID %q", calls[0].tick.ID())
		}
	})
}

// Nodes of two releases. Each comes at its own ticks, and nothing is caught up with. An
// instant that both have is executed once. Jobs that the others do not have go on.
func TestTwoReleasesAtATime(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var changed, dropped, added runs
		start := time.Now()
		begin := func(spec string, other string, r *runs) *node {
			n := c.node(0)
			n.add("changed", spec, changed.fn(n, 10*time.Millisecond))
			n.add(other, "@every 10m", r.fn(n, 10*time.Millisecond))
			return n.start()
		}
		a, b := begin("@every 20m", "dropped", &dropped), begin("@every 20m", "dropped", &dropped)
		until(start, 47*min)
		begin("@every 3m", "added", &added) // 45 is a tick of the new spec, and not caught up with
		until(start, 62*min)
		changed.wantTicks(t, start, 20*min, 40*min, 48*min, 51*min, 54*min, 57*min, 60*min)
		a.end()
		b.end()
		until(start, 71*min)
		dropped.wantTicks(t, start, 10*min, 20*min, 30*min, 40*min, 50*min, 60*min)
		added.wantTicks(t, start, 50*min, 60*min, 70*min)
		if n := c.count(scheduler.Missed); n != 0 {
			t.Errorf("%d ticks reported as missed", n)
		}
	})
}

func TestZones(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	virtual(t, func(c *cluster) { // 1 January 2000, 00:00 UTC
		t := c.T
		start := time.Now()
		n := c.node(0, func(cfg *scheduler.Config) { cfg.Zone = berlin })
		var config, spec runs
		n.add("config", "0 8 * * *", config.fn(n, sec))
		n.add("spec", "CRON_TZ=America/New_York 0 8 * * *", spec.fn(n, sec))
		n.start()
		until(start, 24*hour)
		config.wantTicks(t, start, 7*hour)
		spec.wantTicks(t, start, 13*hour)
	})
}

// A node that is full leaves ticks to the others. If there are none, it executes the ticks
// one after the other.
func TestConcurrencyIsBounded(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start := time.Now()
				all := make([]runs, 4)
				for range nodes {
					n := c.node(0, func(cfg *scheduler.Config) { cfg.Concurrency = 2 })
					for i := range all {
						n.add(fmt.Sprint("job", i), "@every 1h", all[i].fn(n, 20*sec))
					}
					n.start()
				}
				until(start, hour+15*sec)
				if n, want := len(c.events.of(scheduler.Started)), 2*nodes; n != want {
					t.Errorf("%d running, want %d", n, want)
				}
				until(start, hour+3*min)
				if n := len(c.events.of(scheduler.Done)); n != 4 {
					t.Errorf("%d done, want 4", n)
				}
			})
		})
	}
}

// A tick that crashes every node that executes it is written off in the end.
func TestPoisonousTickIsGivenUp(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		calls := 0
		start := time.Now()
		for range 15 {
			n := c.node(0)
			n.add("job", "@every 10m", func(ctx context.Context) error {
				calls++
				n.cut() // the process dies
				<-ctx.Done()
				return context.Cause(ctx)
			})
			n.start()
		}
		until(start, 15*min)
		if calls != 11 {
			t.Errorf("%d nodes ended, want 11", calls)
		}
		if n := len(c.events.of(scheduler.Lost)); n != 1 {
			t.Errorf("reported as lost %d times, want once", n)
		}
	})
}
