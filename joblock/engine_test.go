package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

func TestLockIsHeldForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		wantNil(t, "Err after a day", lock.Err())
		if r := k.record("key"); r.State != joblock.StateHeld || r.Fence != lock.Fence() {
			t.Errorf("the store has it %s under fence %d", r.State, r.Fence)
		}
		if n := k.store.Calls(faultstore.Renew); n < 24*60*6 || n > 24*60*7 {
			t.Errorf("%d renewals in a day, want one every 10 s", n)
		}
	})
}

func TestRenewalsGoInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		const n = 1000
		var locks joblock.Locks
		for i := range n {
			locks = append(locks, k.acquire(fmt.Sprint("key-", i)))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		wantNil(t, "Err", locks.Err())
		const periods = 60 // of TTL/3
		calls, items := k.store.Calls(faultstore.Renew), k.store.Items(faultstore.Renew)
		if largest := k.store.Largest(faultstore.Renew); largest > 100 {
			t.Errorf("a call with %d renewals, at most 100 are wanted", largest)
		}
		if items < (periods-1)*n || items > (periods+2)*n {
			t.Errorf("%d renewals, want about %d", items, periods*n)
		}
		if calls > (periods+2)*n/100*11/10 {
			t.Errorf("%d calls, want about %d", calls, periods*n/100)
		}
	})
}

func TestRenewalThatRecoversInTimeLosesNothing(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{
		"refused": faultstore.Refuse, "reply dropped": faultstore.Drop, "hangs": faultstore.Hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key")
				k.store.Set(faultstore.Fault{Mode: mode}, faultstore.Renew)
				time.Sleep(22 * time.Second)
				k.store.Clear()
				time.Sleep(time.Minute)
				wantNil(t, "Err", lock.Err())
			})
		})
	}
}

// A call that hangs leaves time for another before the lease ends, however patient calls
// are; in a batch it is the shortest lease that counts.
func TestRenewalThatHangsLeavesTimeForAnother(t *testing.T) {
	const short = 3 * time.Second
	for name, long := range map[string]time.Duration{"alone": 0, "next to a longer lease": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, &joblock.Config{CallTimeout: 10 * time.Second})
				if long > 0 { // both are to be renewed at the same time
					k.acquire("long", joblock.TTL(long))
					time.Sleep(long/3 - short/3)
				}
				lock := k.acquire("key", joblock.TTL(short))
				k.store.Set(faultstore.Fault{Mode: faultstore.Hang, Times: 1}, faultstore.Renew)
				time.Sleep(short/3 + time.Millisecond)
				if calls, items := k.store.Calls(faultstore.Renew), k.store.Items(faultstore.Renew); calls != 1 || items == 1 && long > 0 {
					t.Fatalf("%d calls with %d renewals, want one", calls, items)
				}
				time.Sleep(time.Minute)
				wantNil(t, "Err", lock.Err())
			})
		})
	}
}

// Nor does a call of a long lease take longer than any other call may.
func TestRenewalOfALongLeaseEndsWithItsCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.acquire("key", joblock.TTL(time.Hour))
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang, Times: 1}, faultstore.Renew)
		time.Sleep(20*time.Minute + joblock.DefaultCallTimeout + 2*time.Second)
		synctest.Wait()
		if n := k.store.Calls(faultstore.Renew); n != 2 {
			t.Errorf("%d renewals, want one that hung and one after it", n)
		}
	})
}

// A server that refuses connections answers at once. Renewals are then repeated often
// enough that many tries fit into a lease, and not as fast as the processor can.
func TestRefusedRenewalsArePaced(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key", joblock.TTL(ttl))
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew)
				<-lock.Done()
				if n := k.store.Calls(faultstore.Renew); n < 8 || n > 80 {
					t.Errorf("%d renewals were tried until the lock was lost, want 8 to 80", n)
				}
			})
		})
	}
}

