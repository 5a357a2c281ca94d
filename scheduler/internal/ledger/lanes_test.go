package ledger

import (
	"errors"
	"testing"
	"time"
)

// What lanes do, one step after the other.
func TestLanes(t *testing.T) {
	j := every10(t, func(j *Job) { j.MaxConcurrent = 2 })
	m := Moment{Now: start, Node: "n"}
	l := &Ledger{Version: version, Spec: j.SpecText, Due: []Due{{At: at(0)}, {At: at(10 * min1)}, {At: at(20 * min1)}}}
	begin := func(lane int, fence int64) *Execution {
		x, news := l.Begin(j, m, lane, fence)
		if len(news) > 0 {
			t.Errorf("news %+v", news)
		}
		return x
	}
	if x := begin(1, 11); x == nil || x.At != at(0) || x.State != Running {
		t.Fatalf("begun %+v", x)
	}
	if x := begin(2, 12); x == nil || x.At != at(10*min1) {
		t.Fatalf("begun %+v", x)
	}
	if !l.Full(j) || l.Ready(j, m) || begin(3, 13) != nil || len(l.Due) != 1 {
		t.Errorf("a third execution begins: %+v", l.Running)
	}
	alone := every10(t)
	if x, news := l.Begin(alone, m, 0, 13); x != nil || len(news) > 0 || len(l.Due) != 1 {
		t.Errorf("without MaxConcurrent %+v begins", x)
	}
	if l.End(j, 1, 99, Done, start, 1, nil) || l.End(j, 3, 11, Done, start, 1, nil) || len(l.Running) != 2 {
		t.Error("an execution was ended under the fence of another one")
	}
	if !l.End(j, 2, 12, Interrupted, start.Add(sec), 1, errors.New("stopped")) || !l.Full(j) || l.Counts != (Counts{}) {
		t.Errorf("an interrupted execution has left its lane: %+v", l)
	}
	if x, _ := l.TakeOver(j, m, 2, 21); x == nil || x.Broken != 1 || x.At != at(10*min1) || x.Fence != 21 || len(l.Running) != 2 || l.Lane(0) != nil {
		t.Errorf("taken over %+v", x)
	}
	if !l.End(j, 1, 11, Done, start.Add(sec), 1, nil) || l.Full(j) || l.Counts.Done != 1 || l.Latest.At != at(0) {
		t.Errorf("ended: %+v", l)
	}
	once := every10(t, func(j *Job) { j.MaxConcurrent, j.AtMostOnce = 2, true })
	if x, news := l.TakeOver(once, m, 2, 31); x != nil || text(nil, news) != "lost(10m0s)" || l.Counts.Lost != 1 || len(l.Running) != 0 {
		t.Errorf("taken over %+v, news %q", x, text(nil, news))
	}
	past, err := l.History()
	if err != nil || len(past) != 2 || past[0].State != Done || past[1].State != Interrupted || l.Latest.State != Lost {
		t.Errorf("latest %+v, history %+v, %v", l.Latest, past, err)
	}
}

