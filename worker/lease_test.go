package worker_test

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
)

// asynq's own lease on a task ends when its Redis is away for half a minute: the
// context is cancelled, nothing is written, and the recoverer has the task two
// minutes later. Until then no other caller gets the lock.
func TestAsynqsLeaseIsLostWhileRedisIsAway(t *testing.T) {
	for _, tt := range []struct {
		name    string
		retries int
		task    string
		runs    int
	}{
		{"retries left", 1, "gone", 2},
		{"last attempt", 0, "archived", 1},
	} {
		for name, both := range map[string]bool{"asynq's alone": false, "that of the locks too": true} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				kept(t, func(r *rig) {
					var p probe
					r.enqueue("a", tt.retries)
					r.serve(service{}, p.handler(first(obey)))
					r.until("running", func() bool { return p.running() == 1 })
					time.Sleep(time.Minute)
					r.mini.SetError("LOADING away for the test")
					if both {
						r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, everyCall...)
					}
					time.Sleep(time.Minute)
					if p.running() != 0 {
						t.Error("the handler's context did not end")
					}
					r.mini.SetError("")
					r.faults.Clear()
					for state := "active"; state == "active"; state, _ = r.task("a") {
						if tt.retries > 0 {
							r.wantHeld("key-a") // a last attempt that is over needs it no longer
						}
						time.Sleep(time.Second)
					}
					r.untilTask("a", "gone", "archived")
					r.untilFree("key-a")
					if state, _ := r.task("a"); state != tt.task {
						t.Errorf("the task is %s, want %s", state, tt.task)
					}
					reason := "job done"
					if tt.retries == 0 {
						reason = "job failed"
					}
					r.wantEnded("key-a", reason)
					r.wantRuns(&p, tt.runs)
				})
			})
		}
	}
}
