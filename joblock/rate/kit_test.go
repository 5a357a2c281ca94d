package rate_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/memstore"
)

// kit is a Locker on a memstore, in virtual time.
type kit struct {
	*testing.T
	locks *joblock.Locker
	store *faultstore.Store

	mu     sync.Mutex // guards the fields below
	starts []time.Time
	events []event.Event
}

func virtual(t *testing.T, f func(k *kit)) {
	t.Helper()
	testkit.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		k := &kit{T: t, store: faultstore.New(memstore.New(&memstore.Config{Silent: true}))}
		k.locks = testkit.Must(joblock.New(k.store, &joblock.Config{Logger: new(testkit.Log).Text(), Observer: func(e event.Event) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.events = append(k.events, e)
		}}))
		defer func() {
			if err := k.locks.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		f(k)
	})
}

// started notes a start.
func (k *kit) started() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts = append(k.starts, time.Now())
}

// most returns the largest number of starts in any time of length per.
func (k *kit) most(per time.Duration) (most int) {
	slices.SortFunc(k.starts, time.Time.Compare)
	for i := range k.starts {
		n := 0
		for _, at := range k.starts[i:] {
			if at.Sub(k.starts[i]) < per {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
