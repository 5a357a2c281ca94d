//go:build servers && unix

package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// A node is stopped for longer than its lease and goes on: its context has ended
// before it does anything, what it writes is refused, and the ledger has the other's run.
func TestScheduledJobOfAPausedNode(t *testing.T) {
	t.Parallel()
	c := newSchedCluster(t)
	first := c.await("begun", 1)
	node := c.nodes[first.Node]
	c.awaitLine()
	if err := node.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := c.await("begun", 2)
	if second.Node == first.Node || second.Tick != first.Tick || second.Fence <= first.Fence {
		t.Errorf("taken over as %+v from %+v", second, first)
	}
	await(t, "a write under the other's fence", func() bool {
		fence, err := c.rdb.Get(t.Context(), "resource").Int64()
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		return fence == second.Fence
	})
	if err := node.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if stopped := c.await("stopped", 1); stopped.Node != first.Node || !strings.Contains(stopped.Cause, "lock lost") {
		t.Errorf("the function got %+v", stopped)
	}
	if refused := c.await("refused", 1); refused.Node != first.Node || refused.Fence != first.Fence {
		t.Errorf("refused was %+v", refused)
	}
	e := c.settled()
	for _, run := range append([]admin.Execution{e.Latest}, e.History...) {
		if run.Tick.ID() == first.Tick && run.Node == first.Node && run.State != scheduler.Died {
			t.Errorf("the ledger has %+v", run)
		}
	}
	if done := c.await("done", 1); done.Node != second.Node || done.Tick != first.Tick {
		t.Errorf("done was %+v", done)
	}
}
