// Package lockkit is shared by the tests of packages that use joblock: a Locker on a memstore with injected faults, and
// Lockers of other processes on the same store.
package lockkit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// OnTime is the delay in virtual time with which a lock still counts as granted on time. OnTime is not zero because the
// store counts in milliseconds.
const OnTime = 5 * time.Millisecond

// Defaults of a joblock.Config.
const (
	TTL         = 30 * time.Second
	Reserve     = time.Hour
	Poll        = 4 * time.Second
	CallTimeout = 3 * time.Second
)

// Kit is a Locker on a memstore with injected faults. The clocks of a Kit are those of the synctest bubble in which New
// was called.
type Kit struct {
	*testing.T
	Mem   driver.Store
	Store *faultstore.Store
	Locks *joblock.Locker
	Logs  *testkit.Log

	StoreSkew time.Duration // how far the store's clock is ahead; change it while nothing runs
}

// New makes a Kit. cfg may be nil. Package dice is seeded with 1, unless the test has called testkit.Seed before.
func New(t *testing.T, cfg *joblock.Config) *Kit {
	t.Helper()
	if !jitter.Seeded() {
		testkit.Seed(t, 1)
	}
	k := &Kit{T: t, Logs: new(testkit.Log)}
	start := time.Now()
	k.Mem = memstore.New(&memstore.Config{
		Silent: true,
		Now:    func() time.Time { return start.Add(time.Since(start) + k.StoreSkew) },
	})
	k.Store = faultstore.New(k.Mem)
	k.Locks = k.Open(k.Store, cfg)
	return k
}

// Open makes a Locker, and closes that Locker when the test ends. cfg may be nil.
func (k *Kit) Open(store driver.Store, cfg *joblock.Config) *joblock.Locker {
	k.Helper()
	var c joblock.Config
	if cfg != nil {
		c = *cfg
	}
	c.Logger = k.Logs.Text()
	locks, err := joblock.New(store, &c)
	testkit.WantNil(k, "New", err)
	k.Cleanup(func() {
		k.Store.Clear()
		if err := locks.Close(context.Background()); err != nil {
			k.Errorf("Close: %v", err)
		}
	})
	return locks
}

// Peer is a Locker of another process, on the same store without faults.
func (k *Kit) Peer() *joblock.Locker {
	k.Helper()
	return k.Open(k.Mem, &joblock.Config{Holder: "peer"})
}

// Process is the Locker of a process that can die.
type Process struct {
	*joblock.Locker
	Store *faultstore.Store
}

// Process makes a Locker of another process, on the same store.
func (k *Kit) Process() Process {
	k.Helper()
	store := faultstore.New(k.Mem)
	p := Process{k.Open(store, &joblock.Config{CallTimeout: 10 * time.Second}), store}
	k.Cleanup(func() { store.Clear() })
	return p
}

// Die cuts the process off from the store. The store keeps the locks of the process.
func (p Process) Die() {
	p.Store.Set(faultstore.Fault{}, faultstore.Acquire, faultstore.Renew, faultstore.Release, faultstore.Inspect, faultstore.Push)
}

// Acquire takes the lock on key with TryAcquire.
func (k *Kit) Acquire(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	k.Helper()
	lock, err := k.Locks.TryAcquire(context.Background(), key, opts...)
	testkit.WantNil(k, "TryAcquire", err)
	return lock
}

// Record returns the store's record of key.
func (k *Kit) Record(key string) driver.Record {
	k.Helper()
	recs, err := k.Mem.Inspect(context.Background(), driver.InspectRequest{Keys: []string{key}, Memo: true})
	testkit.WantNil(k, "Inspect", err)
	return recs[0]
}

// WantState checks the state of key.
func (k *Kit) WantState(key string, want driver.State) {
	k.Helper()
	if got := k.Record(key).State; got != want {
		k.Errorf("the store has %q %s, want %s", key, got, want)
	}
}

// WantWaiters checks how many places the queue of key has.
func (k *Kit) WantWaiters(key string, n int) {
	k.Helper()
	synctest.Wait()
	if got := k.Record(key).Waiters; got != n {
		k.Errorf("%d waiters at %q, want %d", got, key, n)
	}
}

// WantFreeWithin waits for key to become free, at most d.
func (k *Kit) WantFreeWithin(key string, d time.Duration) {
	k.Helper()
	start := time.Now()
	for k.Record(key).State != joblock.StateFree {
		if time.Since(start) > d {
			k.Fatalf("%q is still %s after %s", key, k.Record(key).State, d)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Acquirer takes locks: a Locker, or a limit of package limit.
type Acquirer interface {
	Acquire(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error)
}

// Waiting is a call of Acquire in a goroutine of its own.
type Waiting struct {
	Cancel context.CancelCauseFunc
	Done   chan struct{} // closed when Lock, Err and Took are set
	Lock   *joblock.Lock
	Err    error
	Took   time.Duration

	t testing.TB
}

// Wait starts an Acquire, and returns when the Acquire has its place in the queue or its result.
func (k *Kit) Wait(locks Acquirer, key string, opts ...joblock.AcquireOption) *Waiting {
	k.Helper()
	ctx, cancel := context.WithCancelCause(k.Context())
	w := &Waiting{t: k.T, Cancel: cancel, Done: make(chan struct{})}
	start := time.Now()
	go func() {
		defer close(w.Done)
		w.Lock, w.Err = locks.Acquire(ctx, key, opts...)
		w.Took = time.Since(start)
	}()
	synctest.Wait()
	return w
}

// Over waits until every goroutine of the bubble blocks, and then reports whether the Acquire has returned.
func (w *Waiting) Over() bool {
	synctest.Wait()
	select {
	case <-w.Done:
		return true
	default:
		return false
	}
}

// Granted waits for the lock, at most d.
func (w *Waiting) Granted(d time.Duration) *joblock.Lock {
	w.t.Helper()
	w.within(d)
	if w.Err != nil {
		w.t.Fatalf("Acquire: %v", w.Err)
	}
	return w.Lock
}

// Failed waits until the Acquire has failed, at most d, and returns its error.
func (w *Waiting) Failed(d time.Duration) error {
	w.t.Helper()
	w.within(d)
	if w.Lock != nil {
		w.t.Fatal("got the lock")
	}
	return w.Err
}

func (w *Waiting) within(d time.Duration) {
	w.t.Helper()
	select {
	case <-w.Done:
	case <-time.After(d):
		if !w.Over() {
			w.t.Fatalf("still waiting after %s", d)
		}
	}
}
