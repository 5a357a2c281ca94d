//go:build servers

package e2e

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// The job of three processes is forgotten when two of them have stopped and the record of the killed one has ended, and not
// before. Then a process has the job again: it is a new job.
func TestForgetOnThreeProcesses(t *testing.T) {
	t.Parallel()
	c := newSchedClusterOf(t, "steered")
	c.awaitMore(3)
	if err := c.admin.Forget(t.Context(), "job"); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("forgotten while three processes have the job: %v", err)
	}
	c.kill("a")
	for name, node := range c.nodes {
		if err := node.end(syscall.SIGTERM); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	early := 0
	await(t, "the end of the record of the killed process", func() bool {
		err := c.admin.Forget(t.Context(), "job")
		if err != nil && !errors.Is(err, joblock.ErrHeld) {
			t.Fatal(err)
		}
		if err != nil {
			early++
		}
		return err == nil
	})
	t.Logf("forgotten at the try %d", early+1)
	if _, err := c.admin.Entry(t.Context(), "job"); !errors.Is(err, joblock.ErrNotFound) {
		t.Errorf("Entry: %v, want ErrNotFound", err)
	}
	if all, err := c.admin.Entries(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%d entries, %v", len(all), err)
	}
	forgotten, err := c.rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	before := len(c.notes("done"))
	c.nodes["d"] = startSchedRole(t, c.server, "steered", "d")
	c.awaitMore(3)
	for _, n := range c.notes("done")[before:] {
		if at := c.secondOf(n); !time.Unix(at, 0).After(forgotten) {
			t.Errorf("the tick of %s was done, from before the job was forgotten", time.Unix(at, 0))
		}
	}
	if e := c.entry(); e.Counts.Missed+e.Counts.TakenOver > 0 || int(e.Counts.Done) > len(c.notes("done"))-before {
		t.Errorf("counts %+v, want those of a new job", e.Counts)
	}
}
