package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/worker"
)

func TestRoundIsTheDifferenceOfTwoSights(t *testing.T) {
	begin := time.Now()
	before := sight{at: begin, states: []State{{CPU: time.Second, Stats: worker.KeeperStats{Checked: 10, Listed: 5}}, {}}}
	after := sight{at: begin.Add(30 * time.Second), states: []State{
		{CPU: 3 * time.Second, Heap: 7, Stats: worker.KeeperStats{Checked: 1010, Listed: 905, Working: true, Behind: true}},
		{CPU: time.Second},
	}}
	r := roundOf(before, after, time.Minute)
	if r.Wall != 30*time.Second || r.Checked != 1000 || r.Listed != 900 || r.own() != 3*time.Second || r.Working != 1 || !r.Behind || r.Heap != 7 {
		t.Errorf("%+v", r)
	}
	if us := perLock(float64(r.own().Microseconds()), r); us != 3000 {
		t.Errorf("%g µs own CPU per check, want 3000", us)
	}
}

func TestReportSaysHowLateLocksWereFreed(t *testing.T) {
	r := Report{Settings: Settings{Locks: 1000}, Freed: []time.Duration{time.Second, 2 * time.Second, 9 * time.Second}, Rounds: []Round{{Checked: 1}}}
	var out strings.Builder
	if err := r.WriteMarkdown(&out); err != nil || !strings.Contains(out.String(), "longest of 3 | 2.0 s, 9.0 s |") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
