//go:build servers

package e2e

import (
	"syscall"
	"testing"

	"github.com/joblock/toolkit/scheduler/admin"
)

// Three executions in a row fail on three processes, and then three kill their process: the job is paused each time.
func TestPauseAfterOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "failing")
	c.awaitMore(2)
	paused := func(note string) (e admin.Entry) {
		t.Helper()
		await(t, "the pause", func() bool {
			e = c.entry()
			return e.Paused
		})
		wantNote(t, e.Pauses[0].Note, note)
		return e
	}
	c.setMode("fail")
	if e := paused("3 executions in a row have failed, the last one with: as planned"); e.Counts.Failed != 3 {
		t.Errorf("paused after %d failures", e.Counts.Failed)
	}
	done := len(c.notes("done"))
	c.setMode("die")
	if err := c.admin.Resume(t.Context(), "job", "once more"); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.nodes {
		_ = node.end(syscall.Signal(0)) // each process kills itself
	}
	c.setMode("")
	c.nodes["d"] = startSchedRole(t, c.server, "failing", "d")
	e := paused("3 executions in a row have failed, the last one with: the execution was broken off")
	if n := len(c.notes("done")) - done; e.Counts.Lost != 3 || n != 0 || e.Pauses[0].By != "d" {
		t.Errorf("%d lost, %d done, paused by %s", e.Counts.Lost, n, e.Pauses[0].By)
	}
	if e.Resumed == nil || e.Resumed.Note != "once more" {
		t.Errorf("resumed %+v", e.Resumed)
	}
	if err := c.admin.Resume(t.Context(), "job", "mended"); err != nil {
		t.Fatal(err)
	}
	c.awaitMore(2)
}
