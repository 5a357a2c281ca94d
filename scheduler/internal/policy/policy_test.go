package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/spec"
)

const sec, min1 = time.Second, time.Minute

var start = time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)

// every10 returns a job with a tick each ten minutes, of which the given number may run at once.
func every10(t *testing.T, atOnce int, overlap ledger.Overlap) *ledger.Job {
	t.Helper()
	s, err := spec.Parse("*/10 * * * *", time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	return &ledger.Job{Spec: s, SpecText: s.String(), MaxConcurrent: atOnce, Overlap: overlap, CatchUp: ledger.CatchUp{Most: 1, Window: time.Hour}, KeepOthers: 10}
}

// Decisions about a job whose latest tick on record is that of the start.
func TestDecide(t *testing.T) {
	run := func(lanes ...int) (all []ledger.Execution) {
		for _, lane := range lanes {
			all = append(all, ledger.Execution{Due: ledger.Due{At: start.UnixMilli()}, Lane: lane, Fence: int64(lane), State: ledger.Running, Node: "other"})
		}
		return all
	}
	waits := []ledger.Due{{At: start.UnixMilli()}}
	held := func(age, reserved time.Duration, waiters int) *Lock {
		return &Lock{Held: true, Age: age, Reserved: reserved, Waiters: waiters}
	}
	queue := ledger.Overlap{Queue: 5}
	in2 := func(lane int) bool { return lane == 2 }
	for name, tc := range map[string]struct {
		atOnce  int // 0: one
		overlap ledger.Overlap
		spec    string // of the ledger, different from the job's
		runs    []ledger.Execution
		due     []ledger.Due
		after   time.Duration // the moment
		sight   Sight
		want    string // what to do, the lanes that are taken over, whether something begins, the lanes of others, the News
		again   time.Duration
		within  time.Duration
	}{
		"nothing is due":              {after: min1, want: "wait", again: 10 * min1, within: Spread},
		"a tick is due":               {after: 10 * min1, want: "claim begins", again: 20 * min1, within: Spread},
		"a tick waits":                {after: min1, due: waits, want: "claim begins", again: 10 * min1, within: Spread},
		"the ledger is stale":         {after: min1, sight: Sight{Stale: true}, want: "claim", again: 10 * min1, within: Spread},
		"a function has no lock":      {after: 10 * min1, sight: Sight{Here: 1}, want: "wait", again: 20 * min1, within: Spread},
		"one of two has no lock":      {atOnce: 2, after: 10 * min1, sight: Sight{Here: 1}, want: "claim begins", again: 20 * min1, within: Spread},
		"both have no locks":          {atOnce: 2, after: 10 * min1, sight: Sight{Here: 2}, want: "claim", again: 20 * min1, within: Spread},
		"another node has just begun": {sight: Sight{Lock: held(100*time.Millisecond, 30*sec, 0)}, want: "wait", again: 400 * time.Millisecond, within: 4 * Spread},
		"another node executes":       {sight: Sight{Lock: held(sec, 30*sec, 0)}, want: "stand by", again: 30 * sec, within: Spread},
		"a third one stands by":       {sight: Sight{Lock: held(sec, 30*sec, 1)}, want: "wait", again: 30 * sec, within: Spread},
		"no room to stand by":         {sight: Sight{Lock: held(sec, 30*sec, 0), Here: 1}, want: "wait", again: 30 * sec, within: Spread},
		"another node begins lanes":   {atOnce: 2, sight: Sight{Lock: held(0, 30*sec, 0)}, want: "wait", within: 4 * Spread},

		"broken off":                       {runs: run(0), after: min1, want: "claim over [0]", again: 10 * min1, within: Spread},
		"broken off, and a tick comes":     {runs: run(0), after: 10 * min1, want: "claim over [0]", again: 20 * min1, within: Spread},
		"broken off, and ticks wait":       {runs: run(0), overlap: queue, after: 10 * min1, want: "claim over [0]", again: 20 * min1, within: Spread},
		"broken off, but has no lock":      {runs: run(0), after: min1, sight: Sight{Here: 1}, want: "wait", again: 10 * min1, within: Spread},
		"broken off without MaxConcurrent": {atOnce: 2, runs: run(0), after: min1, want: "claim over [0]", again: 10 * min1, within: Spread},
		"in lanes of others":               {atOnce: 2, runs: run(1, 2), after: min1, want: "tend others [1 2]", again: 10 * min1, within: Spread},
		"in a lane of this node":           {atOnce: 2, runs: run(1, 2), after: min1, sight: Sight{Mine: in2}, want: "tend others [1]", again: 10 * min1, within: Spread},
		"in all lanes":                     {atOnce: 2, runs: run(1, 2), after: 10 * min1, want: "claim others [1 2] overlapped", again: 20 * min1, within: Spread},
		"with a free lane":                 {atOnce: 3, runs: run(1, 2), after: 10 * min1, want: "claim begins others [1 2]", again: 20 * min1, within: Spread},
		"one of all is dead":               {atOnce: 2, runs: run(1, 2), after: 10 * min1, sight: Sight{Dead: []int{1}, Runs: 1}, want: "claim over [1] others [1 2]", again: 20 * min1, within: Spread},
		"dead, but others leave no room":   {runs: run(1, 2), after: min1, sight: Sight{Dead: []int{1}, Runs: 1}, want: "tend others [1 2]", again: 10 * min1, within: Spread},
		"an older node begins no second":   {runs: run(1), after: min1, due: waits, want: "tend others [1]", again: 10 * min1, within: Spread},
		"during an execution":              {runs: run(0), after: 10 * min1, sight: Sight{Phase: During}, want: "changed overlapped"},
		"during one, ticks wait":           {runs: run(0), overlap: queue, after: 10 * min1, sight: Sight{Phase: During}, want: "changed"},
		"during one, nothing comes":        {runs: run(0), after: min1, sight: Sight{Phase: During}, want: "unchanged"},
		"during one, with a new spec":      {runs: run(0), spec: "@every 1h", after: 10 * min1, sight: Sight{Phase: During}, want: "refused"},
		"after an execution":               {after: 10 * min1, sight: Sight{Phase: After}, want: "changed overlapped"},
		"after one, with a new spec":       {spec: "@every 1h", after: 10 * min1, sight: Sight{Phase: After}, want: "changed redefined spec"},
		"between, with a new spec":         {spec: "@every 1h", after: min1, want: "claim redefined spec", again: 10 * min1, within: Spread},
		"the next tick has come meanwhile": {atOnce: 2, runs: run(1, 2), overlap: queue, due: waits, after: 10*min1 - sec, want: "tend others [1 2]", again: 10 * min1, within: Spread},
	} {
		t.Run(name, func(t *testing.T) {
			j := every10(t, tc.atOnce, tc.overlap)
			l := &ledger.Ledger{Version: 1, Spec: j.SpecText, Last: start.UnixMilli(), Running: slices.Clone(tc.runs), Due: slices.Clone(tc.due)}
			m := ledger.Moment{Now: start.Add(tc.after), Floor: start, Since: start, Node: "node"}
			if tc.spec != "" {
				old, err := spec.Parse(tc.spec, time.UTC)
				if err != nil {
					t.Fatal(err)
				}
				l.Spec, m.Spec, l.Definition.By = old.String(), old, []string{"old"}
			}
			before := string(l.Encode())
			p := Decide(j, l, m, tc.sight)
			if got := say(p, tc.sight.Phase); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if want := (Again{start.Add(tc.again), tc.within}); tc.sight.Phase == Between && p.Again != want {
				t.Errorf("again %s within %s, want %s and %s", p.Again.At.Sub(start), p.Again.Within, tc.again, tc.within)
			}
			if tc.sight.Lock != nil && string(l.Encode()) != before {
				t.Error("the ledger of another node's term has changed")
			}
		})
	}
}

// say returns a plan in words.
func say(p Plan, phase Phase) string {
	words := map[Do]string{Wait: "wait", StandBy: "stand by", Tend: "tend", Claim: "claim"}[p.Do]
	if phase != Between {
		words = map[bool]string{true: "changed", false: "unchanged"}[p.Changed]
	}
	if p.Refused {
		words = "refused"
	}
	if len(p.TakeOver) > 0 {
		words += fmt.Sprint(" over ", p.TakeOver)
	}
	if p.Begin {
		words += " begins"
	}
	if len(p.Others) > 0 {
		words += fmt.Sprint(" others ", p.Others)
	}
	for _, n := range p.News {
		words += " " + string(n.Kind)
	}
	return words
}

// A spec without further ticks, or with a tick far away, is looked at before the store drops the ledger; a tick that has come
// is looked at soon.
func TestNext(t *testing.T) {
	for text, tc := range map[string]struct {
		after time.Duration
		want  Again
	}{
		"*/10 * * * *":                      {min1, Again{start.Add(10 * min1), Spread}},
		"0 3 * * *":                         {min1, Again{start.AddDate(0, 0, 1), Spread}},
		"0 3 29 2 *":                        {min1, Again{start.Add(min1 + Stale), Spread}},
		"@every 1h; until 2026-01-01T03:30": {min1, Again{start.Add(min1 + Stale), Spread}},
		"@every 1m":                         {5 * min1, Again{start.Add(5*min1 + Settling), Settling}},
	} {
		s, err := spec.Parse(text, time.UTC)
		if err != nil {
			t.Fatal(err)
		}
		got := Next(&ledger.Job{Spec: s}, &ledger.Ledger{Last: start.UnixMilli()}, start.Add(tc.after))
		if got != tc.want {
			t.Errorf("%s: %s within %s, want %s and %s", text, got.At, got.Within, tc.want.At, tc.want.Within)
		}
	}
}

// What a node does about the executions of other nodes.
func TestTendTo(t *testing.T) {
	x := func(lane int) ledger.Execution {
		return ledger.Execution{Lane: lane, Fence: int64(10 + lane), State: ledger.Running}
	}
	well := func(lane int, age, reserved time.Duration, waiters int) Lock {
		return Lock{Lane: lane, Held: true, Fence: int64(10 + lane), Age: age, Reserved: reserved, Waiters: waiters}
	}
	free := func(lane int) Lock { return Lock{Lane: lane, Free: true} }
	for name, tc := range map[string]struct {
		atOnce  int
		mine    int // executions of this node, in lanes from 10 on
		here    int
		locks   []Lock
		standBy []int
		dead    []int
		foreign bool
		again   time.Duration
	}{
		"both run, none waits":    {atOnce: 3, locks: []Lock{well(1, sec, 30*sec, 0), well(2, sec, 20*sec, 0)}, standBy: []int{1, 2}, again: 30 * sec},
		"others wait":             {atOnce: 3, locks: []Lock{well(1, sec, 30*sec, 1), well(2, sec, 20*sec, 1)}, again: 30 * sec},
		"one has just begun":      {atOnce: 3, locks: []Lock{well(1, sec, 30*sec, 1), well(2, 200*time.Millisecond, 20*sec, 0)}, again: 300 * time.Millisecond},
		"one is dead":             {atOnce: 3, locks: []Lock{well(1, sec, 30*sec, 1), free(2)}, dead: []int{2}, again: 30 * sec},
		"all are dead":            {atOnce: 3, locks: []Lock{free(1), free(2)}, dead: []int{1, 2}},
		"dead, but one runs":      {atOnce: 1, locks: []Lock{well(1, sec, 30*sec, 1), free(2)}, again: 30 * sec},
		"dead, but mine runs":     {atOnce: 1, mine: 1, locks: []Lock{free(1)}, again: crowded},
		"dead, but no room here":  {atOnce: 1, here: 1, locks: []Lock{free(1)}, again: crowded},
		"its waiter has the lock": {atOnce: 1, locks: []Lock{{Lane: 1, Held: true, Fence: 99, Age: sec, Reserved: 30 * sec}, free(2)}, standBy: []int{1}, dead: []int{2}, again: 30 * sec},
		"no lock":                 {atOnce: 3, locks: []Lock{{Lane: 1, Foreign: true}}, foreign: true, again: Unreadable},
	} {
		l := new(ledger.Ledger)
		for i := range tc.mine {
			l.Running = append(l.Running, x(10+i))
		}
		for _, k := range tc.locks {
			l.Running = append(l.Running, x(k.Lane))
		}
		got := TendTo(every10(t, tc.atOnce, ledger.Overlap{}), l, start, tc.locks, tc.here)
		if !slices.Equal(got.StandBy, tc.standBy) || !slices.Equal(got.Dead, tc.dead) || (got.Foreign != nil) != tc.foreign || got.Again.At.Sub(start) != tc.again {
			t.Errorf("%s: %+v, want to stand by for %v, to take %v over, and to look again after %s", name, got, tc.standBy, tc.dead, tc.again)
		}
	}
}
