package storetest_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/storetest"
)

// On a busy machine a call of a store may take longer than a Unit. No test of the suite may fail for that. After the first
// hundred calls of a test the machine is fast again: some tests ask until they have a key, in vain thousands of times.
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
			Notice: memstore.NoticeSilent,
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
		return &storetest.Harness{Store: slow{store, pass}, Advance: move, Step: move}
	})
}

// slow is a Store that calls pass before each call.
type slow struct {
	driver.Store
	pass func()
}

func (s slow) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.pass()
	return s.Store.Acquire(ctx, req)
}

func (s slow) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	s.pass()
	return s.Store.Take(ctx, reqs)
}

func (s slow) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	s.pass()
	return s.Store.Resume(ctx, reqs)
}

func (s slow) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	s.pass()
	return s.Store.Park(ctx, reqs)
}

func (s slow) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	s.pass()
	return s.Store.Renew(ctx, reqs)
}

func (s slow) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	s.pass()
	return s.Store.Release(ctx, reqs)
}

func (s slow) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	s.pass()
	return s.Store.Reserve(ctx, reqs)
}

func (s slow) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	s.pass()
	return s.Store.Due(ctx, req)
}

func (s slow) Settle(ctx context.Context, entries []driver.Settlement) error {
	s.pass()
	return s.Store.Settle(ctx, entries)
}

func (s slow) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	s.pass()
	return s.Store.Inspect(ctx, req)
}

func (s slow) Entries(ctx context.Context, req driver.EntriesRequest) (driver.EntriesPage, error) {
	s.pass()
	return s.Store.Entries(ctx, req)
}

func (s slow) Line(ctx context.Context, req driver.LineRequest) (driver.LinePage, error) {
	s.pass()
	return s.Store.Line(ctx, req)
}

func (s slow) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	s.pass()
	return s.Store.List(ctx, req)
}
