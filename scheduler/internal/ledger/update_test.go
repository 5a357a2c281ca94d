package ledger

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

const (
	sec  = time.Second
	min1 = time.Minute
	hour = time.Hour
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns the time d after start in milliseconds, as a ledger has it.
func at(d time.Duration) int64 { return start.Add(d).UnixMilli() }

// every10 is a job that ticks every ten minutes, and catches up with one tick.
func every10(t testing.TB, change ...func(*Job)) *Job {
	t.Helper()
	s, err := spec.Parse("@every 10m", nil)
	if err != nil {
		t.Fatal(err)
	}
	j := &Job{Spec: s, SpecText: s.String(), CatchUp: CatchUp{Most: 1, Window: math.MaxInt64}, KeepFailures: 10, KeepOthers: 10, Program: "shop", Fingerprint: "1"}
	for _, f := range change {
		f(j)
	}
	return j
}

// text shows the waiting ticks and the news, without the fields that never change.
func text(due []Due, news []News) string {
	var parts []string
	for _, d := range due {
		parts = append(parts, fmt.Sprintf("%s:%s", d.cause(), time.UnixMilli(d.At).Sub(start)))
	}
	for _, n := range news {
		part := string(n.Kind)
		if !n.Tick.At.IsZero() {
			part += fmt.Sprintf("(%s)", n.Tick.At.Sub(start))
		}
		if n.Count > 0 {
			part += fmt.Sprintf("x%d", n.Count)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

// What happens to the ticks since the ledger was written last.
func TestUpdate(t *testing.T) {
	queue := func(j *Job) { j.Overlap.Newest = true }
	none := func(j *Job) { j.CatchUp = CatchUp{} }
	three := func(j *Job) { j.CatchUp = CatchUp{Most: 3, Window: math.MaxInt64} }
	recent := func(j *Job) { j.CatchUp = CatchUp{Most: 10, Window: 25 * min1} }
	late := func(j *Job) { j.Delay = 2 * min1 }
	two := func(j *Job) { j.Overlap.Queue = 2 }
	within := func(also ...func(*Job)) func(*Job) {
		return func(j *Job) {
			j.Deadline = 15 * min1
			for _, f := range also {
				f(j)
			}
		}
	}
	brokenOff := []Execution{{Due: Due{At: at(0)}, State: Running}}
	boot := func(j *Job) { j.AtStart, j.StartID = true, "v1" }
	other := func(j *Job) {
		j.Spec, _ = spec.Parse("@every 15m", nil)
		j.SpecText, j.Fingerprint = j.Spec.String(), "2"
	}
	for name, tc := range map[string]struct {
		change  func(*Job)
		due     []Due // before
		now     time.Duration
		since   time.Duration
		order   Order
		after   bool // an execution
		runs    []Execution
		want    string
		changed bool
		to      time.Duration // which tick the ledger has come
	}{
		"nothing is due":               {now: 9 * min1},
		"a tick":                       {now: 10*min1 + sec, want: "tick:10m0s", changed: true, to: 10 * min1},
		"jitter holds it back":         {change: late, now: 11 * min1},
		"jitter is over":               {change: late, now: 12 * min1, want: "tick:10m0s", changed: true, to: 10 * min1},
		"several were missed":          {now: 35 * min1, want: "tick:30m0s missed(20m0s)x2", changed: true, to: 30 * min1},
		"three are caught up with":     {change: three, now: 45 * min1, want: "tick:20m0s tick:30m0s tick:40m0s missed(10m0s)x1", changed: true, to: 40 * min1},
		"those within the window":      {change: recent, now: 45 * min1, want: "tick:20m0s tick:30m0s tick:40m0s missed(10m0s)x1", changed: true, to: 40 * min1},
		"none is caught up with":       {change: none, now: 35 * min1, want: "missed(30m0s)x3", changed: true, to: 30 * min1},
		"but a punctual one is":        {change: none, now: 30*min1 + 59*sec, want: "tick:30m0s missed(20m0s)x2", changed: true, to: 30 * min1},
		"and not a minute later":       {change: none, now: 31 * min1, want: "missed(30m0s)x3", changed: true, to: 30 * min1},
		"jitter does not make it late": {change: func(j *Job) { none(j); late(j) }, now: 32*min1 + 59*sec, want: "tick:30m0s missed(20m0s)x2", changed: true, to: 30 * min1},
		"a backlog keeps its bound":    {change: three, due: []Due{{At: at(-20 * min1)}, {At: at(-10 * min1)}, {At: at(0)}}, now: 15 * min1, want: "tick:-10m0s tick:0s tick:10m0s missed(-20m0s)x1", changed: true, to: 10 * min1},
		"ticks overlapped":             {now: 25 * min1, after: true, want: "overlapped(20m0s)x2", changed: true, to: 20 * min1},
		"the newest of them waits":     {change: queue, now: 25 * min1, after: true, want: "tick:20m0s overlapped(10m0s)x1", changed: true, to: 20 * min1},
		"after one to catch up with":   {change: queue, due: []Due{{At: at(0)}}, now: 15 * min1, after: true, want: "tick:0s tick:10m0s", changed: true, to: 10 * min1},
		"the first of them wait":       {change: two, now: 35 * min1, after: true, want: "tick:10m0s tick:20m0s overlapped(30m0s)x1", changed: true, to: 30 * min1},
		"behind those that wait":       {change: two, due: []Due{{At: at(0)}}, now: 25 * min1, after: true, want: "tick:0s tick:10m0s overlapped(20m0s)x1", changed: true, to: 20 * min1},
		"none if as many wait":         {change: two, due: []Due{{At: at(-10 * min1)}, {At: at(0)}}, now: 15 * min1, after: true, want: "tick:-10m0s tick:0s overlapped(10m0s)x1", changed: true, to: 10 * min1},
		"a trigger does not count":     {change: two, due: []Due{{At: at(0), Cause: CauseTrigger}}, now: 25 * min1, after: true, want: "trigger:0s tick:10m0s tick:20m0s", changed: true, to: 20 * min1},
		"an outage takes no place":     {change: two, due: []Due{{At: at(-10 * min1)}, {At: at(0)}}, now: 35 * min1, want: "tick:-10m0s tick:0s tick:30m0s missed(20m0s)x2", changed: true, to: 30 * min1},
		"broken off, the first wait":   {change: two, runs: brokenOff, now: 35 * min1, want: "tick:10m0s tick:20m0s overlapped(30m0s)x1", changed: true, to: 30 * min1},
		"broken off, the newest waits": {change: func(j *Job) { queue(j); none(j) }, runs: brokenOff, now: 35 * min1, want: "tick:30m0s overlapped(20m0s)x2", changed: true, to: 30 * min1},
		"broken off, none waits":       {change: none, runs: brokenOff, now: 35 * min1, want: "missed(30m0s)x3", changed: true, to: 30 * min1},
		"within the deadline":          {change: within(three), now: 35 * min1, want: "tick:20m0s tick:30m0s missed(10m0s)x1", changed: true, to: 30 * min1},
		"jitter defers the deadline":   {change: within(three, late), now: 37 * min1, want: "tick:20m0s tick:30m0s missed(10m0s)x1", changed: true, to: 30 * min1},
		"after the deadline":           {change: within(func(j *Job) { j.Deadline = sec }), now: 10*min1 + 2*sec, want: "missed(10m0s)x1", changed: true, to: 10 * min1},
		"one that waits is too late":   {change: within(), due: []Due{{At: at(-10 * min1)}, {At: at(0)}}, now: 5*min1 + sec, want: "tick:0s missed(-10m0s)x1", changed: true},
		"a trigger is never too late":  {change: within(), due: []Due{{At: at(-hour), Cause: CauseTrigger}, {At: at(-hour), Cause: CauseStart}}, now: sec, want: "trigger:-1h0m0s start:-1h0m0s"},
		"overlapped and too late":      {change: within(two), now: 35 * min1, after: true, want: "tick:20m0s tick:30m0s missed(10m0s)x1", changed: true, to: 30 * min1},
		"a late one leaves its place":  {change: within(two), due: []Due{{At: at(-10 * min1)}, {At: at(0)}}, now: 10 * min1, after: true, want: "tick:0s tick:10m0s missed(-10m0s)x1", changed: true, to: 10 * min1},
		"skipped for the overlap":      {change: within(), now: 35 * min1, after: true, want: "overlapped(30m0s)x3 stuck(30m0s)x3", changed: true, to: 30 * min1},
		"paused ticks":                 {now: 25 * min1, order: Order{PausedFrom: at(5 * min1)}, want: "paused(20m0s)x2", changed: true, to: 20 * min1},
		"paused for a while":           {change: three, now: 35 * min1, order: Order{PausedFrom: at(10 * min1), PausedUntil: at(20 * min1)}, want: "tick:10m0s tick:30m0s paused(20m0s)x1", changed: true, to: 30 * min1},
		"a trigger goes first":         {due: []Due{{At: at(0)}}, now: 5 * min1, order: Order{Triggered: 4, TriggeredAt: at(4 * min1)}, want: "trigger:4m0s tick:0s", changed: true},
		"a trigger that was taken up":  {now: 5 * min1, order: Order{Triggered: 3, TriggeredAt: at(4 * min1)}},
		"a start":                      {change: boot, now: 5 * min1, want: "start:5m0s", changed: true},
		"and what overlapped":          {change: queue, due: []Due{{At: at(-10 * min1)}, {At: at(0)}}, now: 15 * min1, after: true, want: "tick:0s tick:10m0s missed(-10m0s)x1", changed: true, to: 10 * min1},
		"a backlog beyond all bounds":  {due: slices.Repeat([]Due{{At: at(0)}}, maxWaiting+5), now: sec, want: strings.Repeat("tick:0s ", maxWaiting) + "missed(0s)x5", changed: true},
		"another spec":                 {change: other, now: 16 * min1, since: sec, want: "tick:10m0s redefined spec(16m0s)", changed: true, to: 16 * min1},
		"with nothing due":             {change: other, now: 5 * min1, since: sec, want: "redefined spec(5m0s)", changed: true, to: 5 * min1},
		"at a tick of either":          {change: other, now: 30 * min1, since: sec, want: "tick:30m0s redefined missed(20m0s)x2 spec(30m0s)", changed: true, to: 30 * min1},
		"whose jitter is not over":     {change: func(j *Job) { other(j); late(j) }, now: 11 * min1, since: sec, want: "tick:10m0s redefined spec(11m0s)", changed: true, to: 11 * min1},
		"after an execution":           {change: other, now: 16 * min1, since: sec, after: true, want: "redefined overlapped(10m0s)x1 spec(16m0s)", changed: true, to: 16 * min1},
		"registered before":            {change: other, now: 16 * min1, since: -sec, want: "tick:10m0s redefined", changed: true, to: 10 * min1},
		"registered at the same time":  {change: other, now: 16 * min1, want: "tick:10m0s redefined", changed: true, to: 10 * min1},
		"the clock was set back a bit": {now: -hour},
		"the clock was wrong before":   {now: -25 * hour, want: "clock(0s)", changed: true, to: -25 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			first := every10(t)
			l := &Ledger{Version: version, Spec: first.SpecText, Since: at(0), Last: at(0), Due: tc.due, Triggered: 3, Running: tc.runs,
				Definition: Definition{Program: "shop", By: []string{"1"}}}
			j := first
			if tc.change != nil {
				j = every10(t, tc.change)
			}
			m := Moment{Now: start.Add(tc.now), Floor: start, Since: start.Add(tc.since), Spec: first.Spec, Order: tc.order, Node: "n"}
			changed, news := l.Update(j, m, tc.after)
			if got := text(l.Due, news); got != tc.want || changed != tc.changed {
				t.Errorf("changed %v: %q, want %v: %q", changed, got, tc.changed, tc.want)
			}
			if want := at(tc.to); l.Last != want {
				t.Errorf("the job has come to %s, want %s", l.LastTick().Sub(start), tc.to)
			}
			if again, news := l.Update(j, m, tc.after); again || len(news) > 0 {
				t.Errorf("a second time: %v, %q", again, text(nil, news))
			}
			counted := 0
			for _, n := range news {
				if n.Kind != NewsClock && n.Kind != NewsRedefined && n.Kind != NewsStuck {
					counted += n.Count
				}
			}
			if c := l.Counts; c.Missed+c.Overlapped+c.Paused != int64(counted) {
				t.Errorf("counts %+v, but %d were reported", c, counted)
			}
		})
	}
}

// The first node that sees a job: nothing before counts, but a trigger of a moment ago does.
func TestUpdateOfANewJob(t *testing.T) {
	for name, tc := range map[string]struct {
		triggered time.Duration
		want      string
	}{
		"triggered just now":  {-sec, "trigger:-1s"},
		"triggered long ago":  {-hour, ""},
		"triggered in a race": {-min1, "trigger:-1m0s"},
		"triggered before":    {-min1 - sec, ""},
	} {
		l, err := Decode(nil)
		if err != nil || !l.New() {
			t.Fatalf("%+v, %v", l, err)
		}
		m := Moment{Now: start, Floor: start, Order: Order{Triggered: 9, TriggeredAt: at(tc.triggered)}}
		changed, news := l.Update(every10(t), m, false)
		if got := text(l.Due, news); got != tc.want || !changed || l.New() || l.LastTick() != start {
			t.Errorf("%s: changed %v: %q, last %s; want %q", name, changed, got, l.LastTick(), tc.want)
		}
	}
}

// begin begins what is next under the job's own lock: see package policy.
func begin(l *Ledger, j *Job, m Moment) (x *Execution, changed bool, news []News) {
	switch {
	case l.Lane(0) != nil:
		x, news = l.TakeOver(j, m, 0, 0)
		return x, true, news
	case l.Ready(j, m):
		x, news = l.Begin(j, m, 0, 0)
		return x, true, news
	}
	return nil, false, nil
}

// What is executed next, and what happens to an execution without a result.
func TestBegin(t *testing.T) {
	once := func(j *Job) { j.AtMostOnce = true }
	tick := Due{At: at(-10 * min1)}
	waiting := []Due{{At: at(0)}}
	for name, tc := range map[string]struct {
		change  func(*Job)
		last    *Execution
		due     []Due
		order   Order
		want    string // the execution, what waits, the news
		counts  Counts
		state   State // of last, afterwards; in the history if another was begun
		changed bool
	}{
		"nothing waits":           {want: "none"},
		"a tick waits":            {due: waiting, want: "tick:0s", changed: true},
		"after one that was done": {last: &Execution{Due: tick, State: Done}, due: waiting, want: "tick:0s", state: Done, changed: true},
		"none after one done":     {last: &Execution{Due: tick, State: Done}, want: "none", state: Done},
		"its node died":           {last: &Execution{Due: tick, State: Running}, due: waiting, want: "tick:-10m0s again 1 tick:0s", counts: Counts{TakenOver: 1}, state: Died, changed: true},
		"its node was stopped":    {last: &Execution{Due: tick, State: Interrupted, Broken: 3}, want: "tick:-10m0s again 4", counts: Counts{TakenOver: 1}, state: Interrupted, changed: true},
		"for the tenth time":      {last: &Execution{Due: tick, State: Running, Broken: 9}, want: "tick:-10m0s again 10", counts: Counts{TakenOver: 1}, state: Died, changed: true},
		"for the eleventh time":   {last: &Execution{Due: tick, State: Running, Broken: 10}, want: "none lost(-10m0s)", counts: Counts{Lost: 1}, state: Lost, changed: true},
		"once at most":            {change: once, last: &Execution{Due: tick, State: Running}, due: waiting, want: "none tick:0s lost(-10m0s)", counts: Counts{Lost: 1}, state: Lost, changed: true},
		"paused":                  {due: waiting, order: Order{PausedFrom: 1}, want: "none tick:0s"},
		"a trigger while paused":  {due: []Due{{At: at(0)}, {At: at(5 * sec), Cause: CauseTrigger}}, order: Order{PausedFrom: 1}, want: "trigger:5s tick:0s", changed: true},
		"taken over while paused": {last: &Execution{Due: tick, State: Running}, order: Order{PausedFrom: 1}, want: "tick:-10m0s again 1", counts: Counts{TakenOver: 1}, state: Died, changed: true},
	} {
		t.Run(name, func(t *testing.T) {
			j := every10(t)
			if tc.change != nil {
				tc.change(j)
			}
			l := &Ledger{Version: version, Last: at(0), Due: append([]Due(nil), tc.due...), Latest: tc.last}
			if last := tc.last; last != nil && !last.Ended() {
				l.Latest, l.Running = nil, []Execution{*last}
			}
			x, changed, news := begin(l, j, Moment{Now: start.Add(sec), Order: tc.order, Node: "n"})
			got := "none"
			if x != nil {
				got = text([]Due{x.Due}, nil)
				if x.Broken > 0 {
					got += fmt.Sprintf(" again %d", x.Broken)
				}
				if x != l.Lane(0) || x.State != Running || x.Node != "n" || x.Start != at(sec) {
					t.Errorf("begun: %+v", x)
				}
			}
			got = strings.TrimSpace(got + " " + text(l.Due, news))
			if got != tc.want || changed != tc.changed || l.Counts != tc.counts {
				t.Errorf("changed %v: %q %+v, want %v: %q %+v", changed, got, l.Counts, tc.changed, tc.want, tc.counts)
			}
			if tc.last == nil {
				return
			}
			if x == nil && l.Latest == nil {
				t.Fatal("the last execution is gone")
			}
			var last Execution
			if x == nil {
				last = *l.Latest
			} else {
				past, err := l.History()
				if err != nil || len(past) != 1 {
					t.Fatalf("history %+v, %v", past, err)
				}
				last = past[0]
			}
			if last.State != tc.state || last.Due != tick {
				t.Errorf("the last execution is %+v, want it %s", last, tc.state)
			}
		})
	}
}

// What End counts, and what a memo keeps of it.
func TestEndIsCountedOnce(t *testing.T) {
	for state, want := range map[State]Counts{
		Done: {Done: 1}, Failed: {Failed: 1}, Cancelled: {Cancelled: 1}, Lost: {Lost: 1}, Overlapped: {Overlapped: 1}, Interrupted: {},
	} {
		l := &Ledger{Version: version, Due: []Due{{At: at(0)}}}
		m := Moment{Now: start, Node: "n"}
		begin(l, every10(t), m)
		l.End(every10(t), 0, 0, state, start.Add(sec), 2, errors.New("why"))
		l, err := Decode(l.Encode())
		if err != nil {
			t.Fatal(err)
		}
		x := l.Latest
		if state == Interrupted {
			x = l.Lane(0)
		}
		if l.Counts != want || x.State != state || x.End != at(sec) || x.Attempts != 2 || x.Err != "why" || x.Tick() != tickAt(start) {
			t.Errorf("%s: %+v, counts %+v", state, x, l.Counts)
		}
	}
}

func TestBehindAndOverdue(t *testing.T) {
	j := every10(t)
	for _, tc := range []struct {
		now     time.Duration
		behind  time.Duration
		overdue bool
	}{
		{11*min1 + sec, 0, true}, {10*min1 + 30*sec, 0, false}, {0, 0, false}, {-9 * sec, 0, false},
		{-11 * sec, 11 * sec, false}, {-24 * hour, 24 * hour, false}, {-24*hour - sec, 0, false},
	} {
		l := &Ledger{Version: version, Spec: j.SpecText, Last: at(0)}
		now := start.Add(tc.now)
		if got := l.Behind(now); got != tc.behind {
			t.Errorf("%s after the last tick the clock is behind by %s, want %s", tc.now, got, tc.behind)
		}
		due := l.Overdue(j, now)
		if !due.IsZero() != tc.overdue || tc.overdue && due != start.Add(10*min1) {
			t.Errorf("%s after the last tick overdue since %s, want %v", tc.now, due, tc.overdue)
		}
		j.Delay = sec
		if due := l.Overdue(j, now.Add(sec)); !due.IsZero() != tc.overdue || tc.overdue && due != start.Add(10*min1+sec) {
			t.Errorf("with a jitter of 1 s overdue since %s, want %v", due, tc.overdue)
		}
		j.Delay = 0
		l.Spec = "@every 1s"
		if due := l.Overdue(j, now); !due.IsZero() {
			t.Errorf("of another spec overdue since %s", due)
		}
	}
}
