package storetest_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/storetest"
)

// On a busy machine a call of a store may take longer than a Unit. No test of the suite may fail for that. After the first
// hundred calls of a test the machine is fast again: some tests ask for a key thousands of times until they have it.
func TestRunOnABusyMachine(t *testing.T) {
	storetest.Run(t, func(*testing.T) *storetest.Harness {
		var mu sync.Mutex
		now := time.Date(2030, time.March, 31, 1, 59, 59, 999_777_000, time.UTC)
		move := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(d)
		}
		store := memstore.New(&memstore.Config{
			Silent: true,
			Now: func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return now
			},
		})
		var calls atomic.Int64
		pass := func() {
			if calls.Add(1) <= 100 {
				move(storetest.DefaultUnit + 7*time.Millisecond)
			} else {
				move(50 * time.Microsecond)
			}
		}
		busy := faultstore.New(store)
		busy.Set(faultstore.Fault{Mode: faultstore.Pass, Before: pass},
			faultstore.Acquire, faultstore.Take, faultstore.Resume, faultstore.Park, faultstore.Renew, faultstore.Release, faultstore.Reserve,
			faultstore.Due, faultstore.Settle, faultstore.Entries, faultstore.Inspect, faultstore.List, faultstore.Line)
		return &storetest.Harness{Store: busy, Advance: move, Step: move}
	})
}