// With lanes the ticks come one by one: of those that overlap only the newest waits.
func TestNewestWithLanes(t *testing.T) {
	j := every10(t, func(j *Job) { j.MaxConcurrent, j.Overlap.Newest = 2, true })
	l := &Ledger{Version: version, Spec: j.SpecText, Last: at(0), Definition: Definition{Program: "shop", By: []string{"1"}},
		Running: []Execution{{Lane: 1, State: Running}, {Lane: 2, State: Running}}}
	for i, want := range []string{"tick:10m0s", "tick:20m0s overlapped(10m0s)x1", "tick:30m0s overlapped(20m0s)x1"} {
		m := Moment{Now: start.Add(time.Duration(i+1) * 10 * min1), Floor: start, Node: "n"}
		_, news := l.Update(j, m, l.Full(j))
		if got := text(l.Due, news); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	l.Running = l.Running[:1] // a lane is free: the next tick does not push the one that waits out
	_, news := l.Update(j, Moment{Now: start.Add(40 * min1), Floor: start, Node: "n"}, l.Full(j))
	if got, want := text(l.Due, news), "tick:30m0s tick:40m0s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// An execution that is given back leaves the ledger as it was before the begin: the tick begins again, and once.
func TestGiveBack(t *testing.T) {
	j := every10(t, func(j *Job) { j.MaxConcurrent = 2 })
	m := Moment{Now: start, Node: "n"}
	ordered := func() *Backfill {
		return &Backfill{BackfillOrder: BackfillOrder{ID: 7, From: at(0), To: at(20 * min1)}, Ticks: 3, Cursor: at(0) - 1}
	}
	for name, tc := range map[string]struct {
		ledger Ledger
		during func(*Ledger) // what other calls change before the end of the execution
		want   string        // the ticks that then begin, in order
	}{
		"a tick":                           {Ledger{Due: []Due{{At: at(0)}, {At: at(10 * min1)}}}, nil, "tick:0s tick:10m0s"},
		"a trigger":                        {Ledger{Due: []Due{{At: at(0), Cause: CauseTrigger}, {At: at(10 * min1)}}}, nil, "trigger:0s tick:10m0s"},
		"a trigger before a newer trigger": {Ledger{Due: []Due{{At: at(0), Cause: CauseTrigger}}}, func(l *Ledger) { l.wait(Due{At: at(sec), Cause: CauseTrigger}) }, "trigger:1s"},
		"a start":                          {Ledger{Due: []Due{{At: at(0), Cause: CauseStart}}}, nil, "start:0s"},
		"a start before a newer start":     {Ledger{Due: []Due{{At: at(0), Cause: CauseStart}}}, func(l *Ledger) { l.wait(Due{At: at(sec), Cause: CauseStart}) }, "start:1s"},
		"a tick before a newer trigger":    {Ledger{Due: []Due{{At: at(0)}}}, func(l *Ledger) { l.wait(Due{At: at(sec), Cause: CauseTrigger}) }, "tick:0s trigger:1s"},
		"the first tick of a backfill":     {Ledger{Backfill: ordered()}, nil, "backfill:0s backfill:10m0s backfill:20m0s"},
		"the last tick of a backfill":      {Ledger{Backfill: &Backfill{BackfillOrder: ordered().BackfillOrder, Ticks: 3, Done: 2, Cursor: at(10 * min1)}}, nil, "backfill:20m0s"},
		"a tick of an earlier backfill": {Ledger{Backfill: ordered()}, func(l *Ledger) {
			l.Backfill = &Backfill{BackfillOrder: BackfillOrder{ID: 8, From: at(20 * min1), To: at(30 * min1)}, Ticks: 2, Cursor: at(20*min1) - 1}
		}, "backfill:20m0s backfill:30m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tc.ledger
			l.Version, l.Spec = version, j.SpecText
			first, _ := l.Begin(j, m, 1, 11)
			if first == nil {
				t.Fatal("nothing begins")
			}
			if tc.during != nil {
				tc.during(&l)
			}
			if !l.End(j, 1, 11, NotBegun, start, 0, nil) || len(l.Running) > 0 || l.Latest != nil || l.Counts != (Counts{}) {
				t.Errorf("given back: %+v", l)
			}
			var got []Due
			for range 5 {
				x, _ := l.Begin(j, m, 1, 12)
				if x == nil {
					break
				}
				got = append(got, x.Due)
				l.End(j, 1, 12, Done, start, 1, nil)
			}
			if text := text(got, nil); text != tc.want {
				t.Errorf("then %q begin, want %q", text, tc.want)
			}
			if b := l.Backfill; b != nil && (b.Done != b.Ticks || b.Failed+b.Lost != 0) {
				t.Errorf("the backfill counts %+v", b)
			}
		})
	}
}

// A takeover that is given back is one for the next node, as if this node had not seen it.
func TestGiveBackOfATakeover(t *testing.T) {
	j := every10(t, func(j *Job) { j.MaxConcurrent = 2 })
	m := Moment{Now: start, Node: "n"}
	l := &Ledger{Version: version, Spec: j.SpecText, Due: []Due{{At: at(0)}}}
	l.Begin(j, m, 1, 11)
	for fence := int64(12); fence < 12+3*maxBroken; fence++ {
		if x, news := l.TakeOver(j, m, 1, fence); x == nil || x.Broken != 1 || len(news) > 0 {
			t.Fatalf("taken over %+v, news %+v", x, news)
		}
		if !l.End(j, 1, fence, NotBegun, start, 0, nil) || l.Counts != (Counts{}) || len(l.Due) > 0 || !l.Full(every10(t)) {
			t.Fatalf("given back: %+v", l)
		}
	}
}

// An execution that was broken off is left while as many others run as MaxConcurrent allows, unless its tick is lost.
func TestMayTakeOver(t *testing.T) {
	for _, tc := range []struct {
		j      Job
		broken int
		others int
		want   bool
	}{
		{Job{}, 0, 0, true},
		{Job{}, 0, 1, false},
		{Job{MaxConcurrent: 1}, 0, 1, false},
		{Job{MaxConcurrent: 2}, 0, 1, true},
		{Job{MaxConcurrent: 2}, 0, 2, false},
		{Job{MaxConcurrent: 2, AtMostOnce: true}, 0, 2, true},
		{Job{MaxConcurrent: 2}, maxBroken - 1, 2, false},
		{Job{MaxConcurrent: 2}, maxBroken, 2, true},
	} {
		l := &Ledger{Running: []Execution{{Lane: 3, State: Running, Broken: tc.broken}}}
		if got := l.MayTakeOver(&tc.j, 3, tc.others); got != tc.want {
			t.Errorf("%+v, broken %d times, %d others: %v", tc.j, tc.broken, tc.others, got)
		}
		if l.MayTakeOver(&tc.j, 1, 0) {
			t.Error("a lane without an execution is taken over")
		}
	}
}
