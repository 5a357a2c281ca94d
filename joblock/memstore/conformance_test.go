package memstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/storemodel"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/storetest"
)

func newHarness() *storetest.Harness {
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
	return &storetest.Harness{Store: store, Advance: move, Step: move, Exact: true}
}

func TestConformance(t *testing.T) {
	redistest.Ran(t, "memstore")
	storetest.Run(t, func(*testing.T) *storetest.Harness { return newHarness() })
}

func TestModel(t *testing.T) {
	storemodel.Run(t, newHarness())
}

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, func(*testing.B) *storetest.Harness { return newHarness() })
}
