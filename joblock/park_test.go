package joblock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
)

func TestParkHandsTheLockOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		ctx, stop := lock.Context(t.Context())
		defer stop()
		f1 := lock.Fence()
		token := k.park(lock, joblock.Reserve(10*time.Minute), joblock.ForJob("mail/7"))
		if token.Fence() <= f1 || token.Key() != "key" || token.TTL() != joblock.DefaultTTL || token.Owner() != lock.Owner() {
			t.Errorf("token %v, TTL %s", token, token.TTL())
		}
		before := k.record("key")
		if before.State != joblock.StateParked || before.Job != "mail/7" {
			t.Errorf("the store has it %s for %q", before.State, before.Job)
		}

		// The old handle can do nothing, and says why.
		_, perr := lock.Park(t.Context())
		for what, err := range map[string]error{
			"Err": lock.Err(), "Renew": lock.Renew(t.Context()), "memo.Write": memo.Write(t.Context(), lock, []byte("x")),
			"Release": lock.Release(t.Context()), "Park": perr,
		} {
			if !errors.Is(err, joblock.ErrNotOwner) {
				t.Errorf("%s after Park: %v", what, err)
			}
		}
		time.Sleep(5 * time.Minute)
		if after := k.record("key"); after.Fence != before.Fence || after.State != joblock.StateParked || after.Memo != nil {
			t.Errorf("the old handle has changed the record to %+v", after)
		}
		if ctx.Err() != nil {
			t.Error("Park has cancelled the context")
		}

		resumed, err := k.peer().Resume(t.Context(), token, joblock.ForJob("mail/7"))
		wantNil(t, "Resume", err)
		if resumed.Fence() <= token.Fence() || resumed.Owner() != token.Owner() || resumed.Recovered() {
			t.Errorf("fence %d after %d, recovered %v", resumed.Fence(), token.Fence(), resumed.Recovered())
		}
		time.Sleep(24 * time.Hour)
		wantNil(t, "Err", resumed.Err())
		wantErr(t, lock.Release(t.Context()), joblock.ErrNotOwner)
		k.wantState("key", joblock.StateHeld)
		wantNil(t, "Release", resumed.Release(t.Context()))
		k.wantState("key", joblock.StateFree)
	})
}

func TestParkReservesForItsTokenOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.acquire("key"), joblock.Reserve(10*time.Minute), joblock.ForJob("mail/7"))
		time.Sleep(10*time.Minute - time.Second)
		_, err := k.peer().TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)
		var e *joblock.Error
		if !errors.As(err, &e) || e.Job != "mail/7" || e.Remaining > 2*time.Second {
			t.Errorf("error is %+v", e)
		}
		time.Sleep(2 * time.Second)
		_, err = k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire after the reservation", err)
	})
}

func TestResumeRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(k *kit, token joblock.Token)
		opts []joblock.ResumeOption
		want error
	}{
		{"held by another attempt", func(k *kit, token joblock.Token) {
			_, err := k.peer().Resume(k.Context(), token, joblock.ForJob("q/1"))
			wantNil(k, "Resume", err)
		}, []joblock.ResumeOption{joblock.ForJob("q/1")}, joblock.ErrBusy},
		{"taken by another owner", func(k *kit, _ joblock.Token) {
			time.Sleep(joblock.DefaultReserve + time.Second)
			_, err := k.peer().TryAcquire(k.Context(), "key")
			wantNil(k, "TryAcquire", err)
		}, []joblock.ResumeOption{joblock.ForJob("q/1")}, joblock.ErrNotOwner},
		{"released", func(k *kit, token joblock.Token) {
			wantNil(k, "Release", k.peer().Release(k.Context(), token, joblock.IfIdle(), joblock.Reason("task deleted")))
		}, []joblock.ResumeOption{joblock.ForJob("q/1")}, joblock.ErrAlreadyReleased},
		{"forgotten", func(k *kit, _ joblock.Token) {
			time.Sleep(joblock.DefaultReserve + joblock.DefaultRetain + time.Second)
		}, []joblock.ResumeOption{joblock.ForJob("q/1")}, joblock.ErrNotFound},
		{"another job", func(*kit, joblock.Token) {}, []joblock.ResumeOption{joblock.ForJob("q/2")}, joblock.ErrNotOwner},
		{"no job", func(*kit, joblock.Token) {}, nil, joblock.ErrNotOwner},
		{"a TTL above the bound", func(*kit, joblock.Token) {}, []joblock.ResumeOption{joblock.TTL(25 * time.Hour)}, joblock.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				token := k.park(k.acquire("key"), joblock.ForJob("q/1"))
				c.do(k, token)
				before := k.record("key")
				lock, err := k.locks.Resume(t.Context(), token, c.opts...)
				if lock != nil {
					t.Error("got a lock")
				}
				wantErr(t, err, c.want)
				var e *joblock.Error
				if errors.As(err, &e) && c.want == joblock.ErrAlreadyReleased && e.Reason != "task deleted" {
					t.Errorf("reason is %q", e.Reason)
				}
				if c.want == joblock.ErrBusy && (e.Remaining <= 0 || e.Holder != "peer") {
					t.Errorf("busy by %q for %s", e.Holder, e.Remaining)
				}
				if after := k.record("key"); after.Fence != before.Fence {
					t.Error("a refusal has changed the record")
				}
			})
		})
	}
}

func TestResumeAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token := k.park(k.acquire("key"))
		first, err := k.peer().Resume(t.Context(), token, joblock.NoRenew())
		wantNil(t, "Resume", err)
		time.Sleep(joblock.DefaultTTL + time.Second)
		k.wantState("key", joblock.StateOrphaned)
		_, err = k.peer().TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)
		second, err := k.locks.Resume(t.Context(), token)
		wantNil(t, "Resume of an orphan", err)
		if second.Recovered() || second.Fence() <= first.Fence() {
			t.Errorf("recovered %v, fence %d after %d", second.Recovered(), second.Fence(), first.Fence())
		}
		before := k.record("key")
		wantErr(t, first.Renew(t.Context()), joblock.ErrLost)
		wantErr(t, first.Release(t.Context()), joblock.ErrLost)
		if k.record("key").Fence != before.Fence {
			t.Error("the first attempt has changed the record")
		}
		k.wantState("key", joblock.StateHeld)

		token = k.park(second, joblock.Reserve(time.Minute))
		time.Sleep(2 * time.Minute)
		third, err := k.locks.Resume(t.Context(), token)
		wantNil(t, "Resume after the reservation", err)
		if !third.Recovered() {
			t.Error("not reported as recovered")
		}
	})
}

func TestResumeRepeatsWhatHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: 10 * time.Second})
		token := k.park(k.acquire("key"))
		sent := time.Now()
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 4}, faultstore.Resume)
		lock, err := k.locks.Resume(t.Context(), token)
		wantNil(t, "Resume", err)
		if want := sent.Add(9500 * time.Millisecond); !lock.ExpiresAt().Equal(want) {
			t.Errorf("trusted for %s from the first attempt, want 9.5s", lock.ExpiresAt().Sub(sent))
		}
		if lock.Fence() != k.record("key").Fence {
			t.Error("the fence is not the store's")
		}
	})
}

func TestResumeThatComesAfterItsOwnLeaseIsNotHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: time.Second})
		token := k.park(k.acquire("key"))
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 2 * time.Second}, faultstore.Resume)
		lock, err := k.locks.Resume(t.Context(), token)
		if lock != nil {
			t.Errorf("got a lock, Err %v", lock.Err())
		}
		wantErr(t, err, joblock.ErrUnavailable)
		lock, err = k.locks.Resume(t.Context(), token)
		wantNil(t, "Resume again", err)
		wantNil(t, "Err", lock.Err())
	})
}

func TestReleaseIfIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token := k.park(k.acquire("key"))
		lock, err := k.peer().Resume(t.Context(), token)
		wantNil(t, "Resume", err)
		wantErr(t, k.locks.Release(t.Context(), token, joblock.IfIdle(), joblock.Reason("gone")), joblock.ErrBusy)
		wantNil(t, "Err", lock.Err())
		token = k.park(lock)
		wantNil(t, "Release", k.locks.Release(t.Context(), token, joblock.IfIdle(), joblock.Reason("gone")))
		wantErr(t, k.locks.Release(t.Context(), token, joblock.IfIdle(), joblock.Reason("gone")), joblock.ErrAlreadyReleased)
		k.wantState("key", joblock.StateFree)
	})
}
