package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

// A task with three locks costs one call to their store at its start, and one at its end,
// whether the locks are parked for the next attempt or released.
func TestSeveralLocksCostOneCallEach(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.submit("a", r.seal(1, r.park("a", "x", "y", "z")...), 2)
		calls := []string{faultstore.Resume, faultstore.Park, faultstore.Release}
		before := make(map[string]int)
		for _, call := range calls {
			before[call] = r.faults.Calls(call)
		}
		want := func(when string, counts ...int) {
			t.Helper()
			for i, call := range calls {
				if n := r.faults.Calls(call) - before[call]; n != counts[i] {
					t.Errorf("%s: %d calls of %s, want %d", when, n, call, counts[i])
				}
			}
		}
		r.serve(service{}, p.handler(func(ctx context.Context, n int) error {
			if locks := joblock.LocksFromContext(ctx); len(locks) != 3 || locks.Err() != nil {
				t.Errorf("the handler has %v", locks)
			}
			want("in the handler", n, n-1, 0)
			if n == 1 {
				return errors.New("try again")
			}
			return nil
		}))
		r.untilTask("a", "gone", "archived")
		r.wantRuns(&p, 2)
		want("in the end", 2, 1, 1)
		if most := r.faults.Largest(faultstore.Resume); most != 3 {
			t.Errorf("the largest resume has %d items, want 3", most)
		}
		for _, key := range []string{"x", "y", "z"} {
			r.wantEnded(key, "job done")
		}
	})
}
