package scheduler_test

import (
	"archive/zip"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler"
)

// A day of ticks, or a part of a day, on nodes whose clocks differ by up to 4 s. Nodes are killed and replaced,
// or cut off for longer than a lease. Every tick is done exactly once or, with AtMostOnce,
// begun at most once. Some jobs are shorter than the skew, some longer, and one also
// takes longer than its period.
func TestADayOfTicks(t *testing.T) {
	for _, tc := range []struct {
		nodes          int
		period, length time.Duration
	}{
		{3, 2 * min, testkit.Size(2*hour, 6*hour)},
		{10, 5 * min, testkit.Size(3*hour, 24*hour)},
		{testkit.Size(20, 50), 20 * min, testkit.Size(2*hour, 6*hour)},
	} {
		t.Run(fmt.Sprint(tc.nodes), func(t *testing.T) {
			virtual(t, func(c *cluster) { c.day(tc.nodes, tc.period, tc.length) })
		})
	}
}

// day plays that many nodes, and jobs with that period, for that long.
func (c *cluster) day(nodes int, period, length time.Duration) {
	t := c.T
	dice := rand.New(rand.NewPCG(uint64(nodes), 1))
	spec := fmt.Sprintf("@every %s", period)
	var short, long, once, queued, several runs
	begin := func() *node {
		skew := time.Duration(dice.Int64N(int64(4*time.Second))) - 2*time.Second
		n := c.node(skew, func(cfg *scheduler.Config) { cfg.Sync = 10 * min })
		n.add("short", spec, short.fn(n, 10*time.Millisecond))
		n.add("long", spec, long.fn(n, 30*sec))
		n.add("queued", spec, func(ctx context.Context) error { // every fourth execution takes longer than a period
			tick, _ := scheduler.TickFrom(ctx)
			if tick.At.UnixNano()/int64(period)%4 == 1 {
				return queued.fn(n, period*7/4)(ctx)
			}
			return queued.fn(n, 10*sec)(ctx)
		}, scheduler.OverlapQueue(100))
		// Three executions run at once, and four while some are executed again.
		if nodes == 3 {
			n.add("several", spec, several.fn(n, period*9/4), scheduler.MaxConcurrent(4), scheduler.OverlapQueue(100))
		}
		n.add("once", spec, once.fn(n, 5*sec), scheduler.AtMostOnce())
		return n.start()
	}
	var up []*node
	for range nodes {
		up = append(up, begin())
	}
	start := time.Now()
	for time.Since(start) < length-20*min {
		time.Sleep(time.Duration(dice.Int64N(int64(20 * min))))
		i := dice.IntN(len(up) - 1) // the last one stays
		if dice.IntN(2) == 0 {      // a node that is executing
			until(time.Now().Truncate(period), period+sec+time.Duration(dice.Int64N(int64(25*sec))))
			calls := long.all()
			for k, n := range up[:len(up)-1] {
				if n.name == calls[len(calls)-1].on {
					i = k
				}
			}
		}
		n := up[i]
		if n.dead() {
			continue
		}
		n.cut()
		if dice.IntN(2) == 0 {
			n.stop() // killed
			up[i] = begin()
			continue
		}
		time.AfterFunc(3*ttl, n.heal)
	}
	until(start, length+6*period+2*min)
	for _, n := range up {
		n.heal()
	}
	ticks := int(length / period)
	done := c.perTick(scheduler.Done)
	lost := c.perTick(scheduler.Lost)
	for i := 1; i <= ticks; i++ {
		at := start.Add(time.Duration(i) * period).UTC()
		for _, job := range []string{"short", "long", "queued", "several"} {
			if n := done[job][at]; n != 1 && (job != "several" || nodes == 3) {
				t.Errorf("%s of %s was done %d times, want once", job, at, n)
			}
		}
		if d, l := done["once"][at], lost["once"][at]; d+l != 1 {
			t.Errorf("once of %s was done %d times and lost %d times", at, d, l)
		}
	}
	var last time.Time
	for _, e := range c.events.of(scheduler.Done) {
		if e.Tick.Name != "queued" {
			continue
		}
		if e.Tick.At.Before(last) {
			t.Errorf("queued of %s was done after %s", e.Tick.At, last)
		}
		last = e.Tick.At
	}
	begun := make(map[time.Time]int)
	for _, call := range once.all() {
		if begun[call.tick.At]++; begun[call.tick.At] > 1 {
			t.Errorf("once of %s was begun twice", call.tick.At)
		}
	}
	if n := c.count(scheduler.Missed) + c.count(scheduler.Overlapped); n != 0 {
		t.Errorf("%d ticks were missed or overlapped", n)
	}
	taken := len(c.events.of(scheduler.TakenOver))
	t.Logf("%d nodes, %d with those that replaced others: %d ticks of each job; %d runs were taken over, %d were lost",
		nodes, len(c.nodes), ticks, taken, len(c.events.of(scheduler.Lost)))
	if taken == 0 {
		t.Error("nothing was taken over: this proves little")
	}
	synctest.Wait()
}

// perTick counts the events of that kind by job and tick.
func (c *cluster) perTick(kind scheduler.Kind) map[string]map[time.Time]int {
	out := make(map[string]map[time.Time]int)
	for _, e := range c.events.of(kind) {
		if out[e.Tick.Name] == nil {
			out[e.Tick.Name] = make(map[time.Time]int)
		}
		out[e.Tick.Name][e.Tick.At.UTC()]++
	}
	return out
}

// The last day of a leap year, with zone data that have a rule for it. Every tick is
// executed once and in order, and the Scheduler stops.
func TestJobsOnTheLastDayOfALeapYear(t *testing.T) {
	madrid := ruleZone(t, "Europe/Madrid")
	virtual(t, func(c *cluster) {
		t := c.T
		var rhythm, named, utc runs
		time.Sleep(364 * 24 * hour) // from 1 January 2000
		start := time.Now()
		for range 2 {
			n := c.node(0, func(cfg *scheduler.Config) { cfg.Zone = madrid })
			n.add("rhythm", "0 * * * *", rhythm.fn(n, sec))
			n.add("named", "30 2 * * *", named.fn(n, sec))
			n.add("utc", "CRON_TZ=UTC 0 */6 * * *", utc.fn(n, sec))
			n.start()
		}
		until(start, 49*hour+45*min)
		var hours, quarters []time.Duration
		for h := hour; h <= 49*hour; h += hour {
			if hours = append(hours, h); h%(6*hour) == 0 {
				quarters = append(quarters, h)
			}
		}
		rhythm.wantTicks(t, start, hours...)
		named.wantTicks(t, start, hour+30*min, 25*hour+30*min, 49*hour+30*min)
		utc.wantTicks(t, start, quarters...)
		for _, name := range []string{"rhythm", "named", "utc"} {
			e, err := c.nodes[0].Entry(c.Context(), name)
			wantNil(t, "Entry", err)
			if e.Counts.Missed != 0 || !e.Next.After(time.Now()) {
				t.Errorf("%s: %+v, next is %s", name, e.Counts, e.Next)
			}
		}
	})
}

// ruleZone loads a zone from the data that come with Go. They have a rule for future years;
// those of many systems list each change instead.
func ruleZone(t *testing.T, name string) *time.Location {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	wantNil(t, "go env", err)
	all, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	wantNil(t, "open", err)
	defer all.Close()
	data, err := fs.ReadFile(all, name)
	wantNil(t, "read", err)
	zone, err := time.LoadLocationFromTZData(name, data)
	wantNil(t, "load", err)
	return zone
}
