//go:build servers

package worker_test

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// TestRedisIsKilledInTheMiddleOfTwoControls kills the Redis of asynq and of the locks twice, which has an append-only file, and starts
// it again: while a job runs and others wait, and while a pause holds all of them back. What TestTwoControlsAtATime promises still
// holds, except that a step may run again whose end Redis did not get.
func TestRedisIsKilledInTheMiddleOfTwoControls(t *testing.T) {
	for _, way := range ctlWays {
		switch way.name {
		case "Replace", "CancelInProgress", "Debounce", "Sequence, LimitName", "Chain, Debounce", "Chain, Sequence", "KeepLast, Cooldown", "InLine":
		default:
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			redistest.Ran(t, server.Backend())
			r := newRig(t, server.Client(t), testkit.Must(redisstore.New(server.Client(t), nil)), ttl)
			crash := func() {
				server.Kill()
				after(1)
				server.Restart()
				r.until("Redis is back", func() bool { return r.rdb.Ping(t.Context()).Err() == nil })
			}
			playControls(r, way, ctlWith{
				limits: []rate.Limit{{Key: "r", N: 2, Per: 3 * time.Second}},
				again:  true,
				do: func(r *rig) {
					after(3) // all jobs but two are enqueued
					crash()
					after(2)
					r.pauseKey("k", 0)
					after(2)
					crash()
					if p := r.controls().Find("k"); p == nil || p.Ended(time.Now()) {
						t.Errorf("the pause is %+v", p)
					}
					after(2)
					r.resumeKey("k")
				},
			})
		})
	}
}
