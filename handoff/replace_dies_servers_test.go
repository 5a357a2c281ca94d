//go:build servers

package handoff_test

import (
	"fmt"
	"testing"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
)

// The process dies after, or before, any one command: no job is lost, none runs
// at the same time as another, the older runs first, and the key is free in the end.
func TestReplacementThatDiesAtAnyStep(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	const steps = 15 // more than there are commands
	for _, by := range []struct {
		u  handoff.Unique
		id string
	}{{sweeps[0], "second"}, {sweeps[1], "second"}, {sweeps[0], "first"}} {
		for n := 1; n <= steps; n++ {
			t.Run(fmt.Sprintf("%s by %s, command %d", by.u.Key, by.id, n), func(t *testing.T) {
				t.Parallel()
				s := replaceStruck(t, db, by.u, by.id, n, -1, redistest.DropReply())
				if s.err == nil {
					s.wantReplaced(t)
					return
				}
				if s.second != nil || s.struck == 0 {
					t.Errorf("returned %v, %v", s.second, s.err)
				}
				t.Logf("%d tasks are left, error %v", len(s.left(t)), s.err)
				s.wantAllRun(t)
			})
		}
	}
}
