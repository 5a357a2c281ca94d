//go:build servers

package e2e

import (
	"testing"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// A process without the job triggers it and waits. The process that executes the trigger is killed; the result is that of
// the process that has taken over.
func TestTriggerAndWaitOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "steered")
	c.awaitMore(1)
	if err := c.admin.Pause(t.Context(), "job", "only triggers"); err != nil {
		t.Fatal(err)
	}
	await(t, "the last tick before the pause", func() bool {
		e := c.entry()
		return e.Counts.Paused > 0 && e.Waiting+len(e.Running) == 0
	})
	c.setMode("work")
	type result struct {
		admin.Execution
		err error
	}
	results := make(chan result, 1)
	go func() {
		var r result
		wait, err := c.admin.Trigger(t.Context(), "job")
		if r.err = err; err == nil {
			r.Execution, r.err = wait(t.Context())
		}
		results <- r
	}()
	first := c.await("working", 1)
	c.kill(first.Node)
	second := c.await("working", 2)
	if second.Tick != first.Tick || second.Fence <= first.Fence {
		t.Errorf("taken over as %+v from %+v", second, first)
	}
	select {
	case r := <-results:
		t.Fatalf("returned before the end: %+v", r)
	default:
	}
	c.setMode("")
	x := <-results
	if x.err != nil || x.State != scheduler.Done || x.Node != second.Node || x.Tick.ID() != first.Tick || x.Tick.Broken != 1 {
		t.Errorf("%+v, want the execution on %s", x, second.Node)
	}
}
