package joblock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

var wantErr, wantNotErr, wantNil = testkit.WantErr, testkit.WantNotErr, testkit.WantNil

// kit is a Locker on a memstore that can be made to fail. Its clocks are those of
// the synctest bubble in which it was made.
type kit struct {
	*testing.T
	mem   *memstore.Store
	store *faultstore.Store
	locks *joblock.Locker
	logs  *testkit.Log

	storeSkew time.Duration // how far the store's clock is ahead; change it while nothing runs
}

func newKit(t *testing.T, cfg *joblock.Config) *kit {
	t.Helper()
	k := &kit{T: t, logs: new(testkit.Log)}
	start := time.Now()
	k.mem = memstore.New(&memstore.Config{
		Notice: memstore.NoticeSilent,
		Now:    func() time.Time { return start.Add(time.Since(start) + k.storeSkew) },
	})
	k.store = faultstore.New(k.mem)
	k.locks = k.open(k.store, cfg)
	return k
}

// open makes a Locker that is closed when the test ends.
func (k *kit) open(store driver.Store, cfg *joblock.Config) *joblock.Locker {
	k.Helper()
	var c joblock.Config
	if cfg != nil {
		c = *cfg
	}
	c.Logger = k.logs.Text()
	locks, err := joblock.New(store, &c)
	if err != nil {
		k.Fatalf("New: %v", err)
	}
	k.Cleanup(func() {
		k.store.Clear()
		if err := locks.Close(context.Background()); err != nil {
			k.Errorf("Close: %v", err)
		}
	})
	return locks
}

// peer is a Locker of another process, on the same store without faults.
func (k *kit) peer() *joblock.Locker {
	k.Helper()
	return k.open(k.mem, &joblock.Config{Holder: "peer"})
}

func (k *kit) acquire(key string, opts ...joblock.TryOption) *joblock.Lock {
	k.Helper()
	lock, err := k.locks.TryAcquire(context.Background(), key, opts...)
	if err != nil {
		k.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return lock
}

func (k *kit) park(lock *joblock.Lock, opts ...joblock.ParkOption) joblock.Token {
	k.Helper()
	token, err := lock.Park(context.Background(), opts...)
	if err != nil {
		k.Fatalf("Park: %v", err)
	}
	return token
}

// record is what the store has at key.
func (k *kit) record(key string) driver.Record {
	k.Helper()
	recs, err := k.mem.Inspect(context.Background(), driver.InspectRequest{Keys: []string{key}, Memo: true})
	if err != nil {
		k.Fatalf("Inspect: %v", err)
	}
	return recs[0]
}

func (k *kit) wantState(key string, want joblock.State) {
	k.Helper()
	if got := k.record(key).State; got != want {
		k.Errorf("the store has %q %s, want %s", key, got, want)
	}
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
