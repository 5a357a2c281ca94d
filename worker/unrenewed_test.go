package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// A job that takes longer than its lock may be held has failed, by its own doing: it is
// charged, and not tried forever.
func TestLockThatIsNoLongerRenewedIsNoLossFromOutside(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		locks, err := joblock.New(r.faults, &joblock.Config{TTL: ttl, MaxRenew: time.Minute, Logger: r.log.Text()})
		if err != nil {
			t.Fatal(err)
		}
		r.t.Cleanup(func() { _ = locks.Close(context.Background()) })
		r.serve(service{locks: locks, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, _ int) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Minute):
				return nil
			}
		}))
		r.enqueue("a", 1, asynq.Timeout(time.Hour))
		time.Sleep(30 * time.Minute)
		r.wantTask("a", "archived", 1)
		r.wantRuns(&p, 2)
		if told := p.heard(); len(told) != 2 {
			t.Errorf("the ErrorHandler got %+v, want both attempts", told)
		}
	})
}
