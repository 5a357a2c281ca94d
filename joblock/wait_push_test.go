package joblock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestLostPushCostsAtMostOnePoll(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			testkit.Seed(t, seed)
			k := newKit(t, nil)
			k.store.Set(faultstore.Fault{}, faultstore.Push)
			holder := k.acquire("key")
			w := k.wait(k.locks, "key", joblock.NoRenew())
			time.Sleep(10 * time.Second)
			wantNil(t, "Release", holder.Release(t.Context()))
			granted := time.Now()
			synctest.Wait()
			if w.over() {
				t.Fatal("the push was not lost")
			}
			lock := w.granted(joblock.DefaultPoll * 5 / 4)
			k.wantTrusted(lock, onTime)
			// It was found, but the lease counts from when it was made.
			if d := lock.ExpiresAt().Sub(granted); d > joblock.DefaultTTL-time.Second+time.Millisecond {
				t.Errorf("trusted until %s after the grant", d)
			}
			if lock.Prior() != driver.EndedReleased {
				t.Errorf("prior is %q, want released", lock.Prior())
			}
		})
	}
}

// The lease of a pushed grant counts from the grant, however late it comes.
func TestLatePushIsTrustedFromItsGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 20 * time.Second
		k := newKit(t, nil)
		locks := k.open(k.store, &joblock.Config{Poll: time.Minute})
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: late}, faultstore.Push)
		holder := k.acquire("key")
		const ttl = 10 * time.Minute // polls are as far between as Config.Poll says
		w := k.wait(locks, "key", joblock.NoRenew(), joblock.TTL(ttl))
		time.Sleep(7 * time.Second)
		wantNil(t, "Release", holder.Release(t.Context()))
		granted := time.Now()
		lock := w.granted(late)
		if d := time.Since(granted); d != late {
			t.Fatalf("came %s after the grant, want %s", d, late)
		}
		if d := lock.ExpiresAt().Sub(granted); d > ttl-time.Second || d < ttl-time.Second-onTime {
			t.Errorf("trusted until %s after the grant, want %s", d, ttl-time.Second)
		}
		k.wantTrusted(lock, onTime)
		<-lock.Done()
		if !time.Now().Before(granted.Add(ttl)) {
			t.Error("the loss was signalled after the lease")
		}
	})
}

// A grant that can no longer be trusted is given back, for the next waiter, and its own
// waiter waits on.
func TestPushThatIsTooLateIsGivenBack(t *testing.T) {
	for name, late := range map[string]time.Duration{
		"just before the lease's end": joblock.DefaultTTL - 500*time.Millisecond,
		"after the lease's end":       joblock.DefaultTTL + 5*time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				locks := k.open(k.store, &joblock.Config{CallTimeout: 2 * time.Minute})
				holder := k.acquire("key")
				w := k.wait(locks, "key")
				next := k.wait(k.peer(), "key")
				k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: late}, faultstore.Push)
				wantNil(t, "Release", holder.Release(t.Context()))
				k.store.Clear(faultstore.Push)
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire) // it cannot ask either
				time.Sleep(late - time.Millisecond)
				if w.over() {
					t.Fatal("the push was not late")
				}
				k.store.Clear()
				lock := next.granted(time.Second)
				k.wantTrusted(lock, sinceAsked)
				if w.over() {
					t.Fatalf("the first waiter got lock %v, error %v", w.lock, w.err)
				}
				wantNil(t, "Release", lock.Release(t.Context()))
				k.wantTrusted(w.granted(onTime), onTime)
			})
		})
	}
}

// Between a grant and its late push, the store has answered the waiter that it waits: that
// grant has ended, although its lease would not have.
func TestPushThatALaterAnswerContradictsIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks := k.open(k.store, nil)
		holder := k.acquire("key")
		w := k.wait(locks, "key")
		next := k.wait(k.peer(), "key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: 20 * time.Second}, faultstore.Push)
		wantNil(t, "Release", holder.Release(t.Context())) // w's, as far as the store knows
		time.Sleep(10 * time.Millisecond)
		k.store.Clear(faultstore.Push)
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key", joblock.Reason("stuck")))
		lock := next.granted(onTime)
		last := k.wait(k.peer(), "key")
		time.Sleep(6 * time.Second)
		k.wantWaiters("key", 2) // w has asked again
		time.Sleep(20 * time.Second)
		if w.over() {
			t.Fatalf("two have the lock: %v, %v; error %v", lock, w.lock, w.err)
		}
		wantNil(t, "Err", lock.Err())
		wantNil(t, "Release", lock.Release(t.Context()))
		// It has kept its new place. last came while the first grant stood.
		wantNil(t, "Release", last.granted(onTime).Release(t.Context()))
		w.granted(onTime)
	})
}

// The store's clock is set between the answer that a waiter counts from and the grant. What a waiter counts by its own
// clock is not affected, and of the store's clock it believes only what is left of a lease.
func TestClockStepBeforeAPush(t *testing.T) {
	for name, step := range map[string]time.Duration{
		"forward": 10 * time.Second, "far forward": time.Hour, "backward": -10 * time.Second, "far backward": -time.Hour,
	} {
		for how, opts := range map[string][]joblock.AcquireOption{"asked for": {joblock.NoRenew()}, "pushed": nil} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKit(t, nil)
					holder := k.acquire("key", joblock.TTL(2*time.Hour))
					w := k.wait(k.locks, "key", opts...)
					time.Sleep(time.Second)
					synctest.Wait()
					k.StoreSkew = step
					wantNil(t, "Release", holder.Release(t.Context()))
					lock := w.granted(joblock.DefaultPoll * 5 / 4)
					k.wantTrusted(lock, sinceAsked)
					wantNil(t, "Err", lock.Err())
				})
			})
		}
	}
}

