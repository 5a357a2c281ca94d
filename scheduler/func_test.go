package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler"
)

// The nodes' clocks differ by far more than an execution takes. Each tick is still executed
// once, at its time.
func TestEveryTickRunsOnceHoweverTheClocksDiffer(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for _, skew := range []time.Duration{0, 2 * time.Second, -2 * time.Second, time.Hour} {
			n := c.node(skew)
			n.add("short", "@every 1m", r.fn(n, 10*time.Millisecond))
			n.start()
		}
		until(start, 10*time.Minute+time.Second)
		calls := r.all()
		if len(calls) != 10 {
			t.Fatalf("%d runs, want 10", len(calls))
		}
		for i, run := range calls {
			if want := start.Add(time.Duration(i+1) * time.Minute); !run.tick.At.Equal(want) || run.tick.Cause != scheduler.CauseTick {
				t.Errorf("run %d is for %v, want %v", i, run.tick, want)
			}
			if late := run.begun.Sub(run.tick.At); late < 0 || late > 100*time.Millisecond {
				t.Errorf("tick %v ran %s late", run.tick.At, late)
			}
			if i > 0 && run.fence <= calls[i-1].fence {
				t.Errorf("fence %d after %d", run.fence, calls[i-1].fence)
			}
		}
		if id := calls[0].tick.ID(); id != fmt.Sprintf("short@%d", start.Add(time.Minute).Unix()) {
			t.Errorf("the tick's ID is %q", id)
		}
	})
}

// A node that stops hands over what it does not finish, and nothing else.
func TestStopHandsOverAtOnce(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("long", "@every 1h", r.fn(n, 10*time.Minute))
			n.start()
		}
		until(start, time.Hour+5*time.Second)
		first := r.all()[0]
		stopped := time.Now()
		c.find(first.on).end()
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		calls := r.all()
		if len(calls) != 2 {
			t.Fatalf("%d runs 100 ms after the stop, want 2", len(calls))
		}
		second := calls[1]
		if second.on == first.on || second.fence <= first.fence || second.tick.Broken != 1 || second.tick.ID() != first.tick.ID() {
			t.Errorf("taken over as %+v from %+v", second, first)
		}
		t.Logf("taken over %v after the stop", second.begun.Sub(stopped))
		until(start, 2*time.Hour-time.Minute)
		if n := len(r.all()); n != 2 {
			t.Errorf("%d runs of one tick, want 2", n)
		}
		if got := c.events.of(scheduler.Interrupted); len(got) != 1 || got[0].Node != first.on || !errors.Is(got[0].Err, scheduler.ErrStopped) {
			t.Errorf("interrupted: %+v", got)
		}
		if got := c.events.of(scheduler.TakenOver); len(got) != 1 || got[0].Node != second.on {
			t.Errorf("taken over: %+v", got)
		}
	})
}

func TestStopOfAFunctionThatFinishesIsNoInterruption(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		var calls atomic.Int32
		work := func(ctx context.Context) error {
			calls.Add(1)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), scheduler.ErrStopped)
			time.Sleep(3 * time.Second) // finishing
			return nil
		}
		a, b := c.node(0), c.node(0)
		a.add("job", "@every 1h", work)
		a.start()
		until(start, time.Hour+5*time.Second)
		b.add("job", "@every 1h", work)
		b.start()
		a.end()
		time.Sleep(time.Minute)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
		if n := len(c.events.of(scheduler.Done)); n != 1 {
			t.Errorf("done %d times, want once", n)
		}
	})
}