// Loss is signalled an eighth of the margin before the trust deadline, which is when
// the last answered request was sent, plus the TTL, minus the margin: a timer that
// is late is then still in time. A call that never returns changes nothing.
func TestLossIsSignalledBeforeTheTrustDeadline(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{
		"refused": faultstore.Refuse, "hangs": faultstore.Hang, "late": faultstore.Late,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, &joblock.Config{Margin: 2 * time.Second})
				lock := k.acquire("key")
				time.Sleep(65 * time.Second)
				sent := time.Now()
				wantNil(t, "Renew", lock.Renew(t.Context()))
				trust := sent.Add(28 * time.Second)
				if !lock.ExpiresAt().Equal(trust) {
					t.Fatalf("trusted for %s, want 28s", lock.ExpiresAt().Sub(sent))
				}
				k.store.Set(faultstore.Fault{Mode: mode, Delay: 10 * time.Minute}, faultstore.Renew)
				ctx, stop := lock.Context(t.Context())
				defer stop()
				<-ctx.Done()
				if early := time.Until(trust); early != 250*time.Millisecond {
					t.Errorf("loss was signalled %s before the trust deadline, want 250ms", early)
				}
				wantErr(t, context.Cause(ctx), joblock.ErrLost)
				wantErr(t, lock.Err(), joblock.ErrLost)
				if ctx.Err() != context.Canceled {
					t.Errorf("ctx.Err() is %v", ctx.Err())
				}
				select {
				case <-lock.Done():
				default:
					t.Error("Done is open")
				}
				k.wantState("key", joblock.StateHeld)
			})
		})
	}
}

// The lease counts from when the request was sent, not from its answer.
func TestTrustCountsFromTheSendingOfTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{Margin: time.Millisecond})
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2 * time.Second}, faultstore.Renew, faultstore.Acquire, faultstore.Resume)
		check := func(what string, lock *joblock.Lock) {
			t.Helper()
			if trust, lease := time.Until(lock.ExpiresAt()), k.record(lock.Key()).Lease; trust > lease {
				t.Errorf("%s: trusted for %s, the lease is %s", what, trust, lease)
			}
		}
		time.Sleep(12*time.Second + time.Millisecond) // the engine's renewal is answered
		synctest.Wait()
		check("engine", lock)
		wantNil(t, "Renew", lock.Renew(t.Context()))
		check("Renew", lock)
		check("TryAcquire", k.acquire("other"))
		resumed, err := k.locks.Resume(t.Context(), k.park(lock))
		wantNil(t, "Resume", err)
		check("Resume", resumed)
	})
}

func TestRefusedRenewalLosesTheLockAtOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(k *kit)
		cause error
	}{
		{"forced", func(k *kit) {
			wantNil(k, "ForceRelease", k.peer().ForceRelease(k.Context(), "key", joblock.Reason("stuck")))
		}, joblock.ErrAlreadyReleased},
		{"released by its token elsewhere", func(k *kit) {
			wantNil(k, "Release", releaseOf(k.Context(), k.peer(), "key", "me"))
		}, joblock.ErrAlreadyReleased},
		{"taken by another", func(k *kit) {
			k.StoreSkew += time.Minute // the store's clock jumps past the lease
			_, err := k.peer().TryAcquire(k.Context(), "key")
			wantNil(k, "TryAcquire", err)
		}, joblock.ErrHeld}, // says who has it now
		{"flushed", func(k *kit) { k.StoreSkew += 24 * time.Hour }, joblock.ErrNotFound},
		{"lapsed", func(k *kit) { k.StoreSkew += 31 * time.Second }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key", joblock.Owner("me"))
				ctx, stop := lock.Context(t.Context())
				defer stop()
				c.do(k)
				before := k.record("key")
				start := time.Now()
				<-ctx.Done()
				if d := time.Since(start); d > 10*time.Second+time.Millisecond {
					t.Errorf("notified after %s, want at the next renewal", d)
				}
				wantLoss(t, context.Cause(ctx), c.cause)
				wantErr(t, lock.Renew(t.Context()), joblock.ErrLost)
				_, err := lock.Park(t.Context())
				wantErr(t, err, joblock.ErrLost)
				if after := k.record("key"); after.Fence != before.Fence || after.Owner != before.Owner {
					t.Error("the old holder has changed the record")
				}
			})
		})
	}
}

