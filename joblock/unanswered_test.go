package joblock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

func TestParkWithoutAnAnswer(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{
		"refused": faultstore.Refuse, "reply dropped": faultstore.Drop, "applied, hanging": faultstore.HangApplied,
	} {
		setup := func(t *testing.T) (*kit, *joblock.Lock) {
			k := newKit(t, nil)
			lock := k.acquire("key")
			k.store.Set(faultstore.Fault{Mode: mode, Times: 1}, faultstore.Park)
			_, err := lock.Park(t.Context(), joblock.ForJob("q/1"))
			wantErr(t, err, joblock.ErrUnavailable)
			wantNil(t, "Err", lock.Err())
			return k, lock
		}
		t.Run(name+", then renewed", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, lock := setup(t)
				time.Sleep(time.Hour)
				wantNil(t, "Err", lock.Err())
				if r := k.record("key"); r.State != joblock.StateHeld || r.Fence != lock.Fence() {
					t.Errorf("the store has it %s under fence %d, the lock has %d", r.State, r.Fence, lock.Fence())
				}
				wantNil(t, "Release", lock.Release(t.Context()))
				k.wantState("key", joblock.StateFree)
			})
		})
		t.Run(name+", then released", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, lock := setup(t)
				wantNil(t, "Release", lock.Release(t.Context()))
				k.wantState("key", joblock.StateFree)
			})
		})
		t.Run(name+", then lost and released", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, lock := setup(t)
				lock.StopRenewing()
				<-lock.Done()
				wantErr(t, lock.Release(t.Context()), joblock.ErrLost)
				k.wantState("key", joblock.StateFree)
			})
		})
		t.Run(name+", then again", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, lock := setup(t)
				token := k.park(lock, joblock.ForJob("q/1"))
				if r := k.record("key"); r.State != joblock.StateParked || r.Fence != token.Fence() {
					t.Errorf("the store has it %s under fence %d, the token has %d", r.State, r.Fence, token.Fence())
				}
				_, err := k.locks.Resume(t.Context(), token, joblock.ForJob("q/1"))
				wantNil(t, "Resume", err)
			})
		})
		// A re-send for another job is no re-send: it must not be given the first one's.
		t.Run(name+", then for another job", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, lock := setup(t)
				token := k.park(lock, joblock.ForJob("q/2"), joblock.Reserve(time.Minute))
				if r := k.record("key"); r.Job != "q/2" || r.Reserved > 61*time.Second {
					t.Errorf("reserved for %q, %s", r.Job, r.Reserved)
				}
				_, err := k.locks.Resume(t.Context(), token, joblock.ForJob("q/2"))
				wantNil(t, "Resume", err)
			})
		})
		t.Run(name+", renewed, then again", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, lock := setup(t)
				time.Sleep(time.Minute)
				token := k.park(lock, joblock.ForJob("q/1"))
				if r := k.record("key"); r.State != joblock.StateParked || r.Fence != token.Fence() {
					t.Errorf("the store has it %s under fence %d, the token has %d", r.State, r.Fence, token.Fence())
				}
			})
		})
	}
}

// A renewal that was sent before Park, and refused because Park overtook it, says
// nothing about the lock: the next one takes the unanswered Park back.
func TestRenewalOvertakenByAnUnansweredParkLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: 2 * time.Second}, faultstore.Renew)
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Park)
		time.Sleep(11 * time.Second) // the engine's renewal is on its way
		_, err := lock.Park(t.Context())
		wantErr(t, err, joblock.ErrUnavailable)
		time.Sleep(time.Hour)
		wantNil(t, "Err", lock.Err())
		k.wantState("key", joblock.StateHeld)
	})
}

// The answer of a renewal must not bring back a fence that is over.
func TestLateAnswerOfAnEarlierRenewalKeepsTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 3 * time.Second}, faultstore.Renew)
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Park)
		time.Sleep(11 * time.Second) // the engine's renewal has been applied under the first fence
		_, err := lock.Park(t.Context())
		wantErr(t, err, joblock.ErrUnavailable)
		wantNil(t, "Renew, which takes Park back", lock.Renew(t.Context()))
		fence := lock.Fence()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if lock.Fence() != fence {
			t.Errorf("fence went from %d to %d", fence, lock.Fence())
		}
		time.Sleep(time.Hour)
		wantNil(t, "Err", lock.Err())
	})
}

// A repeated Park meets a record that a renewal has just taken back.
func TestParkAgainWhileARenewalTakesItBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Park)
		_, err := lock.Park(t.Context())
		wantErr(t, err, joblock.ErrUnavailable)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: time.Second}, faultstore.Renew)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: 2 * time.Second}, faultstore.Park)
		time.Sleep(10 * time.Second) // the engine's renewal is on its way
		synctest.Wait()
		token := k.park(lock)
		if r := k.record("key"); r.State != joblock.StateParked || r.Fence != token.Fence() {
			t.Errorf("the store has it %s under fence %d, the token has %d", r.State, r.Fence, token.Fence())
		}
	})
}

// A renewal that has been sent with the right to take an unanswered Park back, and
// is late, must not take back the next one too: its caller has a token by then.
func TestParkAgainWaitsForARenewalThatWouldUndoIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Park)
		_, err := lock.Park(t.Context())
		wantErr(t, err, joblock.ErrUnavailable)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: 2 * time.Second}, faultstore.Renew)
		time.Sleep(11 * time.Second) // the engine's renewal is on its way
		synctest.Wait()

		short, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("no longer"))
		defer cancel()
		_, err = lock.Park(short)
		wantErr(t, err, joblock.ErrUnavailable)
		wantNil(t, "Err", lock.Err())

		token := k.park(lock)
		time.Sleep(3 * time.Second)
		if r := k.record("key"); r.State != joblock.StateParked || r.Fence != token.Fence() {
			t.Errorf("the store has it %s under fence %d, the token has %d", r.State, r.Fence, token.Fence())
		}
	})
}

// The same of a renewal that the user asked for, by Renew or memo.Write.
func TestParkAgainWaitsForARenewThatWouldUndoIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Park)
		_, err := lock.Park(t.Context())
		wantErr(t, err, joblock.ErrUnavailable)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: 2 * time.Second}, faultstore.Renew)
		renewed := make(chan error, 1)
		go func() { renewed <- lock.Renew(t.Context()) }()
		synctest.Wait() // it is on its way

		token := k.park(lock)
		wantNil(t, "Renew", <-renewed)
		time.Sleep(3 * time.Second)
		if r := k.record("key"); r.State != joblock.StateParked || r.Fence != token.Fence() {
			t.Errorf("the store has it %s under fence %d, the token has %d", r.State, r.Fence, token.Fence())
		}
	})
}

// Park is answered after the lock was given up: the token is good all the same,
// and Reclaim makes a handle that can be lost a second time.
func TestParkAnsweredAfterTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: 2 * time.Second})
		lock := k.acquire("key")
		done := lock.Done()
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 4 * time.Second}, faultstore.Park)
		token := k.park(lock)
		<-done
		wantErr(t, lock.Err(), joblock.ErrNotOwner)
		if token.Fence() != k.record("key").Fence {
			t.Error("the token is not the store's")
		}
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		select {
		case <-lock.Done():
			t.Error("Done of a lock that is held again is closed")
		default:
		}
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key"))
		<-lock.Done()
		wantErr(t, lock.Err(), joblock.ErrLost)
	})
}