// The error of Run names a function that does not return. Its lock runs out, and is not
// released before.
func TestGraceHasEnded(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		a := c.node(0, func(cfg *scheduler.Config) { cfg.Grace = 5 * time.Second })
		release := make(chan struct{})
		a.add("stubborn", "@every 1h", func(context.Context) error { <-release; return nil })
		a.start()
		until(start, time.Hour+time.Second)
		a.stop()
		err := <-a.done
		a.done <- nil
		if err == nil || !strings.Contains(err.Error(), "5s: stubborn") {
			t.Errorf("Run returned %v, want the job's name", err)
		}
		st, err := testkit.One(a.locks.Status(c.Context(), "%cron:cron:stubborn"))
		wantNil(t, "Status", err)
		if st.State != joblock.StateHeld {
			t.Errorf("the lock is %s while the function runs", st.State)
		}
		time.Sleep(ttl)
		if st, _ = testkit.One(a.locks.Status(c.Context(), "%cron:cron:stubborn")); st.State != joblock.StateFree || st.Ended != driver.EndedLapsed {
			t.Errorf("the lock is %s, %s a lease later", st.State, st.Ended)
		}
		close(release)
		synctest.Wait()
	})
}

// A node that dies during an execution is replaced within a lease. The context of its
// function ends before that.
func TestDeadNodesTickIsTakenOver(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			n.add("long", "@every 1h", r.fn(n, 5*time.Minute))
			n.start()
		}
		until(start, time.Hour+7*time.Second)
		first := r.all()[0]
		died := time.Now()
		c.find(first.on).cut()
		time.Sleep(ttl + time.Second)
		calls := r.all()
		if len(calls) != 2 {
			t.Fatalf("%d runs within a lease and a second, want 2", len(calls))
		}
		t.Logf("taken over %v after the death, TTL %v", calls[1].begun.Sub(died), ttl)
		broken := c.events.of(scheduler.Broken)
		if len(broken) != 1 || broken[0].Node != first.on || !errors.Is(broken[0].Err, joblock.ErrLost) {
			t.Fatalf("broken: %+v", broken)
		}
		if broken[0].at.After(calls[1].begun) {
			t.Error("the other execution began before the context of the first had ended")
		}
		until(start, time.Hour+30*time.Minute)
		if n := len(c.events.of(scheduler.Done)); n != 1 {
			t.Errorf("done %d times, want once", n)
		}
	})
}

func TestAtMostOnceIsNotTakenOver(t *testing.T) {
	for name, end := range map[string]func(n *node){"died": (*node).cut, "stopped": (*node).end} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				var r runs
				start := time.Now()
				for range 2 {
					n := c.node(0)
					n.add("once", "@every 1h", r.fn(n, 5*time.Minute), scheduler.AtMostOnce())
					n.start()
				}
				until(start, time.Hour+5*time.Second)
				first := r.all()[0]
				end(c.find(first.on))
				until(start, 2*time.Hour+time.Second)
				r.wantTicks(t, start, time.Hour, 2*time.Hour)
				if got := c.events.of(scheduler.Lost); len(got) != 1 || got[0].Node != first.on || !got[0].Tick.At.Equal(first.tick.At) {
					t.Errorf("lost: %+v", got)
				}
			})
		})
	}
}

