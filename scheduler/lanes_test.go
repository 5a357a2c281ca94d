package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler"
)

// crowd counts how many functions run at the same time.
type crowd struct {
	mu        sync.Mutex
	now, most int
}

func (c *crowd) in(fn func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		c.mu.Lock()
		c.now++
		c.most = max(c.most, c.now)
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now--
		}()
		return fn(ctx)
	}
}

// atOnce returns how many functions have run at the same time.
func (c *crowd) atOnce() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// Up to n executions run at once, on all nodes together. What comes beyond that overlaps.
func TestAtOnce(t *testing.T) {
	ticks := func(minutes ...int) (out []time.Duration) {
		for _, m := range minutes {
			out = append(out, time.Duration(m)*min)
		}
		return out
	}
	for name, tc := range map[string]struct {
		opts    []scheduler.Option
		want    []time.Duration
		skipped int
		waiting int
	}{
		// Each execution takes 250 s.
		"skipped": {nil, ticks(1, 2, 3, 6, 7, 8, 11, 12), 4, 0},
		"queued":  {[]scheduler.Option{scheduler.OverlapQueue(10)}, ticks(1, 2, 3, 4, 5, 6, 7, 8, 9), 0, 3},
		"newest":  {[]scheduler.Option{scheduler.OverlapNewest()}, ticks(1, 2, 3, 5, 6, 7, 9, 10, 11), 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				var crowd crowd
				start := time.Now()
				for range 3 {
					n := c.node(0)
					n.add("job", "@every 1m", crowd.in(r.fn(n, 250*sec)), append(tc.opts, scheduler.MaxConcurrent(3))...)
					n.start()
				}
				until(start, 12*min+10*sec)
				r.wantTicks(t, start, tc.want...)
				e, err := c.nodes[0].Entry(c.Context(), "job")
				wantNil(t, "Entry", err)
				if n := c.count(scheduler.Overlapped); n != tc.skipped || e.Waiting != tc.waiting {
					t.Errorf("%d ticks reported as overlapped, %d wait, want %d and %d", n, e.Waiting, tc.skipped, tc.waiting)
				}
				if crowd.most != 3 || len(e.Running) != crowd.now {
					t.Errorf("%d ran at once, want 3; %d run, the entry has %+v", crowd.most, crowd.now, e.Running)
				}
				fences := make(map[int64]bool)
				for i, call := range r.all() {
					fences[call.fence] = true
					if late := call.begun.Sub(call.tick.At); tc.opts == nil && late > sec {
						t.Errorf("execution %d began %s late", i, late)
					}
				}
				if len(fences) != len(r.all()) {
					t.Errorf("%d executions have %d fences", len(r.all()), len(fences))
				}
				if n := len(e.History); n == 0 || e.Latest.State != scheduler.Running || e.History[0].State != scheduler.Done {
					t.Errorf("latest %+v, history %+v", e.Latest, e.History)
				}
			})
		})
	}
}

// A trigger begins at once if fewer than n executions run.
func TestTriggerAtOnce(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10m", r.fn(n, 5*min), scheduler.MaxConcurrent(2))
		n.start()
		until(start, 11*min)
		wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
		until(start, 12*min)
		wantNil(t, "Trigger", n.Trigger(c.Context(), "job"))
		x, err := n.TriggerAndWait(c.Context(), "job")
		wantNil(t, "TriggerAndWait", err)
		if x.State != scheduler.Done || x.Tick.Cause != scheduler.CauseTrigger || x.Ended.Sub(start) < 20*min {
			t.Errorf("execution %+v", x)
		}
		until(start, 21*min)
		r.wantTicks(t, start, 10*min, 11*min, 12*min, 20*min)
	})
}

