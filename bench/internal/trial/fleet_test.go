package trial

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/bench/internal/capacity"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// One run of every kind of load at once. The test looks at what is there, never at how fast it was.
func TestEveryKindOfLoadIsRun(t *testing.T) {
	l := Load{Settle: time.Second, Observe: 2 * time.Second, Asks: 10, Load: capacity.Load{
		Web: 2, Workers: 2, Jobs: 20, Pairs: 20, Handovers: 20, Held: 20, Waiting: 20, Parked: 200, Cron: 5, CronEvery: time.Second,
		TTL: 3 * time.Second, Every: 500 * time.Millisecond, Grace: 100 * time.Millisecond, Share: 1,
	}}
	asked := false
	l.After = func(ctx context.Context, f *Fleet) error {
		asked = true
		held, released, err := f.memoryOfLock(ctx)
		if err != nil || released <= 0 || held <= released {
			t.Errorf("%v bytes held, %v released, %v", held, released, err)
		}
		if bytes, err := f.memoryOfParked(ctx); err != nil || bytes < held {
			t.Errorf("%v bytes parked, %v", bytes, err)
		}
		if bytes, err := f.memoryOfLedger(ctx); err != nil || bytes <= 0 {
			t.Errorf("%v bytes of a ledger, %v", bytes, err)
		}
		return nil
	}
	l.Load = l.WithDefaults(capacity.Costs{Payload: 100})
	s, err := Run(t.Context(), rig.DefaultProgram, l)
	if err != nil {
		t.Fatal(err)
	}
	for name, seen := range map[string]float64{
		"jobs enqueued": s.Enqueued, "jobs run": s.Ran, "pairs": s.Paired, "hand-overs": s.Passed, "ticks": s.Ticked,
		"checks": s.Checked, "questions": s.Asks,
		"commands to the locks": s.Locks.Commands, "commands to asynq": s.Asynq.Commands, "own processor time": s.own,
	} {
		if !(seen > 0) {
			t.Errorf("no %s: %+v", name, s)
		}
	}
	if s.Locks.Connections < 4 || s.Asynq.Connections < 4 || s.Locks.Memory == 0 || s.Asynq.Memory == 0 || !asked {
		t.Errorf("%+v", s)
	}
	// What is counted does not depend on the machine: these calls alone are so many commands.
	if least := 2*s.Paired + 2*s.Passed + 3*min(s.Enqueued, s.Ran) + s.Asks; s.Locks.Commands < least*0.8 {
		t.Errorf("%v commands, want at least some %v", s.Locks.Commands, least)
	}
}

func TestErrorOfACallEndsTheRun(t *testing.T) {
	failure := errors.New("failure")
	l := Load{Load: capacity.Load{Web: 1, Workers: 1}.WithDefaults(capacity.Costs{})}
	l.After = func(context.Context, *Fleet) error { return failure }
	if _, err := Run(t.Context(), rig.DefaultProgram, l); !errors.Is(err, failure) {
		t.Errorf("%v, want what After returned", err)
	}
	if _, err := Run(t.Context(), "no-such-server", l); err == nil || !strings.Contains(err.Error(), "no-such-server") {
		t.Errorf("%v, want the server's name", err)
	}
}

// Measured with little work, the costs are complete. A check with them works.
func TestCostsAreMeasuredAndChecked(t *testing.T) {
	ignore := func(string) {}
	c, err := Measure(t.Context(), rig.DefaultProgram, Quick(), ignore)
	if err != nil {
		t.Fatal(err)
	}
	for name, commands := range map[string]float64{
		"pair": c.Pair.Locks.Commands, "enqueue": c.Enqueue.Locks.Commands, "enqueue in asynq": c.Enqueue.Asynq.Commands,
		"job": c.Job.Locks.Commands, "hand-over": c.Handover.Locks.Commands, "poll": c.Poll.Locks.Commands,
		"renewal": c.Renewal.Locks.Commands, "check": c.Check.Locks.Commands, "ask": c.Ask.Locks.Commands,
	} {
		if !(commands > 0) {
			t.Errorf("%s: %v commands", name, commands)
		}
	}
	if c.Server == "" || c.Machine == "" || c.Floor.Alone <= 0 || c.Floor.Crowded <= 0 || c.Memory.Held <= c.Memory.Released ||
		c.Memory.Parked <= c.Memory.Held || c.Memory.Waiter <= 0 || c.Links.Calls < 1 || c.Links.Worker < 1 {
		t.Errorf("%+v", c)
	}
	last := QuickLoads()[len(Loads())-1:] // in a cluster
	text, err := Check(t.Context(), rig.DefaultProgram, c, last, 1, ignore)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a cluster of three masters", "each master: commands/s", "own CPU"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestTableOfAPredictionIsHonest(t *testing.T) {
	text := write([]row{
		{"good", "%.0f", 1, []float64{100, 80, 120}, []float64{100, 100, 100}},
		{"bad once", "%.0f", 1, []float64{100, 70, 100}, []float64{100, 100, 100}},
		{"little", "%.0f", 5, []float64{2}, []float64{4}},
		{"nothing", "%.0f", 0, []float64{0}, []float64{0}},
	})
	for _, want := range []string{
		"| good | 100 | 100 | 0.80 – 1.20 | yes |", "| bad once | 100 | 100 | 0.70 – 1.00 | **no** |", "| nothing | 0 | 0 | 1.00 | yes |", "| little | 2 | 4 | 0.50 | too small to tell |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
