package joblock_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

var discard = slog.New(slog.DiscardHandler)

func TestReleaseWithoutAnAnswerIsRepeated(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{
		"refused": faultstore.Refuse, "reply dropped": faultstore.Drop, "hangs": faultstore.Hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key")
				k.store.Set(faultstore.Fault{Mode: mode, Times: 3}, faultstore.Release)
				wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
				wantErr(t, lock.Err(), joblock.ErrAlreadyReleased) // over all the same
				k.wantFreeWithin("key", 3*joblock.DefaultCallTimeout)
				if got := k.record("key").Ended; got != joblock.EndedReleased {
					t.Errorf("ended %q, want released", got)
				}
			})
		})
	}
}

func TestCleanUpEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
		wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		time.Sleep(joblock.DefaultTTL + 2*time.Second)
		calls := k.store.Calls(faultstore.Release)
		time.Sleep(time.Hour)
		if n := k.store.Calls(faultstore.Release); n != calls {
			t.Errorf("%d releases after the lease", n-calls)
		}
	})
}

// The reservation of a Park that may have been applied outlives the lease by far.
func TestCleanUpAfterAnUnansweredParkOutlastsTheLease(t *testing.T) {
	for name, hold := range map[string]time.Duration{"default hold": 0, "long hold": 5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key", joblock.NoRenew())
				k.store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Park)
				_, err := lock.Park(t.Context(), joblock.ParkOptions{Hold: hold})
				wantErr(t, err, joblock.ErrUnavailable)
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
				wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
				time.Sleep(max(hold, time.Hour) - time.Minute)
				k.wantState("key", joblock.StateParked)
				k.store.Clear()
				k.wantFreeWithin("key", 5*time.Second)
			})
		})
	}
}

func TestCleanUpLeavesALaterOwnerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key", joblock.Owner("same"))
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 2}, faultstore.Release)
		wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		next, err := k.peer().TryAcquire(t.Context(), "key", joblock.Owner("same"))
		wantNil(t, "TryAcquire", err)
		time.Sleep(5 * time.Minute)
		wantNil(t, "Err", next.Err())
		if k.record("key").Fence != next.Fence() {
			t.Error("the record has changed")
		}
	})
}

func TestCleanUpIsBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var locks joblock.Locks
		for i := range 250 {
			locks = append(locks, k.acquire(fmt.Sprint("key-", i)))
		}
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
		wantErr(t, locks.Release(t.Context()), joblock.ErrUnavailable)
		k.store.Clear()
		k.wantFreeWithin("key-0", 10*time.Second)
		k.wantFreeWithin("key-249", 10*time.Second)
		if n := k.store.Largest(faultstore.Release); n > 100 || n < 2 {
			t.Errorf("the largest call had %d items", n)
		}
	})
}

func TestCloseFinishesTheCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 4}, faultstore.Release)
		wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		wantNil(t, "Close", k.locks.Close(t.Context()))
		k.wantState("key", joblock.StateFree)
	})
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Release)
		wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantErr(t, k.locks.Close(ctx), context.DeadlineExceeded)
		if d := time.Since(start); d != time.Second {
			t.Errorf("Close took %s, its context lasted 1s", d)
		}
	})
}
