package ledger

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler/internal/codec"
	"github.com/joblock/toolkit/scheduler/spec"
)

// The store accepts the largest possible ledger, whatever the job, its options, its nodes
// and their errors are.
func TestTheLargestLedgerFitsIntoAMemo(t *testing.T) {
	worst := strings.Repeat("\x01", driver.MaxMemoBytes) // six bytes each in JSON
	large := int64(math.MinInt64)
	l := &Ledger{
		Version: version, Spec: worst[:spec.MaxBytes], Delay: large, Last: large, Triggered: large,
		Counts:     Counts{large, large, large, large, large, large, large, large, large},
		Overlaps:   Overlaps{large, large, true},
		Definition: Definition{Program: shortenJSON(worst, maxProgramBytes), Policies: ShortenPolicies(worst), Back: math.MinInt, First: large, Latest: large, Since: math.MinInt, Reported: large},
	}
	for range 2 * keptFormer {
		l.putIntoForce(&Job{SpecText: worst[:spec.MaxBytes]}, Moment{Since: time.UnixMilli(large), Now: time.UnixMilli(large)})
	}
	l.Since, l.From = large, large
	l.Resumed = Resumed{At: large, By: strings.Repeat(`"`, driver.MaxLabelBytes), Note: strings.Repeat(`"`, driver.MaxLabelBytes), All: true}
	order := BackfillOrder{ID: large, At: large, From: large, To: large, Stop: true}
	l.Backfill = &Backfill{BackfillOrder: order, Ticks: math.MinInt, Cursor: large, Done: math.MinInt, Failed: math.MinInt, Lost: math.MinInt, End: large}
	j := &Job{KeepFailures: MaxHistory, KeepOthers: MaxHistory}
	for i := range 2 * keptStarts {
		l.Starts = prepend(worst[:MaxStartIDBytes], l.Starts, keptStarts)
		l.wait(Due{At: large, Cause: CauseStart})
		l.wait(Due{At: large, Cause: CauseTrigger})
		l.Definition.By = append(l.Definition.By, fmt.Sprintf("%016x", i))[:min(i+1, keptDefinitions)]
	}
	j.MaxConcurrent, j.Overlap.Queue = MaxLanes, MaxBacklog
	due := l.Due
	for i := range MaxLanes {
		l.Due = []Due{{At: large, Cause: CauseTrigger, Backfill: large}}
		if x, _ := l.Begin(j, Moment{Node: strings.Repeat(`"`, driver.MaxLabelBytes)}, i+1, large); x == nil {
			t.Fatal("no execution begins")
		}
		l.Running[i].Start, l.Running[i].Broken = large, math.MinInt
		l.Running[i].SetOverrun(time.UnixMilli(large), errors.New(worst))
		l.End(j, i+1, large, Interrupted, time.UnixMilli(large), math.MinInt, errors.New(worst))
	}
	l.Due = due
	for i := range 4 * MaxHistory {
		x := *l.start(j, Execution{Due: Due{At: large, Cause: CauseBackfill, Backfill: large}, Broken: math.MinInt}, Moment{Node: strings.Repeat(`"`, driver.MaxLabelBytes)})
		l.finish(j, x, []State{Died, Overlapped, Failed}[i%3], time.UnixMilli(large), math.MinInt, errors.New(worst))
		l.Latest.Start, l.Latest.Overrun = large, large
		l.Latest.Newest = true
		l.FollowTask(l.Latest.Due)
	}
	for range 2 * maxWaiting {
		l.wait(Due{At: large})
	}
	if gone := l.cut(maxWaiting); len(gone) != maxWaiting {
		t.Errorf("%d ticks cut, want %d", len(gone), maxWaiting)
	}
	if len(l.Due) != maxWaiting+2 || l.Due[0].Cause != CauseTrigger {
		t.Errorf("%d wait, want the ticks, a trigger and a start", len(l.Due))
	}
	if size := len(l.Encode()); size > driver.MaxMemoBytes {
		t.Errorf("%d bytes, a memo has %d at most", size, driver.MaxMemoBytes)
	} else {
		t.Logf("%d bytes of %d", size, driver.MaxMemoBytes)
	}
}

// Frequent successes do not push failures out of the history, nor the reverse.
func TestHistoryKeepsFailuresApart(t *testing.T) {
	for name, tc := range map[string]struct {
		failures, others int
		states           string // f failed, d done, i interrupted, x died, l lost, c cancelled, o overlapped
		want             string // the newest first; the last state is that of Ledger.Latest
	}{
		"both":         {2, 3, "fdfdfdddddd", "dddff"},
		"neither":      {0, 0, "fdfdf", ""},
		"failures":     {3, 0, "fdxdldfd", "flx"},
		"others":       {0, 3, "idcdodfdfd", "ddo"},
		"more of both": {5, 5, "fdf", "df"},
	} {
		t.Run(name, func(t *testing.T) {
			states := map[rune]State{'f': Failed, 'd': Done, 'i': Interrupted, 'x': Died, 'l': Lost, 'c': Cancelled, 'o': Overlapped}
			j := &Job{KeepFailures: tc.failures, KeepOthers: tc.others}
			l := new(Ledger)
			for _, r := range tc.states {
				l.finish(j, *l.start(j, Execution{}, Moment{Now: start}), states[r], start, 1, nil)
			}
			past, err := l.History()
			var got strings.Builder
			for _, x := range past {
				for r, s := range states {
					if s == x.State {
						got.WriteRune(r)
					}
				}
			}
			if got.String() != tc.want || err != nil {
				t.Errorf("%q, %v; want %q", got.String(), err, tc.want)
			}
		})
	}
}

// The ledger's latest tick only grows, whatever ticks it is given.
func TestTheLatestTickOnlyGrows(t *testing.T) {
	l := &Ledger{Last: 50_000}
	var want int64 = 50_000
	for _, ticks := range [][]int64{{}, {60}, {10}, {60, 61}, {70, 65, 80, 80, 79}, {50, 81}, {-5, 0}} {
		var in, out []time.Time
		for _, at := range ticks {
			in = append(in, time.Unix(at, 0))
			if at*1000 > want {
				want = at * 1000
				out = append(out, time.Unix(at, 0))
			}
		}
		if got := l.advance(in); fmt.Sprint(got) != fmt.Sprint(out) || l.Last != want {
			t.Errorf("of %v came %v and %d, want %v and %d", ticks, got, l.Last, out, want)
		}
	}
}

func TestErrorsInTheLedgerAreShort(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("x", 300), strings.Repeat("é", 300), strings.Repeat("\x01", 300), strings.Repeat("\xff", 300), strings.Repeat("\u2028", 67), strings.Repeat(`"`, 150)} {
		got := shortenJSON(text, 200)
		if size := len(codec.Encode(got)) - 2; size > 203 || len(text) > 200 && size < 150 && text[0] != 0xff {
			t.Errorf("%.10q… has %d bytes as JSON: %q", text, size, got)
		}
	}
}