func TestHowFunctionsEnd(t *testing.T) {
	mine := errors.New("mine")
	for name, tc := range map[string]struct {
		fn       func(ctx context.Context, attempt int) error
		opts     []scheduler.Option
		kind     scheduler.Kind
		attempts int
		err      error
		text     string
		took     time.Duration
	}{
		"nil":    {fn: func(context.Context, int) error { return nil }, kind: scheduler.Done, attempts: 1},
		"error":  {fn: func(context.Context, int) error { return mine }, kind: scheduler.Failed, attempts: 1, err: mine},
		"panic":  {fn: func(context.Context, int) error { panic("oh") }, kind: scheduler.Failed, attempts: 1, text: "panic: oh"},
		"goexit": {fn: func(context.Context, int) error { runtime.Goexit(); return nil }, kind: scheduler.Failed, attempts: 1, text: "ended its goroutine"},
		"timeout": {
			fn:   func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() },
			opts: []scheduler.Option{scheduler.Timeout(7 * time.Second)},
			kind: scheduler.Failed, attempts: 1, err: context.DeadlineExceeded, text: "longer than 7s", took: 7 * time.Second,
		},
		"finished in spite of the timeout": {
			fn:   func(ctx context.Context, _ int) error { <-ctx.Done(); return nil },
			opts: []scheduler.Option{scheduler.Timeout(time.Second)},
			kind: scheduler.Done, attempts: 1, took: time.Second,
		},
		"retried without success": {
			fn:   func(context.Context, int) error { return mine },
			opts: []scheduler.Option{scheduler.Retry(3, time.Second, 3*time.Second)},
			kind: scheduler.Failed, attempts: 4, err: mine, took: 6 * time.Second, // 1 + 2 + 3
		},
		"retried": {
			fn: func(_ context.Context, attempt int) error {
				if attempt < 3 {
					panic("again")
				}
				return nil
			},
			opts: []scheduler.Option{scheduler.Retry(5, time.Second, time.Second)},
			kind: scheduler.Done, attempts: 3, took: 2 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start := time.Now()
				n := c.node(0)
				attempt := 0
				n.add("job", "@every 1h", func(ctx context.Context) error { attempt++; return tc.fn(ctx, attempt) }, tc.opts...)
				n.start()
				until(start, time.Hour+time.Minute)
				got := c.events.of(tc.kind)
				if len(got) != 1 {
					t.Fatalf("%d events of kind %s in %+v", len(got), tc.kind, c.events.list)
				}
				e := got[0]
				if e.Attempts != tc.attempts || tc.err != nil && !errors.Is(e.Err, tc.err) || (e.Err != nil) != (tc.kind == scheduler.Failed) {
					t.Errorf("event %+v, want %d attempts and error %v", e, tc.attempts, tc.err)
				}
				if e.Err != nil && !strings.Contains(e.Err.Error(), tc.text) {
					t.Errorf("error %q, want it to say %q", e.Err, tc.text)
				}
				if e.Took.Round(time.Second) != tc.took {
					t.Errorf("took %s, want %s", e.Took, tc.took)
				}
				st, err := testkit.One(n.locks.Status(c.Context(), "%cron:cron:job"))
				wantNil(t, "Status", err)
				if st.State != joblock.StateFree || st.Ended != driver.EndedReleased {
					t.Errorf("the lock is %s, %s", st.State, st.Ended)
				}
			})
		})
	}
}

// An execution that is done while the store is away is put on record as soon as the store
// answers.
func TestResultIsWrittenWhenTheStoreIsBack(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		a, b := c.node(0), c.node(0)
		a.add("job", "@every 1h", r.fn(a, 20*time.Second))
		a.start()
		until(start, time.Hour+19*time.Second)
		b.add("job", "@every 1h", r.fn(b, 20*time.Second))
		b.start()
		a.store.Set(faultstore.Fault{}, faultstore.Renew)
		time.Sleep(4 * time.Second) // meanwhile it is done; the lease is longer
		a.store.Clear()
		until(start, time.Hour+10*time.Minute)
		r.wantTicks(t, start, time.Hour)
		if n := len(c.events.of(scheduler.Done)); n != 1 {
			t.Errorf("done %d times, want once", n)
		}
	})
}

// While the store is away nothing is executed and nothing piles up.
func TestStoreAway(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var r runs
		start := time.Now()
		for range 3 {
			n := c.node(0)
			for i := range 50 {
				n.add(fmt.Sprint("job", i), "@every 1m", r.fn(n, time.Second))
			}
			n.start()
		}
		until(start, 90*time.Second)
		before := len(r.all())
		goroutines := runtime.NumGoroutine()
		for _, n := range c.nodes {
			n.cut()
		}
		until(start, 90*time.Second+5*time.Minute)
		if n := len(r.all()); n != before || before != 50 {
			t.Errorf("%d runs before the outage, %d after", before, n)
		}
		if n := runtime.NumGoroutine(); n > goroutines+10 {
			t.Errorf("%d goroutines, were %d before the outage", n, goroutines)
		}
		for _, n := range c.nodes {
			n.heal()
		}
		until(start, 90*time.Second+5*time.Minute+15*time.Second)
		if n := len(r.all()); n != 2*before {
			t.Errorf("%d runs when the store was back, want one for each job", n-before)
		}
		missed := 0
		for _, e := range c.events.of(scheduler.Missed) {
			missed += e.Count
		}
		if missed != 4*50 {
			t.Errorf("%d ticks counted as missed, want all but the newest: 200", missed)
		}
	})
}

