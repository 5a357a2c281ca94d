//go:build servers

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// How long the other node took is logged; that it is in time is shown in virtual time, in
// package scheduler, for here a busy machine may be late.

func TestScheduledJobIsTakenOver(t *testing.T) {
	for name, tc := range map[string]struct {
		sig  syscall.Signal
		goal string
		was  scheduler.Kind // in the history
	}{
		"kill -9":       {syscall.SIGKILL, "a lease of " + schedTTL.String() + " and a second", scheduler.Died},
		"graceful stop": {syscall.SIGTERM, "100ms", scheduler.Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newSchedCluster(t)
			first := c.await("begun", 1)
			c.awaitLine()
			start := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- c.nodes[first.Node].end(tc.sig) }()
			second := c.await("begun", 2)
			t.Logf("taken over after %v, to be within %s", time.Since(start), tc.goal)
			if err := <-ended; tc.sig == syscall.SIGTERM && err != nil {
				t.Errorf("the node that was stopped ended with %v", err)
			}
			if second.Node == first.Node || second.Tick != first.Tick || second.Fence <= first.Fence {
				t.Errorf("taken over as %+v from %+v", second, first)
			}
			e := c.settled()
			if e.Counts.TakenOver != 1 {
				t.Errorf("counts %+v, want one taken over", e.Counts)
			}
			runs := append([]admin.Execution{e.Latest}, e.History...)
			oldest := runs[len(runs)-1]
			if oldest.Node != first.Node || oldest.State != tc.was {
				t.Errorf("the ledger has %+v as the first run, want %s", oldest, tc.was)
			}
			stopped := c.notes("stopped")
			if tc.sig == syscall.SIGTERM && (len(stopped) != 1 || !strings.Contains(stopped[0].Cause, scheduler.ErrStopped.Error())) {
				t.Errorf("the function got %+v", stopped)
			}
		})
	}
}
