package joblock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/memstore"
)

func TestObserverGetsALossOnce(t *testing.T) {
	const told = joblock.DefaultTTL - time.Second - 125*time.Millisecond // see TestLossIsSignalledBeforeTheTrustDeadline
	for _, c := range []struct {
		name string
		lose func(k *kit, lock *joblock.Lock)
		held time.Duration
	}{
		{"not renewed", func(_ *kit, lock *joblock.Lock) { <-lock.Done() }, told},
		{"forced", func(k *kit, lock *joblock.Lock) {
			wantNil(k, "ForceRelease", k.peer().ForceRelease(k.Context(), "key", joblock.Reason("stuck")))
			wantErr(k, lock.Renew(k.Context()), joblock.ErrLost)
		}, 0},
		{"forced, found by Release", func(k *kit, lock *joblock.Lock) {
			wantNil(k, "ForceRelease", k.peer().ForceRelease(k.Context(), "key", joblock.Reason("stuck")))
			time.Sleep(time.Second)
			wantErr(k, lock.Release(k.Context()), joblock.ErrAlreadyReleased)
		}, time.Second},
		{"taken, found by Release", func(k *kit, lock *joblock.Lock) {
			k.StoreSkew += time.Minute
			_, err := k.peer().TryAcquire(k.Context(), "key")
			wantNil(k, "TryAcquire", err)
			wantErr(k, lock.Release(k.Context()), joblock.ErrLost)
		}, 0},
		{"lapsed, found by Park", func(k *kit, lock *joblock.Lock) {
			k.StoreSkew += time.Minute
			_, err := lock.Park(k.Context())
			wantErr(k, err, joblock.ErrLost)
		}, 0},
		{"closed", func(k *kit, _ *joblock.Lock) { wantNil(k, "Close", k.locks.Close(k.Context())) }, 0},
		{"watched", func(k *kit, _ *joblock.Lock) {
			time.Sleep(time.Second)
			wantNil(k, "ForceRelease", k.peer().ForceRelease(k.Context(), "key", joblock.Reason("stuck")))
		}, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, rec := observed(t, joblock.Config{WatchForced: c.name == "watched"})
				lock := k.acquire("key", joblock.NoRenew())
				rec.take()
				c.lose(k, lock)
				lost := failed(heldFor(about(event.Lost, lock), c.held), joblock.ErrLost)
				rec.want(t, lost)
				_ = lock.Release(t.Context())
				_ = lock.Renew(t.Context())
				time.Sleep(time.Minute)
				rec.want(t)
			})
		})
	}
}

// The store had parked what this process gave up for lost while it waited.
func TestObserverGetsAParkThatWasAnsweredTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{TTL: 2 * time.Second})
		lock := k.acquire("key")
		rec.take()
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2500 * time.Millisecond}, faultstore.Park)
		k.park(lock)
		got := rec.take()
		if len(got) != 2 || got[0].Kind != event.Lost || got[1].Kind != event.Parked {
			t.Errorf("got %+v, want Lost and then Parked", got)
		}
	})
}

func TestObserverGetsRenewalsThatAreLate(t *testing.T) {
	for _, c := range []struct {
		away time.Duration // of the store, from the beginning of the lease
		late bool
	}{{19 * time.Second, false}, {23 * time.Second, true}} {
		t.Run(c.away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, rec := observed(t, joblock.Config{})
				lock := k.acquire("key")
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew)
				time.Sleep(c.away)
				k.store.Clear()
				time.Sleep(time.Minute)
				var late []event.Event
				for _, e := range rec.take() {
					if e.Kind == event.RenewedLate {
						late = append(late, e)
					}
				}
				if !c.late {
					if len(late) > 0 {
						t.Errorf("got %+v", late)
					}
					return
				}
				if len(late) != 1 {
					t.Fatalf("got %+v, want one", late)
				}
				// It was due at 10 s, and is tried every second.
				if d := late[0].Late; d < c.away-10*time.Second || d > c.away-9*time.Second {
					t.Errorf("late by %s", d)
				}
				late[0].Late = 0
				if want := about(event.RenewedLate, lock); late[0] != want {
					t.Errorf("got %+v, want %+v", late[0], want)
				}
			})
		})
	}
}

// Who renews by hand decides what is late.
func TestRenewalByHandIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		lock := k.acquire("key", joblock.NoRenew())
		rec.take()
		time.Sleep(28 * time.Second)
		wantNil(t, "Renew", lock.Renew(t.Context()))
		rec.want(t)
	})
}

func TestObserverGetsRenewalsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		for i := range 50 {
			k.acquire(fmt.Sprint("key-", i), joblock.TTL(time.Minute))
		}
		rec.take()
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew)
		time.Sleep(24 * time.Second) // due at 20 s, tried again once or twice a second
		k.store.Clear()
		got := rec.take()
		if len(got) < 3 || len(got) > 5 {
			t.Fatalf("reported %d times in four seconds:\n%+v", len(got), got)
		}
		for i, e := range got {
			wantErr(t, e.Err, faultstore.Err)
			n := e.Locks
			e.Err, e.Locks = nil, 0
			if n < 1 || n > 50 || i == 0 && n != 50 || e != (event.Event{Kind: event.RenewalUnanswered}) {
				t.Errorf("event %d is %+v of %d locks", i, e, n)
			}
		}
	})
}

func TestObserverGetsCleanUpThatFailed(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(k *kit)
		seen bool
	}{
		{"time is over", func(*kit) { time.Sleep(joblock.DefaultTTL + 2*time.Second) }, true},
		{"closed", func(k *kit) {
			ctx, cancel := context.WithTimeout(k.Context(), time.Second)
			defer cancel()
			wantErr(k, k.locks.Close(ctx), context.DeadlineExceeded)
		}, true},
		{"answered", func(k *kit) {
			k.store.Clear()
			time.Sleep(time.Hour)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, rec := observed(t, joblock.Config{})
				lock := k.acquire("key")
				rec.take()
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
				wantErr(t, lock.Release(t.Context(), joblock.Reason("done")), joblock.ErrUnavailable)
				because := func(e *event.Event) { e.Reason = "done" }
				rec.want(t, with(failed(about(event.Released, lock), joblock.ErrUnavailable), because))
				c.end(k)
				if !c.seen {
					rec.want(t)
					return
				}
				event := with(failed(about(event.CleanupFailed, lock), joblock.ErrUnavailable), because)
				event.Holder = "" // it need not have been a lock yet
				rec.want(t, event)
			})
		})
	}
}

// A stray acquire that never came is answered with "not there", and that settles it.
func TestCleanUpThatFoundNothingHasNotFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{TTL: 2 * time.Second, CallTimeout: 10 * time.Second})
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Acquire)
		_, err := k.locks.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrUnavailable)
		time.Sleep(time.Minute)
		rec.want(t)
	})
}

// A lock that is granted to a Locker after its Close has begun and ended, and
// no goroutine is left to clean up after it.
func TestObserverGetsAGrantAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: time.Second}, faultstore.Acquire)
		go func() {
			time.Sleep(time.Millisecond)
			wantNil(t, "Close", k.locks.Close(context.Background()))
		}()
		_, err := k.locks.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrClosed)
		var kinds []string
		for _, e := range rec.take() {
			kinds = append(kinds, e.Kind.String())
		}
		if got := strings.Join(kinds, ", "); got != "acquired, lost, cleanup failed" {
			t.Errorf("got: %s", got)
		}
	})
}

func TestNoObserverCostsNothing(t *testing.T) {
	cost := func(o event.Observer) float64 {
		locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{Observer: o})
		wantNil(t, "New", err)
		defer locks.Close(context.Background())
		ctx := context.Background()
		return testing.AllocsPerRun(100, func() {
			lock, err := locks.TryAcquire(ctx, "key")
			wantNil(t, "TryAcquire", err)
			_, err = locks.TryAcquire(ctx, "key")
			wantErr(t, err, joblock.ErrHeld)
			token, err := lock.Park(ctx)
			wantNil(t, "Park", err)
			lock, err = locks.Resume(ctx, token)
			wantNil(t, "Resume", err)
			wantNil(t, "Renew", lock.Renew(ctx))
			wantNil(t, "Release", lock.Release(ctx))
		})
	}
	// Each of the five events has a digest made for it.
	without, with := cost(nil), cost(func(event.Event) {})
	if without > with-5 {
		t.Errorf("%v allocations without an Observer, %v with one", without, with)
	}
}

func TestObserverIsCalledByManyAtOnce(t *testing.T) {
	rec := new(recorder)
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{Observer: rec.observe})
	wantNil(t, "New", err)
	var wg sync.WaitGroup
	const callers, rounds = 8, 50
	for i := range callers {
		wg.Go(func() {
			for range rounds {
				if err := locks.Do(context.Background(), fmt.Sprint("key-", i%2), func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantNil(t, "Close", locks.Close(context.Background()))
	count := make(map[event.Kind]int)
	for _, e := range rec.events {
		count[e.Kind]++
	}
	if n := callers * rounds; count[event.Acquired] != n || count[event.Released] != n || count[event.Lost] != 0 {
		t.Errorf("got %v, want %d locks acquired and released", count, n)
	}
}
