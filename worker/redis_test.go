package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// The states of the store itself, as another process sees them.
func TestLockIsTheJobsOnRedis(t *testing.T) {
	r := onRedis(t, time.Minute)
	var p probe
	release := make(chan struct{})
	token := r.enqueue("a", 0)
	r.wantState("key-a", joblock.StateParked, "a")
	r.serve(service{asynq: asynq.Config{TaskCheckInterval: 50 * time.Millisecond}}, p.handler(func(context.Context, int) error { <-release; return nil }))
	r.until("running", func() bool { return p.running() == 1 })
	r.wantState("key-a", joblock.StateHeld, "a")
	r.wantHeld("key-a")
	if _, err := r.newLocker().Resume(context.Background(), token, joblock.ForJob("default/b")); err == nil {
		t.Error("another task resumed the lock of a running one")
	}
	close(release)
	r.untilTask("a", "gone")
	r.wantEnded("key-a", "job done")
}
