package joblock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// frozen is a store that can stand still, as a server does that is stopped: calls have
// no answer, their callers go away, and when it goes on it does what was sent to it
// meanwhile. What was sent last comes first: connections have no order among them.
type frozen struct {
	driver.Store
	mu     sync.Mutex
	still  bool
	buffer []func()
}

func (f *frozen) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.still = true
}

func (f *frozen) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.still = false
	for i := len(f.buffer) - 1; i >= 0; i-- {
		f.buffer[i]()
	}
	f.buffer = nil
}

// during makes a call, or has it wait for the thaw.
func during[T any](ctx context.Context, f *frozen, call func(ctx context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	if !f.still {
		defer f.mu.Unlock()
		return call(ctx)
	}
	f.buffer = append(f.buffer, func() { _, _ = call(context.WithoutCancel(ctx)) })
	f.mu.Unlock()
	<-ctx.Done()
	var none T
	return none, ctx.Err()
}

func (f *frozen) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return during(ctx, f, func(ctx context.Context) (driver.Reply, error) { return f.Store.Acquire(ctx, req) })
}

func (f *frozen) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return during(ctx, f, func(ctx context.Context) ([]driver.Reply, error) { return f.Store.Renew(ctx, reqs) })
}

func (f *frozen) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return during(ctx, f, func(ctx context.Context) ([]driver.Reply, error) { return f.Store.Release(ctx, reqs) })
}

// While the store stands still, acquires are given up and made again. The commands of
// those that were given up are applied when the store goes on, long after their time, and
// would keep the key for a lease without a holder.
func TestStoreThatStoodStillKeepsNoKeyWithoutAHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		store := &frozen{Store: k.mem}
		ctx, cancel := context.WithCancel(t.Context())
		var running atomic.Int64
		var nodes sync.WaitGroup
		for range 3 {
			locks := k.open(store, &joblock.Config{TTL: 10 * time.Second, Logger: discard})
			nodes.Go(func() {
				_ = locks.Singleton(ctx, "key", func(ctx context.Context) error {
					running.Add(1)
					defer running.Add(-1)
					<-ctx.Done()
					return ctx.Err()
				})
			})
		}
		defer nodes.Wait()
		defer cancel()
		for range 3 {
			time.Sleep(time.Minute)
			if n := running.Load(); n != 1 {
				t.Fatalf("%d run before the outage", n)
			}
			store.freeze()
			time.Sleep(30 * time.Second)
			if n := running.Load(); n != 0 {
				t.Fatalf("%d run when the lease is over", n)
			}
			start := time.Now()
			store.thaw()
			for running.Load() == 0 && time.Since(start) < time.Minute {
				time.Sleep(time.Millisecond)
			}
			if d := time.Since(start); d > 6*time.Second { // a few pauses of at most a second
				t.Errorf("the next one began %s after the store was back", d)
			}
		}
	})
}
