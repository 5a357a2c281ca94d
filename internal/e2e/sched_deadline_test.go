//go:build servers

package e2e

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler/admin"
)

// An execution whose process is killed takes longer than the deadline of the ticks that wait. Each tick is either begun
// within its deadline and done, or counted as missed, and the killed execution is taken over.
func TestStartDeadlineOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "deadline")
	c.awaitMore(2)
	c.setMode("work")
	first := c.await("working", 1)
	c.kill(first.Node)
	again := c.await("working", 2)
	if again.Tick != first.Tick {
		t.Errorf("after %s began %s, want it taken over", first.Tick, again.Tick)
	}
	await(t, "the deadline of two ticks to pass", func() bool {
		now, err := c.rdb.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return now.Sub(time.Unix(c.secondOf(first), 0)) > steerDeadline+3*time.Second
	})
	c.setMode("")
	c.awaitMore(5)
	if err := c.admin.Pause(t.Context(), "job", "the end"); err != nil {
		t.Fatal(err)
	}
	var e admin.Entry
	await(t, "the last tick before the pause", func() bool {
		e = c.entry()
		return e.Counts.Paused > 0 && e.Waiting+len(e.Running) == 0
	})
	ticks := e.Pauses[0].At.Unix() - e.Since.Unix() // later than Since, up to the pause
	if e.Counts.Done+e.Counts.Missed != ticks || e.Counts.Missed < 2 || int64(len(c.doneAt())) != e.Counts.Done {
		t.Errorf("%d ticks; %d were done; counts %+v", ticks, len(c.doneAt()), e.Counts)
	}
	for _, x := range append(e.History, e.Latest) {
		if late := x.Started.Sub(x.Tick.At); late > steerDeadline && x.Tick.Broken == 0 {
			t.Errorf("the tick of %s began %s late", x.Tick.At, late)
		}
	}
	t.Logf("%d ticks, %+v", ticks, e.Counts)
}