// Grants without a waiter are dropped: it has left, or never existed.
func TestPushWithoutAWaiterIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks := k.open(k.store, nil)
		holder := k.acquire("key")
		w := k.wait(locks, "key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: 10 * time.Second}, faultstore.Push)
		wantNil(t, "Release", holder.Release(t.Context()))
		lock := w.granted(joblock.DefaultPoll * 5 / 4) // by asking
		wantNil(t, "Release", lock.Release(t.Context()))
		again := k.wait(locks, "key")
		mine := again.granted(0)
		time.Sleep(time.Minute) // the push has come meanwhile
		wantNil(t, "Err", mine.Err())
		wantErr(t, lock.Err(), joblock.ErrAlreadyReleased)
		if got := k.record("key").Fence; got != mine.Fence() {
			t.Errorf("the record has fence %d, want %d", got, mine.Fence())
		}
	})
}

// A grant that was pushed before any answer was received is found by asking.
func TestPushThatOvertakesTheFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		warm := k.acquire("warm")
		other := k.wait(k.locks, "warm") // the subscription is there: the first call joins
		wantNil(t, "Release", warm.Release(t.Context()))
		other.granted(0)

		holder, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: time.Second}, faultstore.Acquire)
		w := k.wait(k.locks, "key", joblock.NoRenew())
		time.Sleep(100 * time.Millisecond)
		wantNil(t, "Release", holder.Release(context.Background()))
		granted := time.Now()
		lock := w.granted(time.Second)
		k.wantTrusted(lock, time.Second)
		if d := lock.ExpiresAt().Sub(granted); d > joblock.DefaultTTL-time.Second {
			t.Errorf("trusted until %s after the grant", d)
		}

		// The same with an answer that never comes.
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
		wantNil(t, "Release", lock.Release(t.Context()))
		holder, err = k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		w = k.wait(k.locks, "key", joblock.NoRenew())
		wantNil(t, "Release", holder.Release(context.Background()))
		k.wantTrusted(w.granted(time.Second), time.Second)
	})
}

// A push comes late, and there has been no answer at all to count from: the store
// has been away since it gave the waiter its place.
func TestLatePushWithoutAnAnswerToCountFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks := k.open(k.store, &joblock.Config{CallTimeout: 20 * time.Second, Poll: time.Minute})
		warm := k.acquire("warm")
		w := k.wait(locks, "warm") // the subscription is there
		wantNil(t, "Release", warm.Release(t.Context()))
		w.granted(0)

		holder, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
		w = k.wait(locks, "key", joblock.NoRenew())
		k.store.Set(faultstore.Fault{}, faultstore.Acquire)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: 10 * time.Second}, faultstore.Push)
		wantNil(t, "Release", holder.Release(t.Context()))
		granted := k.record("key").Fence
		time.AfterFunc(12*time.Second, func() { k.store.Clear() })
		lock := w.granted(14 * time.Second)
		k.wantTrusted(lock, onTime)
		if lock.Fence() != granted {
			t.Errorf("fence %d, want %d: the grant was given back", lock.Fence(), granted)
		}
	})
}

// A program that can read the record and may publish knows the nonce that a push names, and
// can forge pushes: they grant no lock, and cost a call once a second.
func TestForgedPushesGrantNothingAndCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		post := &forger{Store: k.store}
		locks := k.open(post, &joblock.Config{Poll: time.Hour})
		holder, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		w := k.wait(locks, "key")
		const minute = 60
		before := k.store.Calls("")
		for range minute * 100 {
			post.forge()
			time.Sleep(10 * time.Millisecond)
		}
		if w.over() {
			t.Fatalf("two have the lock: %v, %v; error %v", holder, w.lock, w.err)
		}
		// The pauses between are 20 ms at first and soon a second, less up to a half.
		if c := k.store.Calls("") - before; c < 2 || c > 2*minute+20 {
			t.Errorf("%d calls because of %d forged pushes in a minute", c, minute*100)
		}
		wantNil(t, "Err", holder.Err())
		// A true one is acted on all the same, at most a second later.
		wantNil(t, "Release", holder.Release(t.Context()))
		k.wantTrusted(w.granted(time.Second), time.Second)
	})
}

// forger is a Store whose pushes a stranger makes as well.
type forger struct {
	driver.Store
	deliver func(driver.Push)
	nonce   atomic.Value
}

func (s *forger) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.nonce.Store(req.Nonce)
	return s.Store.Acquire(ctx, req)
}

func (s *forger) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	s.deliver = deliver
	return s.Store.Subscribe(ctx, inbox, deliver)
}

func (s *forger) forge() { s.deliver(driver.Push{Nonce: s.nonce.Load().(string)}) }

// A waiter gets what the holder before it left behind, in whatever way it gets its grant.
func TestPriorIsReportedToWaiters(t *testing.T) {
	for name, lost := range map[string]bool{"pushed": false, "found by asking": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				if lost {
					k.store.Set(faultstore.Fault{}, faultstore.Push)
				}
				k.acquire("key")
				w := k.wait(k.locks, "key")
				wantNil(t, "ForceRelease", k.peer().ForceRelease(t.Context(), "key", joblock.Reason("stuck")))
				if got := w.granted(joblock.DefaultPoll * 5 / 4).Prior(); got != driver.EndedForced {
					t.Errorf("prior is %q, want forced", got)
				}
			})
		})
	}
}
