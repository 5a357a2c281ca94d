package joblock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

func TestReclaimUndoesPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		ctx, stop := lock.Context(t.Context())
		defer stop()
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrInvalid)
		token := k.park(lock, joblock.ForJob("q/1"))
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
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key"))
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), joblock.ErrLost)
	})
}

// After a refused enqueue the lock is what it was before the Park: a plain one, which
// is free a lease after its holder has died. No caller may take the job for the one that
// has the key: there may be another job of that name.
func TestReclaimGivesBackAPlainLock(t *testing.T) {
	for name, undo := range map[string]func(k *kit, lock *joblock.Lock){
		"reclaimed": func(k *kit, lock *joblock.Lock) {
			k.park(lock, joblock.ForJob("q/1"), joblock.Reserve(time.Hour))
			wantNil(k, "Reclaim", lock.Reclaim(k.Context()))
		},
		"reclaimed twice": func(k *kit, lock *joblock.Lock) {
			for _, job := range []string{"q/1", "q/2"} {
				k.park(lock, joblock.ForJob(job), joblock.Reserve(time.Hour))
				wantNil(k, "Reclaim", lock.Reclaim(k.Context()))
			}
		},
		"taken back by a renewal": func(k *kit, lock *joblock.Lock) {
			k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Park)
			_, err := lock.Park(k.Context(), joblock.ForJob("q/1"), joblock.Reserve(time.Hour))
			wantErr(k, err, joblock.ErrUnavailable)
			k.wantState("key", joblock.StateParked)
			wantNil(k, "Renew", lock.Renew(k.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key", joblock.NoRenew())
				undo(k, lock)
				if r := k.record("key"); r.State != joblock.StateHeld || r.Job != "" || r.Reserved != r.Lease {
					t.Errorf("%s for job %q, lease %s, reserved %s; want held, for none, both the same", r.State, r.Job, r.Lease, r.Reserved)
				}
				errs := jobs.Reserve(t.Context(), k.locks, jobs.Reservation{Key: "key", Job: "q/1"})
				wantErr(t, errs[0], joblock.ErrNotOwner)
				time.Sleep(joblock.DefaultTTL + time.Second) // it has died
				k.wantState("key", joblock.StateFree)
			})
		})
	}
}

// A worker's lock that its handler hands on, to a job that is refused, is that
// worker's job's again, reserved for its next attempt.
func TestReclaimGivesBackToTheJobThatItWasResumedFor(t *testing.T) {
	for name, undo := range map[string]func(k *kit, lock *joblock.Lock){
		"reclaimed": func(k *kit, lock *joblock.Lock) {
			k.park(lock, joblock.ForJob("q/2"))
			wantNil(k, "Reclaim", lock.Reclaim(k.Context()))
		},
		"reclaimed after answers that were lost for a lease": func(k *kit, lock *joblock.Lock) {
			k.park(lock, joblock.ForJob("q/2"))
			k.store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Resume)
			wantErr(k, lock.Reclaim(k.Context()), joblock.ErrUnavailable)
			k.store.Clear()
			time.Sleep(joblock.DefaultTTL + time.Second)
			k.wantState("key", joblock.StateOrphaned)
			wantNil(k, "Reclaim", lock.Reclaim(k.Context()))
		},
		"taken back by a renewal": func(k *kit, lock *joblock.Lock) {
			k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Park)
			_, err := lock.Park(k.Context(), joblock.ForJob("q/2"))
			wantErr(k, err, joblock.ErrUnavailable)
			wantNil(k, "Renew", lock.Renew(k.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				token := k.park(k.acquire("key"), joblock.ForJob("q/1"), joblock.Reserve(time.Hour))
				lock, err := k.locks.Resume(t.Context(), token, joblock.ForJob("q/1"), joblock.Reserve(2*time.Hour), joblock.NoRenew())
				wantNil(t, "Resume", err)
				undo(k, lock)
				if r := k.record("key"); r.State != joblock.StateHeld || r.Job != "q/1" || r.Reserved != r.Lease+2*time.Hour {
					t.Errorf("%s for job %q, lease %s, reserved %s; want held, for q/1, 2h beyond the lease", r.State, r.Job, r.Lease, r.Reserved)
				}
				time.Sleep(joblock.DefaultTTL + time.Second) // it has died
				_, err = k.locks.Resume(t.Context(), token, joblock.ForJob("q/2"))
				wantErr(t, err, joblock.ErrNotOwner)
				_, err = k.locks.Resume(t.Context(), token, joblock.ForJob("q/1"))
				wantNil(t, "Resume by the next attempt", err)
			})
		})
	}
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
			wantNil(k, "Release", releaseOf(k.Context(), k.peer(), "key", token.Owner()))
		}, joblock.ErrAlreadyReleased},
		{"gone", func(k *kit, _ joblock.Token) { time.Sleep(2 * time.Hour) }, joblock.ErrNotFound},
		{"taken", func(k *kit, _ joblock.Token) {
			time.Sleep(joblock.DefaultReserve + time.Second)
			_, err := k.peer().TryAcquire(k.Context(), "key")
			wantNil(k, "TryAcquire", err)
		}, joblock.ErrNotOwner},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key")
				c.do(k, k.park(lock, joblock.ForJob("q/1")))
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
		k.park(lock)
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
		k.park(lock)
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
		k.park(lock)
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

// A Reclaim that sends nothing does not make the one before look like another call's.
func TestReclaimThatIsNotSentForgetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.park(lock)
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Resume)
		wantErr(t, lock.Reclaim(t.Context()), joblock.ErrUnavailable)
		k.store.Clear()
		k.wantState("key", joblock.StateHeld)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, lock.Reclaim(over), context.Canceled)
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		wantNil(t, "Err", lock.Err())
	})
}
