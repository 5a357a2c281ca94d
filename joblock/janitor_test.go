package joblock_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
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
				if got := k.record("key").Ended; got != driver.EndedReleased {
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
				_, err := lock.Park(t.Context(), joblock.Reserve(hold))
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
		for _, lock := range locks {
			wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		}
		k.store.Clear()
		k.wantFreeWithin("key-0", 10*time.Second)
		k.wantFreeWithin("key-249", 10*time.Second)
		if n := k.store.Largest(faultstore.Release); n > 100 || n < 2 {
			t.Errorf("the largest call had %d items", n)
		}
	})
}

// What a clean-up costs must not grow with how many there are: very many come together
// just when the store is back. Counted are the items that are sent and the memory that
// is used, of which the same is true as of the time.
func TestCleanUpIsLinear(t *testing.T) {
	cost := func(n int) (sent, bytes float64) {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, nil)
			k.store.Set(faultstore.Fault{Mode: faultstore.Stray, Delay: 2 * time.Second}, faultstore.Acquire)
			k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprint("key-", i)
				_, err := k.locks.TryAcquire(t.Context(), keys[i])
				wantErr(t, err, joblock.ErrUnavailable)
			}
			time.Sleep(4 * time.Second) // the outage
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			items := k.store.Items(faultstore.Release)
			k.store.Clear()
			time.Sleep(10 * time.Second)
			runtime.ReadMemStats(&after)
			sent = float64(k.store.Items(faultstore.Release)-items) / float64(n)
			bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
			recs, err := k.mem.Inspect(t.Context(), driver.InspectRequest{Keys: keys})
			wantNil(t, "Inspect", err)
			for i, r := range recs {
				if r.State != joblock.StateFree {
					t.Fatalf("%s is %s", keys[i], r.State)
				}
			}
		})
		return sent, bytes
	}
	_, few := cost(500)
	sent, many := cost(8000)
	t.Logf("of 500 each takes %.0f bytes, of 8000 each %.0f and %.1f requests", few, many, sent)
	if many > 2*few {
		t.Errorf("a clean-up takes %.0f bytes when there are 500, and %.0f when there are 8000", few, many)
	}
	if sent > 4 {
		t.Errorf("each is sent %.1f times once the store answers, want at most 4", sent)
	}
}

// What is to be cleaned up does not become more and more while the store hangs: what has
// been waiting for longer than its lease is given up.
func TestCleanUpDoesNotPileUpWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, kept = 40_000, 10_000
		var given atomic.Int64
		k := newKit(t, &joblock.Config{Observer: func(e event.Event) {
			if e.Kind == event.CleanupFailed {
				given.Add(1)
			}
		}})
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Release)
		for i := range calls {
			_, err := k.locks.TryAcquire(t.Context(), fmt.Sprint("key-", i), joblock.TTL(time.Second))
			wantErr(t, err, joblock.ErrUnavailable)
			time.Sleep(time.Millisecond)
		}
		// At most those of the last second are still to be sent, and twice as many as that
		// before the list is looked through; some are under way or were.
		if left := calls - given.Load(); left > 2*kept+5000 {
			t.Errorf("of %d clean-ups %d are kept", calls, left)
		}
		k.store.Clear()
	})
}

// A waiter's place is kept for longer than a lease, and so is what gives it up.
func TestPlaceIsGivenUpAfterAnOutageOfMoreThanALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 20 * time.Second // a place is kept for half of it
		k := newKit(t, &joblock.Config{TTL: ttl})
		_, err := k.peer().TryAcquire(t.Context(), "key", joblock.TTL(time.Hour))
		wantNil(t, "TryAcquire", err)
		w := k.wait(k.locks, "key", joblock.MaxWait(time.Second))
		time.Sleep(500 * time.Millisecond)
		if n := k.record("key").Waiters; n != 1 {
			t.Fatalf("%d wait", n)
		}
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
		wantErr(t, w.failed(time.Minute), joblock.ErrTimeout)
		time.Sleep(ttl + 5*time.Second)
		k.store.Clear()
		time.Sleep(2 * time.Second)
		if n := k.record("key").Waiters; n != 0 {
			t.Errorf("%d places are left of a waiter that gave up", n)
		}
	})
}

// With a store that does not answer Close ends by itself.
func TestCloseIsBoundedByTheStoresSilence(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refuses": faultstore.Refuse, "hangs": faultstore.Hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, &joblock.Config{TTL: time.Hour, MaxTTL: time.Hour})
				lock := k.acquire("key")
				k.acquire("held")
				k.store.Set(faultstore.Fault{Mode: mode}, faultstore.Release, faultstore.Acquire, faultstore.Renew, faultstore.Listen)
				wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
				w := k.wait(k.locks, "held")
				start := time.Now()
				wantErr(t, k.locks.Close(context.Background()), joblock.ErrUnavailable)
				if d := time.Since(start); d > 2*joblock.DefaultCallTimeout+joblock.DefaultCallTimeout/4 {
					t.Errorf("Close took %s", d)
				}
				wantErr(t, w.failed(0))
			})
		})
	}
}

// The last question about a lock that may still be on its way comes a CallTimeout after
// the first. Until then it is not asked, so the store does not count as silent.
func TestCloseGivesTheLastQuestionItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Acquire)
		_, err := k.locks.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrUnavailable)
		time.AfterFunc(time.Second, func() {
			k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: time.Second}, faultstore.Release)
		})
		wantNil(t, "Close", k.locks.Close(t.Context()))
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

// The pauses of the clean-up grow during an outage. Close does not wait for the end of one, and does not take it for the
// silence of the store.
func TestCloseAsksAStoreThatIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: time.Hour, MaxTTL: time.Hour, CallTimeout: 100 * time.Millisecond})
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
		wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		time.Sleep(time.Minute)
		for calls := k.store.Calls(faultstore.Release); k.store.Calls(faultstore.Release) == calls; {
			time.Sleep(time.Millisecond) // until a pause of half a second at least begins
		}
		k.store.Clear()
		start := time.Now()
		wantNil(t, "Close", k.locks.Close(t.Context()))
		if d := time.Since(start); d > 0 {
			t.Errorf("Close took %s", d)
		}
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
