package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
)

// A lock that was released before the engine's goroutine ran leaves the queue empty. If the goroutine
// then slept until the next lock wakes it, each of many short locks would wake it.
func TestShortLocksDoNotWakeTheEngine(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"long leases": time.Minute, "short leases": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := lockkit.New(t, nil)
				runs, last := 0, time.Time{}
				for range 100 {
					lock := k.Acquire("key", joblock.TTL(ttl))
					testkit.WantNil(t, "Release", lock.Release(t.Context()))
					synctest.Wait()
					if awake := core.EngineAwake((*core.Locker)(k.Locks)); !awake.Equal(last) {
						runs, last = runs+1, awake
					}
					time.Sleep(time.Millisecond)
				}
				if runs > 2 { // the first run may come before the first lock
					t.Errorf("the engine ran %d times for 100 locks in 100 ms, want at most 2", runs)
				}
				end := time.Now()
				time.Sleep(50 * time.Minute)
				synctest.Wait()
				if left := core.EngineAwake((*core.Locker)(k.Locks)).Sub(end); left < 59*time.Minute {
					t.Errorf("the engine wakes up %v after the last lock, want a sleep of an hour", left)
				}
			})
		})
	}
}
