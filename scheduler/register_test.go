package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

func TestRegistration(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		n := c.node(0)
		fn := func(context.Context) error { return nil }
		n.add("taken", "0 3 * * *", fn)
		for name, err := range map[string]error{
			"same name, other spec": n.Func("taken", "0 4 * * *", fn),
			"same name, same spec":  n.Func("taken", "0 3 * * *", fn),
			"no name":               n.Func("", "0 3 * * *", fn),
			"long name":             n.Func(string(make([]byte, 200)), "0 3 * * *", fn),
			"name not UTF-8":        n.Func("a\xff", "0 3 * * *", fn),
			"nil function":          n.Func("x", "0 3 * * *", nil),
			"nil enqueue":           n.Task("x", "0 3 * * *", nil),
			"bad spec":              n.Func("x", "0 25 * * *", fn),
			"never":                 n.Func("x", "0 0 30 2 *", fn),
			"nil option":            n.Func("x", "0 3 * * *", fn, nil),
			"timeout":               n.Func("x", "0 3 * * *", fn, scheduler.Timeout(0)),
			"retries":               n.Func("x", "0 3 * * *", fn, scheduler.Retry(101, sec, sec)),
			"pauses":                n.Func("x", "0 3 * * *", fn, scheduler.Retry(1, 2*sec, sec)),
			"no pause":              n.Func("x", "0 3 * * *", fn, scheduler.Retry(1, 0, sec)),
			"jitter":                n.Func("x", "0 3 * * *", fn, scheduler.Jitter(-sec)),
			"much jitter":           n.Func("x", "0 3 * * *", fn, scheduler.Jitter(25*hour)),
			"limit":                 n.Func("x", "0 3 * * *", fn, scheduler.CatchUpAll(hour, 0)),
			"high limit":            n.Func("x", "0 3 * * *", fn, scheduler.CatchUpAll(hour, 1001)),
			"window":                n.Func("x", "0 3 * * *", fn, scheduler.CatchUpAll(0, 1)),
			"none at once":          n.Func("x", "0 3 * * *", fn, scheduler.MaxConcurrent(0)),
			"many at once":          n.Func("x", "0 3 * * *", fn, scheduler.MaxConcurrent(21)),
			"tasks at once":         n.Task("x", "0 3 * * *", func(context.Context, scheduler.Tick) error { return nil }, scheduler.MaxConcurrent(2)),
			"cancel several":        n.Func("x", "0 3 * * *", fn, scheduler.MaxConcurrent(2), scheduler.OverlapCancel()),
			"queue":                 n.Func("x", "0 3 * * *", fn, scheduler.OverlapQueue(0)),
			"long queue":            n.Func("x", "0 3 * * *", fn, scheduler.OverlapQueue(1001)),
			"deadline":              n.Func("x", "0 3 * * *", fn, scheduler.StartDeadline(sec-1)),
			"late deadline":         n.Func("x", "0 3 * * *", fn, scheduler.StartDeadline(367*24*hour)),
			"history":               n.Func("x", "0 3 * * *", fn, scheduler.KeepHistory(-1, 10)),
			"long history":          n.Func("x", "0 3 * * *", fn, scheduler.KeepHistory(10, 51)),
			"start id":              n.Func("x", "0 3 * * *", fn, scheduler.RunAtStart(string(make([]byte, 129)))),
			"cancel a task":         n.Task("x", "0 3 * * *", func(context.Context, scheduler.Tick) error { return nil }, scheduler.OverlapCancel()),
			"nil Scheduler":         (*scheduler.Scheduler)(nil).Func("x", "0 3 * * *", fn),
			"zero Scheduler":        new(scheduler.Scheduler).Func("x", "0 3 * * *", fn),
		} {
			if !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		if err := n.Func("x", "0 3 * * *", fn); err != nil {
			t.Errorf("none of these took the name: %v", err)
		}
		wantNil(t, "Close", n.locks.Close(c.Context()))
		n.start()
		wantErr(t, <-n.done, joblock.ErrClosed)
		n.done <- nil
	})
}

