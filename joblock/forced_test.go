package joblock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// force frees key, as an operator at another node does, and returns when all
// that follows at once has happened.
func (k *kit) force(key string) {
	k.Helper()
	if err := k.peer().ForceRelease(context.Background(), key, joblock.Reason("stuck")); err != nil {
		k.Fatal(err)
	}
	synctest.Wait()
}

func TestWatchForcedNotifiesTheHolderAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{WatchForced: true})
		lock, other := k.acquire("k"), k.acquire("other")
		plain := k.acquire("plain", joblock.NoRenew()) // which no renewal would tell
		ctx, stop := lock.Context(t.Context())
		defer stop()
		synctest.Wait()
		start := time.Now()
		k.force("k")
		k.force("plain")
		var e *joblock.Error
		if cause := context.Cause(ctx); !errors.As(cause, &e) || e.Code != joblock.CodeOf(joblock.ErrLost) ||
			e.Ended != driver.EndedForced || e.Reason != "stuck" {
			t.Errorf("cause %v, want lost, forced, stuck", cause)
		}
		if !errors.Is(plain.Err(), joblock.ErrLost) {
			t.Errorf("the lock that is not renewed: %v, want ErrLost", plain.Err())
		}
		if time.Since(start) != 0 {
			t.Errorf("notified after %v", time.Since(start))
		}
		if err := other.Err(); err != nil {
			t.Errorf("another lock: %v", err)
		}
		again := k.acquire("k") // the push was for the term before
		synctest.Wait()
		if err := again.Err(); err != nil {
			t.Errorf("the next lock of the key: %v", err)
		}
		if n := k.store.Calls(faultstore.Watch); n != 1 {
			t.Errorf("%d subscriptions, want one for all locks", n)
		}
	})
}

func TestForcedPushOfAnEarlierTermIsNotForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: time.Second}, faultstore.Forced)
		locks := k.open(k.store, &joblock.Config{WatchForced: true})
		if _, err := locks.TryAcquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		k.force("k")
		again, err := locks.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := again.Err(); err != nil {
			t.Errorf("lost by the push of the term before: %v", err)
		}
	})
}

func TestWithoutWatchForcedTheNextRenewalNotifies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("k")
		k.force("k")
		if err := lock.Err(); err != nil {
			t.Errorf("reported at once: %v", err)
		}
		time.Sleep(joblock.DefaultTTL/3 + time.Second)
		if err := lock.Err(); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("after a renewal: %v, want ErrLost", err)
		}
		if n := k.store.Calls(faultstore.Watch); n != 0 {
			t.Errorf("%d subscriptions, want none: no caller waits", n)
		}
	})
}

func TestWatchForcedSubscribesAsSoonAsItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{WatchForced: true})
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 3}, faultstore.Watch)
		lock := k.acquire("k")
		time.Sleep(3 * time.Second)
		k.force("k")
		if err := lock.Err(); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
	})
}

func TestCloseEndsTheAttemptsToSubscribe(t *testing.T) {
	for _, mode := range []faultstore.Mode{faultstore.Refuse, faultstore.Hang} {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, nil)
			k.store.Set(faultstore.Fault{Mode: mode}, faultstore.Watch)
			locks := k.open(k.store, &joblock.Config{WatchForced: true})
			if _, err := locks.TryAcquire(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			start := time.Now()
			if err := locks.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if time.Since(start) != 0 {
				t.Errorf("mode %v: Close took %v", mode, time.Since(start))
			}
		})
	}
}

// A forged push, or one about something that has been put right since, only makes the
// holder look at its lock; of many pushes it acts on few.
func TestForgedForcedPushesCostNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		forged := &forgedWatch{Store: k.store}
		locks := k.open(forged, &joblock.Config{WatchForced: true})
		lock, err := locks.TryAcquire(t.Context(), "k", joblock.NoRenew())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := k.store.Calls("")
		for range 1000 {
			forged.deliver(driver.Push{Key: "k", Fence: lock.Fence()})
			time.Sleep(10 * time.Millisecond)
		}
		if err := lock.Err(); err != nil {
			t.Errorf("lost by what was forged: %v", err)
		}
		if n := k.store.Calls("") - before; n < 2 || n > 60 {
			t.Errorf("%d calls because of 1,000 forged pushes in 10 s, want about 5 a second", n)
		}
		for _, other := range []driver.Push{{Key: "k", Fence: lock.Fence() + 1}, {Key: "k", Fence: 1 << 62}, {Key: "other", Fence: lock.Fence()}} {
			time.Sleep(time.Second) // the last look is over
			before := k.store.Calls("")
			forged.deliver(other)
			time.Sleep(time.Second)
			if n := k.store.Calls("") - before; n != 0 {
				t.Errorf("%d calls because of %+v", n, other)
			}
		}
		// The true one, while the store was away for the first look at it.
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Inspect)
		k.force("k")
		forged.deliver(driver.Push{Key: "k", Fence: lock.Fence()})
		time.Sleep(time.Second)
		if err := lock.Err(); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
	})
}

// A look that a push gives rise to does not take an unanswered Park for a loss.
func TestForcedPushDuringAParkWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		forged := &forgedWatch{Store: k.store}
		locks := k.open(forged, &joblock.Config{WatchForced: true})
		lock, err := locks.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Park)
		if _, err := lock.Park(t.Context()); !errors.Is(err, joblock.ErrUnavailable) {
			t.Fatalf("park: %v, want ErrUnavailable", err)
		}
		k.wantState("k", joblock.StateParked)
		forged.deliver(driver.Push{Key: "k", Fence: lock.Fence()})
		time.Sleep(joblock.DefaultTTL / 2) // the renewal takes the Park back
		if err := lock.Err(); err != nil {
			t.Errorf("lost: %v", err)
		}
		k.wantState("k", joblock.StateHeld)
	})
}

// forgedWatch is a Store whose forced pushes a stranger can forge.
type forgedWatch struct {
	driver.Store
	deliver func(driver.Push)
}

func (s *forgedWatch) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	s.deliver = deliver
	return s.Store.Subscribe(ctx, inbox, deliver)
}
