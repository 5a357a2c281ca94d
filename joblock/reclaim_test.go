package joblock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

func TestReclaimUndoesPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		ctx, stop := lock.Context(t.Context())
		defer stop()
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrInvalid)
		token := k.park(lock, joblock.ParkOptions{Job: "q/1"})
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		if lock.Fence() <= token.Fence() {
			t.Errorf("fence %d after %d", lock.Fence(), token.Fence())
		}
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrInvalid)
		time.Sleep(24 * time.Hour)
		wantNil(t, "Err", lock.Err())
		if ctx.Err() != nil {
			t.Error("the context has ended")
		}
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key", ""))
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), joblock.ErrLost)
	})
}

func TestReclaimRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(k *kit, token joblock.Token)
		want error
	}{
		{"resumed", func(k *kit, token joblock.Token) {
			_, err := k.peer().Resume(k.Context(), token, joblock.ForJob("q/1"))
			wantNil(k, "Resume", err)
		}, joblock.ErrBusy},
		{"released", func(k *kit, token joblock.Token) {
			wantNil(k, "Release", k.peer().Release(k.Context(), "key", token.Owner()))
		}, joblock.ErrAlreadyReleased},
		{"gone", func(k *kit, _ joblock.Token) { time.Sleep(2 * time.Hour) }, joblock.ErrNotFound},
		{"taken", func(k *kit, _ joblock.Token) {
			time.Sleep(joblock.DefaultHold + time.Second)
			_, err := k.peer().TryAcquire(k.Context(), "key")
			wantNil(k, "TryAcquire", err)
		}, joblock.ErrNotOwner},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key")
				c.do(k, k.park(lock, joblock.ParkOptions{Job: "q/1"}))
				before := k.record("key")
				wantErr(t, lock.Reclaim(t.Context()), c.want)
				wantErr(t, lock.Err(), joblock.ErrNotOwner) // still handed over
				wantErr(t, lock.Release(t.Context()), joblock.ErrNotOwner)
				if after := k.record("key"); after.Fence != before.Fence {
					t.Error("a refused Reclaim has changed the record")
				}
			})
		})
	}
}

// The first Reclaim may be the one that was granted, so trust counts from it.
func TestRepeatedReclaimIsTrustedFromTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key", joblock.NoRenew())
		k.park(lock, joblock.ParkOptions{})
		sent := time.Now()
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Resume)
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrUnavailable)
		time.Sleep(10 * time.Second)
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrUnavailable)
		k.store.Clear()
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		if want := sent.Add(29 * time.Second); !lock.ExpiresAt().Equal(want) {
			t.Errorf("trusted for %s from the first, want 29s", lock.ExpiresAt().Sub(sent))
		}
		if trust, lease := time.Until(lock.ExpiresAt()), k.record("key").Lease; trust > lease {
			t.Errorf("trusted for %s, the lease is %s", trust, lease)
		}
	})
}

func TestReclaimRepeatedAfterALeaseHoldsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.park(lock, joblock.ParkOptions{})
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Resume)
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrUnavailable)
		k.store.Clear()
		time.Sleep(joblock.DefaultTTL + time.Minute)
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		wantNil(t, "Err", lock.Err())
		time.Sleep(time.Hour)
		wantNil(t, "Err", lock.Err())
	})
}

// Two calls of Reclaim are under way; the lock that the first got back is released
// before the second returns. It must not come alive again.
func TestReclaimDoesNotReviveAReleasedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.park(lock, joblock.ParkOptions{})
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: time.Second}, faultstore.Resume)
		slow := make(chan error)
		go func() { slow <- lock.Reclaim(context.Background()) }()
		synctest.Wait()
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		wantNil(t, "Release", lock.Release(t.Context()))
		wantErr(t, <-slow, joblock.ErrAlreadyReleased)
		wantErr(t, lock.Err(), joblock.ErrAlreadyReleased)
	})
}
