package joblock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

var wantErr, wantNotErr, wantNil = testkit.WantErr, testkit.WantNotErr, testkit.WantNil

// kit is what tests of other packages use too, with short names.
type kit struct {
	*lockkit.Kit
	mem   driver.Store
	store *faultstore.Store
	locks *joblock.Locker
	logs  *testkit.Log
}

func newKit(t *testing.T, cfg *joblock.Config) *kit {
	t.Helper()
	k := lockkit.New(t, cfg)
	return &kit{k, k.Mem, k.Store, k.Locks, k.Logs}
}

func (k *kit) open(store driver.Store, cfg *joblock.Config) *joblock.Locker {
	k.Helper()
	return k.Open(store, cfg)
}

func (k *kit) peer() *joblock.Locker { k.Helper(); return k.Peer() }

func (k *kit) acquire(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	k.Helper()
	return k.Acquire(key, opts...)
}

func (k *kit) record(key string) driver.Record { k.Helper(); return k.Record(key) }

func (k *kit) wantState(key string, want joblock.State) { k.Helper(); k.WantState(key, want) }

func (k *kit) wantWaiters(key string, n int) { k.Helper(); k.WantWaiters(key, n) }

func (k *kit) park(lock *joblock.Lock, opts ...joblock.ParkOption) joblock.Token {
	k.Helper()
	token, err := lock.Park(context.Background(), opts...)
	if err != nil {
		k.Fatalf("Park: %v", err)
	}
	return token
}

// wantFreeWithin waits for key to become free, at most d.
func (k *kit) wantFreeWithin(key string, d time.Duration) {
	k.Helper()
	start := time.Now()
	for k.record(key).State != joblock.StateFree {
		if time.Since(start) > d {
			k.Fatalf("%q is still %s after %s", key, k.record(key).State, d)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// wallStep returns t with its wall clock moved by d, whole seconds, and its
// monotonic reading as it was: what time.Now returns on a machine whose wall clock
// was set, or whose monotonic clock stood still. There is no call that makes such
// a time; the layout relied on is that of a time.Time with a monotonic reading: the
// seconds in its first word, from bit 30 on.
func wallStep(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(int64(d/time.Second)) << 30
	return t
}

// steppable is a clock with a monotonic reading, which time.Now has not inside a
// bubble, and a wall clock that can be set. Make it outside the bubble.
type steppable struct {
	base  time.Time
	start time.Time
	step  atomic.Int64
}

func newSteppable() *steppable { return &steppable{base: time.Now()} }

// enter starts the clock in the bubble that it is called from.
func (s *steppable) enter() { s.start = time.Now() }

func (s *steppable) now() time.Time {
	return wallStep(s.base.Add(time.Since(s.start)), time.Duration(s.step.Load()))
}

func TestWallStepMovesOnlyTheWallClock(t *testing.T) {
	before := time.Now()
	after := wallStep(before, time.Hour)
	if d := after.Round(0).Sub(before.Round(0)); d != time.Hour {
		t.Errorf("the wall clock moved by %s, want 1h", d)
	}
	if d := after.Sub(before); d != 0 {
		t.Errorf("the monotonic clock moved by %s", d)
	}
}

// releaseOf releases the lock of an owner on key.
func releaseOf(ctx context.Context, locks *joblock.Locker, key, owner string) error {
	token, err := joblock.NewToken(key, owner, time.Second)
	if err != nil {
		return err
	}
	return locks.Release(ctx, token)
}
