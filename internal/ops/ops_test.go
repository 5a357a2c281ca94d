package ops

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memstore"
)

const key = "export:acct-7"

// bubble runs f in virtual time, with a Locker on a store that can fail.
func bubble(t *testing.T, f func(t *testing.T, locks *joblock.Locker, store *faultstore.Store)) {
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(nil))
		locks, err := joblock.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) }()
		f(t, locks, store)
	})
}

func newToken(t *testing.T, owner string) joblock.Token {
	t.Helper()
	token, err := joblock.NewToken(key, owner, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func status(t *testing.T, locks *joblock.Locker) joblock.Status {
	t.Helper()
	st, err := locks.Status(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return st[0]
}

// A script acquires, renews, parks, resumes and releases, each time with nothing but the token.
func TestLifeOfALockWithoutAHandle(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
		ctx := t.Context()
		grant, err := Acquire(ctx, locks, newToken(t, "owner"), joblock.MaxWait(0))
		testkit.WantNil(t, "Acquire", err)
		token := grant.Token
		if grant.Lease < 9*time.Second || grant.Lease > 10*time.Second || grant.Fence != status(t, locks).Fence {
			t.Errorf("Acquire: %+v", grant)
		}
		time.Sleep(9 * time.Second)
		left, err := Renew(ctx, locks, token, 0, 0)
		if err != nil || left != 10*time.Second {
			t.Errorf("Renew: %s, %v, want the TTL of the token", left, err)
		}
		time.Sleep(9 * time.Second)
		if st := status(t, locks); st.State != joblock.StateHeld {
			t.Errorf("after a renewal: %+v", st)
		}
		parked, err := Park(ctx, locks, token, "default:1", time.Minute)
		testkit.WantNil(t, "Park", err)
		if st := status(t, locks); st.State != joblock.StateParked || st.Job != "default:1" || st.Reserved.Truncate(time.Second) != time.Minute {
			t.Errorf("after Park: %+v", st)
		}
		again, err := Park(ctx, locks, token, "default:1", time.Minute)
		if err != nil || again != parked {
			t.Errorf("the same Park again: %v, %v, want %v", again, err, parked)
		}
		_, err = Renew(ctx, locks, token, 0, 0)
		testkit.WantErr(t, err, joblock.ErrNotOwner)
		_, err = Resume(ctx, locks, parked, "")
		testkit.WantErr(t, err, joblock.ErrNotOwner) // not the job
		resumed, err := Resume(ctx, locks, parked, "", joblock.ForJob("default:1"))
		testkit.WantNil(t, "Resume", err)
		testkit.WantErr(t, Release(ctx, locks, token, ""), joblock.ErrNotOwner)  // from before the Park
		testkit.WantErr(t, Release(ctx, locks, parked, ""), joblock.ErrNotOwner) // from before the Resume
		time.Sleep(11 * time.Second)
		_, err = Renew(ctx, locks, resumed.Token, 0, 0)
		testkit.WantErr(t, err, joblock.ErrLost)
		testkit.WantNil(t, "Release", Release(ctx, locks, resumed.Token, "done"))
		_, err = Renew(ctx, locks, resumed.Token, 0, 0)
		testkit.WantErr(t, err, joblock.ErrAlreadyReleased)
	})
}

// The first call takes the lock, but its answer is lost. The same call finds that lock.
func TestAcquireIsRepeatedWithItsToken(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, store *faultstore.Store) {
		token := newToken(t, "owner")
		store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
		_, err := Acquire(t.Context(), locks, token, joblock.MaxWait(0))
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		time.Sleep(time.Second) // a clean-up would have freed the key
		before := status(t, locks)
		if before.State != joblock.StateHeld {
			t.Fatalf("after the lost answer: %+v", before)
		}
		got, err := Acquire(t.Context(), locks, token, joblock.MaxWait(0))
		testkit.WantNil(t, "Acquire", err)
		if st := status(t, locks); st.Fence != before.Fence {
			t.Errorf("fence %d, want %d: the same grant", st.Fence, before.Fence)
		}
		testkit.WantNil(t, "Release", locks.Release(t.Context(), got.Token))
	})
}

