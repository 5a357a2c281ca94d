package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// However long an attempt has run, its key stays reserved for the task for
// Config.Reserve beyond the lease: the worker may die the next moment.
func TestReservationIsKeptAheadOfALongAttempt(t *testing.T) {
	virtual(t, func(r *rig) {
		r.enqueue("a", 0, asynq.Timeout(4*reserve))
		r.serve(service{}, func(context.Context, *asynq.Task) error {
			time.Sleep(3 * reserve)
			if left := r.status("key-a").Reserved; left < reserve {
				t.Errorf("reserved for %s after %s, want at least %s", left, 3*reserve, reserve)
			}
			return nil
		})
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
	})
}
