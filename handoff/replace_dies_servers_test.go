//go:build servers

package handoff_test

import (
	"fmt"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// The process dies after, or before, any one command: no job is lost, none runs
// at the same time as another, the older runs first, and the key is free in the end. TestReplacementThatDiesInTheModel also
// replaces a job by one with the same TaskID, which takes more commands.
func TestReplacementThatDiesAtAnyStep(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	const steps = 11 // more than there are commands
	for _, u := range sweeps {
		for n := 1; n <= steps; n++ {
			t.Run(fmt.Sprintf("%s, command %d", u.Key, n), func(t *testing.T) {
				t.Parallel()
				s := replaceStruck(t, db, u, "second", n, -1, redistest.DropReply())
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