func (c *cluster) find(name string) *node {
	c.Helper()
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	c.Fatalf("no node %q", name)
	return nil
}

// A test of a function can make up the tick.
func TestWithTick(t *testing.T) {
	if tick, ok := scheduler.TickFrom(t.Context()); ok {
		t.Errorf("a context without a tick has %+v", tick)
	}
	want := scheduler.Tick{Name: "rollup", At: time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC), Cause: scheduler.CauseTick}
	if tick, ok := scheduler.TickFrom(scheduler.WithTick(t.Context(), want)); !ok || tick != want {
		t.Errorf("the tick is %+v, %v", tick, ok)
	}
}

// A function that goes on after the end of its context is reported once, and shown as long as it does.
func TestAFunctionThatIgnoresItsContext(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  []scheduler.Option
		cause error
	}{
		"timeout":  {[]scheduler.Option{scheduler.Timeout(2 * sec)}, context.DeadlineExceeded},
		"at once":  {[]scheduler.Option{scheduler.Timeout(2 * sec), scheduler.MaxConcurrent(2)}, context.DeadlineExceeded},
		"the next": {[]scheduler.Option{scheduler.OverlapCancel()}, scheduler.ErrOverlapped},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start, release := time.Now(), make(chan struct{})
				n := c.node(0)
				n.add("job", "@every 3s; until 2000-01-01T00:00:50", func(context.Context) error {
					<-release
					return nil
				}, tc.opts...)
				n.start()
				until(start, 40*sec)
				e, err := c.admin().Entry(t.Context(), "job")
				if wantNil(t, "Entry", err); len(e.Running) == 0 || e.Running[0].Overrun.IsZero() || (e.Running[0].Error == "") != (name == "at once") {
					t.Errorf("%+v runs", e.Running)
				}
				if n := e.Counts.Overlapped + int64(e.Waiting+len(e.Running)); n != 13 {
					t.Errorf("%d ticks are on record, want 13: %+v", n, e)
				}
				events := c.events.of(scheduler.Overrun)
				if len(events) != len(e.Running) || len(events) == 0 || !errors.Is(events[0].Err, tc.cause) || events[0].Took < 5*sec {
					t.Errorf("events %+v", events)
				}
				if text := c.logs.String(); strings.Count(text, "level=WARN") != len(events) || strings.Count(text, "scheduler: overrun") != len(events) {
					t.Errorf("log: %s", text)
				}
				close(release)
				until(start, 60*sec)
				e, err = c.admin().Entry(t.Context(), "job")
				if wantNil(t, "Entry", err); len(e.Running) != 0 || e.Latest.State != scheduler.Done || e.Latest.Error != "" {
					t.Errorf("after the end %+v", e)
				}
			})
		})
	}
}

// While a node stops, functions have Config.Grace.
func TestAFunctionThatEndsWithinTheGraceIsNoOverrun(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		start := time.Now()
		n := c.node(0)
		n.add("job", "@every 1m", func(context.Context) error {
			time.Sleep(20 * sec)
			return nil
		})
		n.start()
		until(start, min+sec)
		n.end()
		if events := c.events.of(scheduler.Overrun); len(events) != 0 {
			t.Errorf("events %+v", events)
		}
	})
}

// A function that goes on without its lock is reported while it does: another node executes its tick again.
func TestAFunctionThatIgnoresTheLossOfItsLock(t *testing.T) {
	for name, opts := range map[string][]scheduler.Option{"alone": nil, "at once": {scheduler.MaxConcurrent(2)}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				start, release := time.Now(), make(chan struct{})
				n := c.node(0)
				n.add("job", "@every 1h", func(context.Context) error {
					<-release
					return nil
				}, opts...)
				n.start()
				until(start, hour+sec)
				n.cut()
				until(start, hour+min)
				events := c.events.of(scheduler.Overrun)
				if len(events) != 1 || !errors.Is(events[0].Err, joblock.ErrLost) {
					t.Errorf("events %+v", events)
				}
				close(release)
				until(start, hour+2*min)
			})
		})
	}
}