// If a node dies, stops or is cut off, other nodes take over exactly its executions.
func TestAtOnceIsTakenOver(t *testing.T) {
	for i, how := range []string{"stop", "stop", "stop", "kill", "cut"} {
		t.Run(how, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				for range 3 {
					n := c.node(0, func(cfg *scheduler.Config) { cfg.Concurrency = 3 })
					n.add("job", "@every 1m", r.fn(n, 170*sec), scheduler.MaxConcurrent(4), scheduler.OverlapQueue(100))
					n.start()
				}
				until(start, 3*min+30*sec+time.Duration(i)*1300*time.Millisecond)
				before := r.all()
				victim := before[1].on
				lost := make(map[time.Time]bool)
				for _, call := range before {
					if call.on == victim {
						lost[call.tick.At] = true
					}
				}
				for _, n := range c.nodes {
					if n.name != victim {
						continue
					}
					if how != "stop" {
						n.cut()
					}
					if how != "cut" {
						n.stop()
					}
					if how == "cut" {
						time.AfterFunc(3*ttl, n.heal)
					}
				}
				at := time.Now()
				within := map[string]time.Duration{"stop": 100 * time.Millisecond, "kill": ttl + sec, "cut": ttl + sec}[how]
				time.Sleep(within)
				again := r.all()[len(before):]
				if len(again) != len(lost) {
					t.Errorf("%d executions were taken over after %s, want %d", len(again), time.Since(at), len(lost))
				}
				for _, call := range again {
					if !lost[call.tick.At] || call.on == victim || call.tick.Broken != 1 {
						t.Errorf("taken over: %+v", call)
					}
				}
				until(start, 16*min+10*sec)
				done := c.perTick(scheduler.Done)["job"]
				for at, n := range done {
					if n != 1 {
						t.Errorf("%s was done %d times", at, n)
					}
				}
				for m := 1; m <= 9; m++ {
					if done[start.Add(time.Duration(m)*min).UTC()] != 1 {
						t.Errorf("the tick of %d min was not done", m)
					}
				}
			})
		})
	}
}

// With AtMostOnce, an execution in a lane that was broken off is lost.
func TestAtOnceAtMostOnce(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 2 {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, 5*min), scheduler.MaxConcurrent(2), scheduler.AtMostOnce())
			n.start()
		}
		until(start, 11*min)
		on := r.all()[0].on
		for _, n := range c.nodes {
			if n.name == on {
				n.cut()
				n.stop()
			}
		}
		until(start, 21*min)
		r.wantTicks(t, start, 10*min, 20*min)
		if n := len(c.events.of(scheduler.Lost)); n != 1 {
			t.Errorf("lost %d times, want once", n)
		}
	})
}

// A deploy changes MaxConcurrent while executions run, in either direction. No tick is executed
// twice, and no more run at once than either definition allows.
func TestAtOnceIsChanged(t *testing.T) {
	for _, numbers := range [][2]int{{1, 3}, {3, 1}} {
		t.Run(fmt.Sprint(numbers), func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				var crowd crowd
				start := time.Now()
				var old *node
				for i, n := range numbers {
					until(start, time.Duration(i)*(5*min+30*sec))
					on := c.node(0)
					on.add("job", "@every 1m", crowd.in(r.fn(on, 150*sec)), scheduler.MaxConcurrent(n), scheduler.OverlapQueue(100))
					on.start()
					if i == 0 {
						old = on
					}
				}
				until(start, 7*min)
				old.end()
				until(start, 30*min)
				done := c.perTick(scheduler.Done)["job"]
				for m := 1; m < 10; m++ {
					if n := done[start.Add(time.Duration(m)*min).UTC()]; n != 1 {
						t.Errorf("the tick of %d min was done %d times", m, n)
					}
				}
				if crowd.most > 3 {
					t.Errorf("%d ran at once", crowd.most)
				}
			})
		})
	}
}

