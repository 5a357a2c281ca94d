//go:build servers

package e2e

import "testing"

// All jobs are paused; during the pause a process is killed and another one starts. No tick of the pause is executed, and
// every other tick is.
func TestPauseAllOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "steered")
	c.awaitMore(3)
	if err := c.admin.PauseAll(t.Context(), "the database moves"); err != nil {
		t.Fatal(err)
	}
	e := c.entry()
	if len(e.Pauses) != 1 || !e.Pauses[0].All {
		t.Fatalf("pauses %+v", e.Pauses)
	}
	wantNote(t, e.Pauses[0].Note, "the database moves")
	from := e.Pauses[0].At
	c.kill("a")
	c.nodes["d"] = startSchedRole(t, c.server, "steered", "d")
	await(t, "three ticks of the pause", func() bool { return c.entry().Counts.Paused >= 3 })
	if err := c.admin.ResumeAll(t.Context(), "it has moved"); err != nil {
		t.Fatal(err)
	}
	c.awaitMore(3)
	e = c.entry()
	if e.Resumed == nil || !e.Resumed.All || e.Resumed.Note != "it has moved" || e.Paused {
		t.Fatalf("resumed %+v, pauses %+v", e.Resumed, e.Pauses)
	}
	c.wantEachSecond(1, func(at int64) bool {
		return at*1000 > from.UnixMilli() && at*1000 <= e.Resumed.At.UnixMilli()
	})
	if e.Counts.Missed+e.Counts.Overlapped > 0 {
		t.Errorf("counts %+v", e.Counts)
	}
}