// wantLoss checks that err is a loss which tells its cause, and that it cannot be
// taken for that.
func wantLoss(t *testing.T, err, cause error) {
	t.Helper()
	wantErr(t, err, joblock.ErrLost)
	if cause == nil {
		return
	}
	if errors.Is(err, cause) {
		t.Errorf("%v matches %v", err, cause)
	}
	if says := strings.TrimPrefix(cause.Error(), "joblock: "); !strings.Contains(err.Error(), says) {
		t.Errorf("%v does not say %q", err, says)
	}
}

func TestManualRenewThatIsRefusedLosesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		wantNil(t, "ForceRelease", k.peer().ForceRelease(t.Context(), "key"))
		wantLoss(t, lock.Renew(t.Context()), joblock.ErrAlreadyReleased)
		select {
		case <-lock.Done():
		default:
			t.Error("Done is open")
		}
	})
}

func TestLocksThatAreNotRenewed(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []joblock.AcquireOption
		cfg  *joblock.Config
		do   func(*joblock.Lock)
		ends time.Duration
	}{
		{"NoRenew", []joblock.AcquireOption{joblock.NoRenew()}, nil, func(*joblock.Lock) {}, 29 * time.Second},
		{"MaxRenew", []joblock.AcquireOption{joblock.MaxRenew(time.Minute)}, nil, func(*joblock.Lock) {}, 79 * time.Second},
		{"Config.MaxRenew", nil, &joblock.Config{MaxRenew: time.Minute}, func(*joblock.Lock) {}, 79 * time.Second},
		{"StopRenewing", nil, nil, (*joblock.Lock).StopRenewing, 29 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, c.cfg)
				start := time.Now()
				lock := k.acquire("key", c.opts...)
				c.do(lock)
				select {
				case <-lock.Done():
				case <-time.After(2 * c.ends):
					t.Fatal("it is renewed")
				}
				if d := time.Since(start); d != c.ends-125*time.Millisecond {
					t.Errorf("lost after %s, want 125ms before %s", d, c.ends)
				}
				wantErr(t, lock.Err(), joblock.ErrLost)
				time.Sleep(2 * time.Second)
				k.wantState("key", joblock.StateFree)
			})
		})
	}
}

func TestNoRenewCanBeRenewedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key", joblock.NoRenew())
		for range 10 {
			time.Sleep(20 * time.Second)
			wantNil(t, "Renew", lock.Renew(t.Context()))
		}
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Renew)
		wantErr(t, lock.Renew(t.Context()), joblock.ErrUnavailable)
		wantNil(t, "Err after a renewal without an answer", lock.Err())
	})
}

// An answer that comes after the trust deadline must not be reported as success.
func TestRenewAnsweredAfterTheTrustDeadlineIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: 2 * time.Second})
		lock := k.acquire("key", joblock.NoRenew())
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2500 * time.Millisecond}, faultstore.Renew)
		wantErr(t, lock.Renew(t.Context()), joblock.ErrLost)
		wantErr(t, lock.Err(), joblock.ErrLost)
	})
}

// A refusal belongs to the term that the renewal named. One that was parked and
// reclaimed meanwhile is another.
func TestLateRefusalOfAnEarlierTermLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: 2 * time.Second}, faultstore.Renew)
		time.Sleep(11 * time.Second) // the engine's renewal is on its way
		k.park(lock)
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		time.Sleep(5 * time.Minute)
		wantNil(t, "Err", lock.Err())
		k.wantState("key", joblock.StateHeld)
	})
}

func TestLocksOfAllLengthsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var locks joblock.Locks
		for i, ttl := range []time.Duration{
			30 * time.Millisecond, time.Second, 7 * time.Second, 31 * time.Second, time.Hour, 24 * time.Hour,
		} {
			locks = append(locks, k.acquire(fmt.Sprint(i), joblock.TTL(ttl)))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Minute)
		wantNil(t, "Err", locks.Err())
		// Out of order, so that the queue is taken apart in the middle.
		for _, i := range []int{2, 0, 5, 3, 1, 4} {
			wantNil(t, "Release", locks[i].Release(t.Context()))
			time.Sleep(time.Second)
		}
		calls := k.store.Calls("")
		time.Sleep(time.Hour)
		if n := k.store.Calls(""); n != calls {
			t.Errorf("%d calls with no lock held", n-calls)
		}
	})
}
