package fallback_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/fallback"
)

const key = "import:42"

var background = context.Background()

// kit is a Locker on a store that can go away, and a fallback.Locker on it.
type kit struct {
	*lockkit.Kit
	guarded *fallback.Locker

	mu     sync.Mutex
	events []event.Event
}

// bubble runs a test in virtual time, with a kit.
func bubble(t *testing.T, cfg fallback.Config, test func(k *kit)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := new(kit)
		k.Kit = lockkit.New(t, &joblock.Config{Observer: func(e event.Event) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.events = append(k.events, e)
		}})
		guarded, err := fallback.New(k.Locks, &cfg)
		testkit.WantNil(t, "New", err)
		k.guarded = guarded
		t.Cleanup(func() { testkit.WantNil(t, "Close", guarded.Close(background)) })
		test(k)
	})
}

// away makes the store refuse every call; back ends the outage.
func (k *kit) away() {
	k.Store.Set(faultstore.Fault{}, faultstore.Acquire, faultstore.Renew, faultstore.Release, faultstore.Park, faultstore.Resume,
		faultstore.Inspect, faultstore.Listen, faultstore.Push)
}

func (k *kit) back() { k.Store.Clear() }

// emitted returns the events of one kind.
func (k *kit) emitted(kind event.Kind) []event.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(k.events), func(e event.Event) bool { return e.Kind != kind })
}

// run is a call of Do whose function runs until the test lets the function return.
type run struct {
	begun chan bool // has whether the lock is local
	end   chan struct{}
	err   chan error
}

// start calls Do in a goroutine.
func (k *kit) start(opts ...joblock.AcquireOption) *run {
	r := &run{begun: make(chan bool, 1), end: make(chan struct{}), err: make(chan error, 1)}
	go func() {
		r.err <- k.guarded.Do(background, key, func(ctx context.Context) error {
			lock, _ := joblock.FromContext(ctx)
			r.begun <- fallback.Local(lock)
			<-r.end
			return nil
		}, opts...)
	}()
	return r
}

func (k *kit) wantRunning(r *run, local bool) {
	k.Helper()
	select {
	case got := <-r.begun:
		if got != local {
			k.Errorf("the function runs under a lock that is local: %t, want %t", got, local)
		}
	case err := <-r.err:
		k.Fatalf("Do returned %v", err)
	}
}

func (k *kit) wantWaiting(r *run) {
	k.Helper()
	synctest.Wait()
	select {
	case <-r.begun:
		k.Error("two functions run at a time")
	case err := <-r.err:
		k.Errorf("Do returned %v, and should wait", err)
	default:
	}
}

func (k *kit) finish(r *run) {
	k.Helper()
	close(r.end)
	testkit.WantNil(k, "Do", <-r.err)
}
