//go:build servers

package e2e

import "testing"

// The job is removed from one process after the other while it is executed all the time, and one process is killed. The
// processes that still have the job execute each tick. When a process has the job again, it goes on where the job ended.
func TestRemoveOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "steered")
	remove := func(node string, n int) {
		t.Helper()
		if err := c.rdb.SAdd(t.Context(), "remove", node).Err(); err != nil {
			t.Fatal(err)
		}
		if got := c.await("removed", n); got.Node != node {
			t.Errorf("removed on %s, want %s", got.Node, node)
		}
	}
	c.awaitMore(3)
	remove("a", 1)
	c.awaitMore(3)
	c.kill("b")
	c.awaitMore(3)
	remove("c", 2)
	await(t, "the last execution, and the end of the record of the killed process", func() bool {
		e := c.entry()
		return len(e.Nodes)+len(e.Running) == 0
	})
	c.nodes["d"] = startSchedRole(t, c.server, "steered", "d")
	c.awaitMore(3)
	c.wantEachSecond(1, never)
	removed, after := make(map[string]bool), make(map[string]int)
	for _, n := range c.notes("") {
		switch {
		case n.What == "removed":
			removed[n.Node] = true
		case n.What == "begun" && removed[n.Node]:
			after[n.Node]++
		}
	}
	for node, n := range after {
		if n > 1 { // one had begun, and had not written its note
			t.Errorf("%d executions on %s after the job was removed there", n, node)
		}
	}
}