func TestConfigBounds(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		locks := c.node(0).locks
		for name, cfg := range map[string]scheduler.Config{
			"no scope": {},
			"scope":    {Scope: strings.Repeat("x", 33)},
			"scop\xff": {Scope: "a\xff"},
			"node":     {Node: strings.Repeat("x", driver.MaxLabelBytes+1)},
			"node\n":   {Node: "a\n"},
			"node\xff": {Node: "a\xff"},
			"full":     {Concurrency: -1},
			"grace":    {Grace: -1},
			"sync":     {Sync: time.Millisecond},
			"sync+":    {Sync: 2 * time.Hour},
		} {
			if name != "no scope" && cfg.Scope == "" {
				cfg.Scope = "x"
			}
			if _, err := scheduler.New(locks, &cfg); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		if _, err := scheduler.New(locks, nil); !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), `Config.Scope is empty, must name the application`) {
			t.Errorf("nil Config: %v, want ErrInvalid and what to do", err)
		}
		if _, err := scheduler.New(nil, &scheduler.Config{Scope: "x"}); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("nil locks: %v, want ErrInvalid", err)
		}
		wantNil(t, "Close", locks.Close(c.Context()))
	})
}

func TestSchedulersThatNewDidNotMake(t *testing.T) {
	for name, s := range map[string]*scheduler.Scheduler{"nil": nil, "zero": new(scheduler.Scheduler)} {
		ctx := context.Background()
		a := admin.Of(s)
		_, entries := a.Entries(ctx)
		_, entry := a.Entry(ctx, "job")
		_, trigger := a.Trigger(ctx, "job")
		for call, err := range map[string]error{
			"Run": s.Run(ctx), "Remove": s.Remove("job"), "SetSpec": s.SetSpec("job", "0 3 * * *"),
			"Entries": entries, "Entry": entry, "Pause": a.Pause(ctx, "job", ""), "Resume": a.Resume(ctx, "job", ""), "Trigger": trigger,
		} {
			if !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s of a %s Scheduler: %v, want ErrInvalid", call, name, err)
			}
		}
	}
	virtual(t, func(c *cluster) {
		s, err := scheduler.New(new(joblock.Locker), &scheduler.Config{Scope: "x"})
		wantNil(c, "New", err)
		wantErr(c, s.Run(c.Context()), joblock.ErrInvalid)
	})
}

// The store accepts the key of the longest scope and name, escaped.
func TestLongestKey(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0, func(cfg *scheduler.Config) { cfg.Scope = strings.Repeat(":", 32) })
		n.add(strings.Repeat(":", 128), "@every 1m", r.fn(n, sec))
		n.start()
		until(start, 61*sec)
		r.wantTicks(t, start, min)
	})
}

func TestRunTwice(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 1m", r.fn(n, sec))
		n.start()
		until(start, 10*sec)
		if err := n.Run(c.Context()); err == nil {
			t.Error("a second Run at the same time returned nil")
		}
		n.end()
		until(start, 3*min+10*sec)
		n.start() // what was missed is caught up with
		n.add("late", "@every 1m", r.fn(n, sec))
		until(start, 4*min+10*sec)
		r.wantTicks(t, start, 3*min, 4*min, 4*min)
	})
}

// A spec that another scheduler reads otherwise is registered, and logged with what it means here.
func TestSpecOfAnotherSchedulerIsLogged(t *testing.T) {
	virtual(t, func(c *cluster) {
		n := c.node(0).start()
		n.add("rollup", "0 0 12 ? * fri", func(context.Context) error { return nil })
		if strings.Contains(c.logs.String(), "Quartz") {
			c.Errorf("logged %s", c.logs)
		}
		wantNil(c, "SetSpec", n.SetSpec("rollup", "0 0 12 ? * 6"))
		for _, want := range []string{"level=WARN", "job=rollup", "in Quartz 1 is Sunday", "words=\"at 12:00 on Saturday, UTC\""} {
			if !strings.Contains(c.logs.String(), want) {
				c.Errorf("logged %s, want %s", c.logs, want)
			}
		}
	})
}
