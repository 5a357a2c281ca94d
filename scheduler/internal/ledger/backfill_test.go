package ledger

import (
	"errors"
	"testing"
)

// Each tick of a backfill has one result, whatever happened before the execution that has the result.
func TestBackfillCountsResults(t *testing.T) {
	type counts struct{ done, failed, lost int }
	m := Moment{Now: start, Node: "n"}
	for name, tc := range map[string]struct {
		states []State // of the executions of the first tick, one after the other
		want   counts
	}{
		"done":                       {[]State{Done}, counts{done: 1}},
		"failed":                     {[]State{Failed}, counts{failed: 1}},
		"cancelled":                  {[]State{Cancelled}, counts{failed: 1}},
		"lost":                       {[]State{Lost}, counts{lost: 1}},
		"interrupted":                {[]State{Interrupted}, counts{}},
		"interrupted, then done":     {[]State{Interrupted, Done}, counts{done: 1}},
		"interrupted twice and done": {[]State{Interrupted, Interrupted, Done}, counts{done: 1}},
		"interrupted, then failed":   {[]State{Interrupted, Failed}, counts{failed: 1}},
		"died, then done":            {[]State{Died, Done}, counts{done: 1}},
	} {
		order := BackfillOrder{ID: 7, From: at(0), To: at(20 * min1)}
		for where, j := range map[string]*Job{"in a lane": every10(t, func(j *Job) { j.MaxConcurrent = 2 }), "under the job's lock": every10(t)} {
			t.Run(name+" "+where, func(t *testing.T) {
				l := &Ledger{Version: version, Spec: j.SpecText, Backfill: &Backfill{BackfillOrder: order, Ticks: 3, Cursor: at(0) - 1}}
				for i, state := range tc.states {
					fence := int64(11 + i)
					var x *Execution
					switch {
					case j.MaxConcurrent < 2:
						fence = 0
						x, _, _ = begin(l, j, m)
					case i == 0:
						x, _ = l.Begin(j, m, 1, fence)
					default:
						x, _ = l.TakeOver(j, m, 1, fence)
					}
					if x == nil || x.At != at(0) || x.Cause != CauseBackfill || x.Broken != i {
						t.Fatalf("execution %d is %+v", i, x)
					}
					switch {
					case state == Died: // no end is written
					case j.MaxConcurrent < 2:
						l.End(j, 0, 0, state, start, 1, errors.New("why"))
					default:
						l.End(j, 1, fence, state, start, 1, errors.New("why"))
					}
				}
				if got := (counts{l.Backfill.Done, l.Backfill.Failed, l.Backfill.Lost}); got != tc.want {
					t.Errorf("counts %+v, want %+v", got, tc.want)
				}
			})
		}
	}
}

// The results of an earlier backfill, and of ticks of the schedule, are not those of this one.
func TestBackfillCountsItsOwnTicks(t *testing.T) {
	j := every10(t)
	for name, due := range map[string]Due{
		"an earlier backfill": {At: at(0), Cause: CauseBackfill, Backfill: 6},
		"the schedule":        {At: at(0)},
		"a trigger":           {At: at(0), Cause: CauseTrigger},
	} {
		l := &Ledger{Version: version, Spec: j.SpecText, Backfill: &Backfill{BackfillOrder: BackfillOrder{ID: 7}, Ticks: 3}}
		l.start(j, Execution{Due: due}, Moment{Now: start, Node: "n"})
		if l.End(j, 0, 0, Done, start, 1, nil); l.Backfill.Done != 0 || l.Counts.Done != 1 {
			t.Errorf("%s: backfill %+v, counts %+v", name, l.Backfill, l.Counts)
		}
	}
}