// The first Resume takes the lock, but its answer is lost. Under the same name the call finds that lock, with a whole
// lease. Under another name, or without a name, another holder has the lock.
func TestResumeIsRepeatedUnderItsName(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, store *faultstore.Store) {
		ctx := t.Context()
		grant, err := Acquire(ctx, locks, newToken(t, "owner"))
		testkit.WantNil(t, "Acquire", err)
		parked, err := Park(ctx, locks, grant.Token, "", time.Minute)
		testkit.WantNil(t, "Park", err)
		store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1 << 20}, faultstore.Resume)
		_, err = Resume(ctx, locks, parked, "mine")
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		store.Clear()
		time.Sleep(3 * time.Second)
		before := status(t, locks)
		if before.State != joblock.StateHeld {
			t.Fatalf("after the lost answer: %+v", before)
		}
		for _, name := range []string{"", "another's"} {
			_, err = Resume(ctx, locks, parked, name)
			testkit.WantErr(t, err, joblock.ErrBusy)
		}
		got, err := Resume(ctx, locks, parked, "mine")
		testkit.WantNil(t, "Resume", err)
		if st := status(t, locks); st.Fence != before.Fence || got.Fence != before.Fence || st.Lease < got.Lease || got.Lease < 9*time.Second {
			t.Errorf("%+v of %+v, want the same grant with a whole lease", got, st)
		}
		testkit.WantNil(t, "Release", Release(ctx, locks, got.Token, ""))
	})
}

// A Release whose answer was lost is repeated, and does not release the lock of the next holder.
func TestReleaseIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, store *faultstore.Store) {
		ctx := t.Context()
		grant, err := Acquire(ctx, locks, newToken(t, "owner"))
		testkit.WantNil(t, "Acquire", err)
		store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Release)
		testkit.WantErr(t, Release(ctx, locks, grant.Token, "done"), joblock.ErrUnavailable)
		testkit.WantNil(t, "again", Release(ctx, locks, grant.Token, "done"))
		next, err := locks.TryAcquire(ctx, key)
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "again, with another holder", Release(ctx, locks, grant.Token, "done"))
		testkit.WantNil(t, "Err", next.Err())
		if st := status(t, locks); st.Fence != next.Fence() {
			t.Errorf("after the late Release: %+v", st)
		}
		testkit.WantNil(t, "Release", next.Release(ctx))

		late, err := Acquire(ctx, locks, newToken(t, "late"))
		testkit.WantNil(t, "Acquire", err)
		time.Sleep(11 * time.Second)
		testkit.WantErr(t, Release(ctx, locks, late.Token, ""), joblock.ErrLost)
	})
}

// A token without a fence releases what its owner has, each time.
func TestReleaseOfAnUnansweredAcquire(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, store *faultstore.Store) {
		ctx, token := t.Context(), newToken(t, "owner")
		for range 2 {
			store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
			_, err := Acquire(ctx, locks, token, joblock.MaxWait(0))
			testkit.WantErr(t, err, joblock.ErrUnavailable)
			testkit.WantNil(t, "Release", Release(ctx, locks, token, ""))
			if st := status(t, locks); st.Locked() {
				t.Errorf("after Release: %+v", st)
			}
		}
	})
}

// So does it give up the place that an Acquire without an answer has got in line.
func TestReleaseOfAnUnansweredPlace(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, store *faultstore.Store) {
		ctx, token := t.Context(), newToken(t, "owner")
		lock, err := locks.TryAcquire(ctx, key)
		testkit.WantNil(t, "TryAcquire", err)
		failed := make(chan error)
		go func() {
			_, err := Acquire(ctx, locks, token)
			failed <- err
		}()
		synctest.Wait()
		store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1 << 20}, faultstore.Acquire)
		store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1 << 20}, faultstore.Release) // the Locker's own clean-up
		testkit.WantErr(t, <-failed, joblock.ErrUnavailable)
		if st := status(t, locks); st.Waiters != 1 {
			t.Fatalf("after the lost answers: %+v", st)
		}
		store.Clear()
		testkit.WantErr(t, Release(ctx, locks, token, ""), joblock.ErrNotOwner)
		if st := status(t, locks); st.Waiters != 0 || st.Fence != lock.Fence() {
			t.Errorf("after Release: %+v", st)
		}
		testkit.WantNil(t, "Release", lock.Release(ctx))
	})
}

// A permit whose grant was lost on the way is found by the token that was stored before.
func TestPermitIsFoundAgain(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
		ctx, token := t.Context(), newToken(t, "owner")
		_, found, err := FindPermit(ctx, locks, token, 3)
		if found || err != nil {
			t.Errorf("before AcquirePermit: %t, %v", found, err)
		}
		_, err = AcquirePermit(ctx, locks, newToken(t, "other"), 3)
		testkit.WantNil(t, "AcquirePermit", err)
		grant, err := AcquirePermit(ctx, locks, token, 3, joblock.MaxWait(0))
		testkit.WantNil(t, "AcquirePermit", err)
		time.Sleep(9 * time.Second)
		again, found, err := FindPermit(ctx, locks, token, 3)
		if err != nil || !found || again.Token != grant.Token || again.Lease != 10*time.Second {
			t.Errorf("FindPermit: %+v, %t, %v, want %s with a new lease", again, found, err, grant.Token)
		}
		_, err = AcquirePermit(ctx, locks, token, 3) // as of a caller that dies while it asks for all permits
		testkit.WantNil(t, "AcquirePermit", err)
		again, found, err = FindPermit(ctx, locks, token, 3)
		st, _ := limit.New(locks, 3).Status(ctx, key)
		if err != nil || !found || st.Taken != 2 { // one is that of the other owner
			t.Errorf("FindPermit of two: %+v, %t, %v, want one permit of the owner in %+v", again, found, err, st)
		}
		testkit.WantNil(t, "Release", Release(ctx, locks, again.Token, ""))
		if _, found, err = FindPermit(ctx, locks, token, 3); found || err != nil {
			t.Errorf("after Release: %t, %v", found, err)
		}
	})
}

func TestBadInputIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
		ctx, token := t.Context(), newToken(t, "owner")
		for name, err := range map[string]error{
			"zero token":     second(Acquire(ctx, locks, joblock.Token{})),
			"renew zero":     second(Renew(ctx, locks, joblock.Token{}, 0, 0)),
			"long TTL":       second(Renew(ctx, locks, token, 1000*time.Hour, 0)),
			"negative":       second(Renew(ctx, locks, token, 0, -1)),
			"park zero":      second(Park(ctx, locks, joblock.Token{}, "", 0)),
			"bad job":        second(Park(ctx, locks, token, "a\nb", 0)),
			"short reserve":  second(Park(ctx, locks, token, "", -1)),
			"no fence":       Force(ctx, locks, joblock.Status{Key: key}, false, "x"),
			"negative fence": Force(ctx, locks, joblock.Status{Key: key, Fence: -1}, false, "x"),
			"no reason":      Force(ctx, locks, joblock.Status{Key: key, Fence: 1}, false, ""),
			"no key":         Force(ctx, locks, joblock.Status{Fence: 1}, false, "x"),
			"nil Locker":     Force(ctx, nil, joblock.Status{Key: key, Fence: 1}, false, "x"),
			"renew on nil":   second(Renew(ctx, nil, token, 0, 0)),
			"acquire on nil": second(Acquire(ctx, nil, token)),
			"resume on nil":  second(Resume(ctx, nil, token, "")),
			"release zero":   Release(ctx, locks, joblock.Token{}, ""),
			"release on nil": Release(ctx, nil, token, ""),
			"bad reason":     Release(ctx, locks, token, "a\nb"),
			"no limit":       second(AcquirePermit(ctx, locks, token, 0)),
			"permit on nil":  second(AcquirePermit(ctx, nil, token, 3)),
			"park on nil":    second(Park(ctx, nil, token, "", 0)),
		} {
			if !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// A forced release hits the holding that the operator has seen, and no other.
func TestForceHitsOnlyWhatWasSeen(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
		ctx := t.Context()
		first, err := locks.TryAcquire(ctx, key)
		testkit.WantNil(t, "TryAcquire", err)
		seen := status(t, locks)
		testkit.WantErr(t, Force(ctx, locks, seen, true, "idle?"), joblock.ErrBusy)
		testkit.WantNil(t, "Release", first.Release(ctx))
		testkit.WantErr(t, Force(ctx, locks, seen, false, "late"), joblock.ErrNotFound)
		second, err := locks.TryAcquire(ctx, key)
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantErr(t, Force(ctx, locks, seen, false, "late"), joblock.ErrNotOwner)
		testkit.WantNil(t, "Err", second.Err())
		testkit.WantNil(t, "Force", Force(ctx, locks, status(t, locks), false, "by hand"))
		if st := status(t, locks); st.State != joblock.StateFree || st.Ended != driver.EndedForced || st.Reason != "by hand" {
			t.Errorf("after Force: %+v", st)
		}
	})
}

// With ifIdle, Force frees a lock that no holder runs under, whether or not the lock is bound to a job.
func TestForceIfIdle(t *testing.T) {
	for _, job := range []string{"", "default:1"} {
		bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
			ctx := t.Context()
			lock, err := locks.TryAcquire(ctx, key)
			testkit.WantNil(t, "TryAcquire", err)
			token, err := lock.Park(ctx, joblock.ForJob(job))
			testkit.WantNil(t, "Park", err)
			seen := status(t, locks)
			resumed, err := locks.Resume(ctx, token, joblock.ForJob(job))
			testkit.WantNil(t, "Resume", err)
			testkit.WantErr(t, Force(ctx, locks, seen, true, "stuck"), joblock.ErrNotOwner) // the fence has moved on
			testkit.WantErr(t, Force(ctx, locks, status(t, locks), true, "stuck"), joblock.ErrBusy)
			_, err = resumed.Park(ctx, joblock.ForJob(job))
			testkit.WantNil(t, "Park", err)
			testkit.WantNil(t, "Force", Force(ctx, locks, status(t, locks), true, "stuck"))
			if st := status(t, locks); st.Locked() {
				t.Errorf("after Force: %+v", st)
			}
		})
	}
}