// A backfill executes one tick at a time, also during other executions.
func TestBackfillInALane(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, 12*min), scheduler.MaxConcurrent(3))
			n.start()
		}
		until(start, 65*min)
		_, err := c.nodes[0].Backfill(c.Context(), "job", start.Add(-40*min), start)
		wantNil(t, "Backfill", err)
		until(start, 140*min)
		wantSame(t, r.backfilled(start), every(10*min, -40*min, 0))
		e, err := c.nodes[0].Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if b := e.Backfill; b.Done != 5 || b.Ended.IsZero() || e.Counts.Overlapped+e.Counts.Missed > 0 {
			t.Errorf("backfill %+v, counts %+v", b, e.Counts)
		}
		last := time.Time{}
		for _, x := range c.events.of(scheduler.Started) {
			if x.Tick.Cause == scheduler.CauseBackfill {
				if !last.IsZero() && x.at.Sub(last) < 12*min {
					t.Errorf("%s began %s after the tick before", x.Tick.At, x.at.Sub(last))
				}
				last = x.at
			}
		}
		wantErr(t, c.admin().Forget(c.Context(), "job"), joblock.ErrHeld)
	})
}

// The end of an execution of the former spec begins the tick that waits for room.
func TestTickThatWaitsWhileTheSpecChanges(t *testing.T) {
	virtual(t, func(c *cluster) {
		var r runs
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 10m", r.fn(n, 25*min), scheduler.MaxConcurrent(2), scheduler.OverlapQueue(10))
		n.start()
		until(start, 32*min) // the third tick waits
		wantNil(c, "SetSpec", n.SetSpec("job", "0 0 1 1 *"))
		until(start, 40*min)
		if all := r.all(); len(all) != 3 || all[2].begun.After(start.Add(36*min)) {
			c.Errorf("executions are %+v, want the third one 35 minutes after the start", all)
		}
	})
}

// A node that dies while it writes the ledger of a job with MaxConcurrent delays the tick, and no other tick is skipped.
func TestJobLockThatIsLeftNextToLanes(t *testing.T) {
	virtual(t, func(c *cluster) {
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("job", "@every 10m", r.fn(n, 25*min), scheduler.MaxConcurrent(3))
			n.start()
		}
		a := c.admin()
		until(start, 9*min+50*sec)
		lock, err := a.locks.TryAcquire(c.Context(), keyspace.Cron(joblock.Key("cron", "job")), core.OwnKey, memo.WithGrant())
		wantNil(c, "TryAcquire", err)
		until(start, 10*min+2*sec)
		wantNil(c, "Release", lock.Release(c.Context()))
		until(start, 61*min)
		e, err := c.nodes[0].Entry(c.Context(), "job")
		if wantNil(c, "Entry", err); len(r.all()) != 6 || e.Counts.Overlapped != 0 {
			c.Errorf("%d executions and %+v, want six and none overlapped", len(r.all()), e.Counts)
		}
	})
}

// slowStore takes its time for a key.
type slowStore struct {
	driver.Store
	key string
	d   time.Duration
}

func (s *slowStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if req.Key == s.key {
		time.Sleep(s.d)
	}
	return s.Store.Acquire(ctx, req)
}

// Two nodes see the same tick, and one of them begins it before the other one has the job's lock. The other one then stands
// by: if the first one dies, the execution is taken over within a lease, and not at the next tick, which is a day away.
func TestExecutionBegunDuringAClaimIsTakenOver(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for _, d := range []time.Duration{sec / 2, sec} {
			n := c.nodeOn(&slowStore{c.mem, "%cron:cron:job", d}, 0)
			n.add("job", "0,10 0 * * *", r.fn(n, 5*min), scheduler.MaxConcurrent(2))
			n.start()
		}
		until(start, 11*min)
		r.wantTicks(t, start, 10*min)
		c.nodes[0].cut()
		until(start, 14*min)
		r.wantTicks(t, start, 10*min, 10*min)
	})
}

