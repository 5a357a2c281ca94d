package joblocktest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// Kit is a Locker on a store in memory, for one test. Make a Kit with New. A Kit is safe for concurrent use.
type Kit struct {
	// Locks is the Locker for the code under test. The end of the test closes Locks.
	Locks *joblock.Locker

	// Store is the store of Locks. A test may make further Lockers on Store, such as that of a toolkit.Process. Fail
	// makes their calls fail too. Closing Store does nothing.
	Store driver.Store

	t       testing.TB
	faults  *faultstore.Store
	others  *joblock.Locker // the Locker of another holder, whose calls do not fail
	ahead   atomic.Int64    // how far the store's clock is ahead, in nanoseconds
	watched chan struct{}   // closed when a Locker has subscribed to forced releases
	failed  atomic.Bool     // Fail was called
}

// closeAfterFail is how long the end of a test waits for clean-ups after a call of Fail.
const closeAfterFail = 20 * time.Millisecond

// New makes a Kit, and closes it when the test ends. cfg configures Kit.Locks and may be nil. The defaults are those of
// joblock.Config, with two differences: WatchForced is true, and the log goes to the log of the test. New fails the
// test if a field of cfg is out of bounds.
func New(t testing.TB, cfg *joblock.Config) *Kit {
	t.Helper()
	var full joblock.Config
	if cfg != nil {
		full = *cfg
	}
	full.WatchForced = true // Lose must not take until the next renewal
	if full.Logger == nil {
		full.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	k := &Kit{t: t, watched: make(chan struct{})}
	start := time.Now()
	mem := memstore.New(&memstore.Config{
		Silent: true,
		Now:    func() time.Time { return start.Add(time.Since(start) + time.Duration(k.ahead.Load())) },
	})
	k.faults = faultstore.New(mem)
	k.Store = &watchedStore{Store: k.faults, watched: sync.OnceFunc(func() { close(k.watched) })}
	k.Locks = k.locker(k.Store, full)
	full.Holder = "another holder"
	k.others = k.locker(mem, full)
	return k
}

// locker makes a Locker that the end of the test closes.
func (k *Kit) locker(store driver.Store, cfg joblock.Config) *joblock.Locker {
	k.t.Helper()
	locks, err := joblock.New(store, &cfg)
	if err != nil {
		k.t.Fatalf("joblocktest: %v", err)
	}
	k.t.Cleanup(func() {
		k.faults.Clear()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if k.failed.Load() {
			// Close would retry calls without an answer for some seconds, and the store is no longer needed.
			time.AfterFunc(closeAfterFail, cancel)
		}
		if err := locks.Close(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, joblock.ErrClosed) {
			k.t.Errorf("joblocktest: close the Locker: %v", err)
		}
	})
	return locks
}

// Context returns a child of the test's context that carries locks on keys, as a handler or a job gets them:
// joblock.FromContext returns the lock on the first key. The context ends with cause joblock.ErrLost when a lock is
// lost. The end of the test releases the locks. Context fails the test if a key is not free or not valid.
func (k *Kit) Context(keys ...string) context.Context {
	k.t.Helper()
	return k.In(k.t.Context(), keys...)
}

// In is like Context, but returns a child of parent instead of the test's context.
func (k *Kit) In(parent context.Context, keys ...string) context.Context {
	k.t.Helper()
	locks, err := k.Locks.AcquireAll(context.WithoutCancel(parent), keys, joblock.MaxWait(0))
	if err != nil {
		k.t.Fatalf("joblocktest: %v", err)
	}
	ctx, stop := locks.Context(parent)
	k.t.Cleanup(func() {
		stop()
		_ = locks.Release(context.Background()) // the test may have lost, released or handed over some of them
	})
	return ctx
}

// Hold takes the lock on key for another holder, and returns the function that releases it. If release is not called,
// the end of the test releases the lock. Hold fails the test if key is not free or not valid.
func (k *Kit) Hold(key string) (release func()) {
	k.t.Helper()
	lock, err := k.others.TryAcquire(context.Background(), key)
	if err != nil {
		k.t.Fatalf("joblocktest: hold: %v", err)
	}
	release = func() { _ = lock.Release(context.Background()) }
	k.t.Cleanup(release)
	return release
}

// Lose takes the lock on key away from the code under test, as an operator does with Locker.ForceRelease: the context
// of the work ends with cause joblock.ErrLost within moments, and joblock.Lock.Err returns ErrLost. The key is then
// free. A Locker that the test has made itself notices the loss at its next renewal, or at once if its Config has
// WatchForced. Lose fails the test if the key is not locked.
func (k *Kit) Lose(key string) {
	k.t.Helper()
	if !k.Status(key).Locked() {
		k.t.Fatalf("joblocktest: lose: the lock on %q has no holder", key)
	}
	// The push must not come before the subscription, which the first lock of Locks has begun.
	select {
	case <-k.watched:
	case <-time.After(time.Second): // the lock is that of another Locker
	}
	if err := k.others.ForceRelease(context.Background(), key, joblock.Reason("lost by joblocktest")); err != nil {
		k.t.Fatalf("joblocktest: lose: %v", err)
	}
}

// Fail makes every call to the store fail until repair is called: the code under test gets joblock.ErrUnavailable, and
// its locks are lost when their leases end. Hold, Lose and Status still work, but until repair is called the work
// notices a Lose only when its lease ends. The end of the test repairs the store.
func (k *Kit) Fail() (repair func()) {
	repair = func() { k.faults.Clear() }
	k.t.Cleanup(repair)
	k.failed.Store(true)
	k.faults.SetAll(faultstore.Fault{})
	return repair
}

// Advance moves the store's clock forward by d, or back if d is negative.
func (k *Kit) Advance(d time.Duration) { k.ahead.Add(int64(d)) }

// Status returns what the store knows of key. Status fails the test if key is not valid.
func (k *Kit) Status(key string) joblock.Status {
	k.t.Helper()
	found, err := k.others.Status(context.Background(), key)
	if err != nil {
		k.t.Fatalf("joblocktest: status: %v", err)
	}
	return found[0]
}

// Go calls f in a goroutine, with a context that ends when the test ends: k.Go(s.Run) runs a scheduler. The end of the
// test waits for f, and fails the test if f returns an error.
func (k *Kit) Go(f func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	k.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			k.t.Errorf("joblocktest: a function started with Go: %v", err)
		}
	})
}

// watchedStore is the Store of a Kit. Close leaves the store open for other Lockers.
type watchedStore struct {
	*faultstore.Store
	watched func() // called when a Locker has subscribed to forced releases
}

// Subscribe implements driver.Store.
func (s *watchedStore) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	stop, err := s.Store.Subscribe(ctx, inbox, deliver)
	if err == nil && inbox == driver.ForcedInbox {
		s.watched()
	}
	return stop, err
}

// Close implements driver.Store.
func (s *watchedStore) Close() error { return nil }