// A node does not take an execution over while as many run as its own MaxConcurrent allows. So after a deploy that lowers MaxConcurrent,
// the executions of the old release are taken over one at a time.
func TestTakeoverWithALowerAtOnce(t *testing.T) {
	for _, tc := range []struct {
		how      string
		old, own int // MaxConcurrent
		nodes    int // of the new release
	}{
		{"stop", 2, 1, 1}, {"stop", 2, 1, 2}, {"stop", 3, 2, 3}, {"kill", 2, 1, 1}, {"kill", 3, 1, 3}, {"kill", 4, 2, 1},
	} {
		t.Run(fmt.Sprintf("%s/%d to %d on %d", tc.how, tc.old, tc.own, tc.nodes), func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				var crowd crowd
				start := time.Now()
				a := c.node(0)
				a.add("job", "@every 1m", r.fn(a, 10*min), scheduler.MaxConcurrent(tc.old), scheduler.OverlapQueue(100))
				a.start()
				until(start, time.Duration(tc.old)*min+10*sec)
				for range tc.nodes {
					n := c.node(0)
					n.add("job", "@every 1m", crowd.in(r.fn(n, 10*min)), scheduler.MaxConcurrent(tc.own), scheduler.OverlapQueue(100))
					n.start()
				}
				until(start, time.Duration(tc.old)*min+30*sec)
				if tc.how == "kill" {
					a.cut()
				}
				a.stop()
				until(start, time.Duration(tc.old)*min+5*min)
				var before []int
				for _, n := range c.nodes[1:] {
					before = append(before, n.store.Calls(faultstore.Inspect))
				}
				until(start, time.Duration(tc.old)*min+7*min)
				for i, n := range c.nodes[1:] { // while executions wait to be taken over
					if reads := n.store.Calls(faultstore.Inspect) - before[i]; reads > 120 {
						t.Errorf("%s has read the store %d times in two minutes", n.name, reads)
					}
				}
				until(start, 2*time.Hour)
				if n := crowd.atOnce(); n != tc.own {
					t.Errorf("%d ran at once on the new nodes, want %d", n, tc.own)
				}
				done := c.perTick(scheduler.Done)["job"]
				for m := 1; m <= 10; m++ {
					if n := done[start.Add(time.Duration(m)*min).UTC()]; n != 1 {
						t.Errorf("the tick of %d min was done %d times", m, n)
					}
				}
				var last time.Time // the new nodes are never idle
				for _, call := range r.all()[tc.old:] {
					if !last.IsZero() && call.begun.Sub(last) > 10*min+sec {
						t.Errorf("%+v began %s after the one before", call, call.begun.Sub(last))
					}
					last = call.begun
				}
			})
		})
	}
}

// A function that goes on after its lane is lost counts among the executions of its node, although the ledger has it no more.
func TestFunctionThatOutlivesItsLane(t *testing.T) {
	for _, own := range []int{1, 2} {
		t.Run(fmt.Sprint(own), func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				var crowd crowd
				start := time.Now()
				a := c.node(0)
				a.add("job", "@every 1m", r.fn(a, 10*min), scheduler.MaxConcurrent(2))
				a.start()
				until(start, 90*sec)
				b := c.node(0)
				b.add("job", "@every 1m", crowd.in(func(ctx context.Context) error {
					if time.Since(start) < 20*min {
						ctx = context.WithoutCancel(ctx)
					}
					return r.fn(b, 10*min)(ctx)
				}), scheduler.MaxConcurrent(own))
				b.start()
				until(start, 5*min)
				a.end()
				until(start, 5*min+30*sec)
				d := c.node(0)
				d.add("job", "@every 1m", r.fn(d, 10*sec), scheduler.MaxConcurrent(own))
				d.start()
				until(start, 6*min+30*sec)
				b.cut()
				until(start, 7*min)
				b.heal()
				d.end()
				until(start, 14*min)
				if n := crowd.atOnce(); n != own {
					t.Errorf("%d ran at once on the node, want %d", n, own)
				}
				until(start, time.Hour)
				if last := r.all()[len(r.all())-1]; last.on != b.name || last.begun.Before(start.Add(40*min)) {
					t.Errorf("the last execution is %+v", last)
				}
			})
		})
	}
}
