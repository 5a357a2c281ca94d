package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// twoReplicas runs f in virtual time with two Lockers that share the locks: on memstore, and on miniredis. The store of
// the first Locker can fail.
func twoReplicas(t *testing.T, f func(t *testing.T, a, b *joblock.Locker, store *faultstore.Store, log *testkit.Log)) {
	for name, stores := range map[string]func(t *testing.T) (driver.Store, driver.Store){
		"memstore": func(*testing.T) (driver.Store, driver.Store) {
			one := memstore.New(&memstore.Config{Silent: true})
			return one, shared{one}
		},
		"miniredis": func(t *testing.T) (driver.Store, driver.Store) {
			mini := redistest.Mini(t)
			return testkit.Must(redisstore.New(redistest.MiniClient(t, mini), nil)), testkit.Must(redisstore.New(redistest.MiniClient(t, mini), nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := stores(t)
				store, log := faultstore.New(first), &testkit.Log{}
				cfg := &joblock.Config{Logger: log.Text(), Observer: func(e event.Event) {
					if e.Kind == event.Lost {
						t.Errorf("reported the loss of a lock that this process does not have: %+v", e)
					}
				}}
				a, err := joblock.New(store, cfg)
				testkit.WantNil(t, "New", err)
				b, err := joblock.New(second, cfg)
				testkit.WantNil(t, "New", err)
				defer func() {
					testkit.WantNil(t, "Close", b.Close(context.Background()))
					testkit.WantNil(t, "Close", a.Close(context.Background()))
				}()
				f(t, a, b, store, log)
				if strings.Contains(log.String(), "lost") {
					t.Errorf("log: %s", log.String())
				}
			})
		})
	}
}

// shared is a store that another Locker closes.
type shared struct{ driver.Store }

func (shared) Close() error { return nil }

func callOf(t *testing.T, locks *joblock.Locker, name, body string) *Call {
	t.Helper()
	c, err := NewCall(t.Context(), locks, name, body)
	testkit.WantNil(t, "NewCall", err)
	return c
}

// A process that leases a lock does not keep it: it neither renews the lock nor tells its loss.
func TestLeaseBelongsToTheToken(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, _ *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		lease, err := AcquireLease(ctx, a, LeaseRequest{Key: key, TTL: 10 * time.Second, Holder: "python"})
		testkit.WantNil(t, "AcquireLease", err)
		if TTLOf(lease.Token) != 10*time.Second || lease.Lease > 9500*time.Millisecond || lease.Lease < 9*time.Second || lease.Fence == 0 {
			t.Errorf("%+v", lease)
		}
		time.Sleep(9 * time.Second)
		renewed, err := RenewLease(ctx, b, lease.Token, 0, 0)
		testkit.WantNil(t, "RenewLease", err)
		if renewed.Fence != lease.Fence || renewed.Lease > 9500*time.Millisecond || renewed.Lease < 9*time.Second {
			t.Errorf("%+v", renewed)
		}
		time.Sleep(11 * time.Second)
		_, err = RenewLease(ctx, b, lease.Token, 0, 0)
		testkit.WantErr(t, err, joblock.ErrLost)
		next, err := AcquireLease(ctx, b, LeaseRequest{Key: key})
		testkit.WantNil(t, "AcquireLease", err)
		if next.Prior != driver.EndedLapsed {
			t.Errorf("prior is %s", next.Prior)
		}
		testkit.WantErr(t, Release(ctx, a, lease.Token, ""), joblock.ErrNotOwner)
		testkit.WantNil(t, "Release", Release(ctx, a, next.Token, "done"))
		testkit.WantNil(t, "the same again", Release(ctx, b, next.Token, "done"))
		late, err := AcquireLease(ctx, a, LeaseRequest{Key: key, TTL: time.Second})
		testkit.WantNil(t, "AcquireLease", err)
		time.Sleep(2 * time.Second)
		testkit.WantErr(t, Release(ctx, b, late.Token, ""), joblock.ErrLost)
	})
}

// The token from before a Park does not release the lock of the job.
func TestReleaseEndsNoLaterHolding(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, _ *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		lease, err := AcquireLease(ctx, a, LeaseRequest{Key: key})
		testkit.WantNil(t, "AcquireLease", err)
		parked, err := Park(ctx, a, lease.Token, "default/1", time.Minute)
		testkit.WantNil(t, "Park", err)
		testkit.WantErr(t, Release(ctx, b, lease.Token, ""), joblock.ErrNotOwner)
		if st := status(t, b); st.State != joblock.StateParked {
			t.Errorf("%+v", st)
		}
		resumed, err := Resume(ctx, b, parked, "", joblock.ForJob("default/1"))
		testkit.WantNil(t, "Resume", err)
		testkit.WantErr(t, Release(ctx, a, parked, ""), joblock.ErrNotOwner)
		testkit.WantNil(t, "Release", Release(ctx, a, resumed.Token, ""))
	})
}

// The answer of the first call is lost. The same call by another process finds the same lock.
func TestRepeatedCallFindsItsLock(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, store *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		c := callOf(t, a, "alice\nreq-1", "ttl")
		store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
		_, err := AcquireLease(ctx, a, LeaseRequest{Key: key, TTL: 10 * time.Second, Call: c})
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		time.Sleep(4 * time.Second)
		first := status(t, b)
		again, err := AcquireLease(ctx, b, LeaseRequest{Key: key, TTL: 10 * time.Second, Call: callOf(t, b, "alice\nreq-1", "ttl")})
		testkit.WantNil(t, "the same call", err)
		if again.Fence != first.Fence || again.Lease > 6*time.Second {
			t.Errorf("%+v, want fence %d and the rest of the lease", again, first.Fence)
		}
		_, err = AcquireLease(ctx, b, LeaseRequest{Key: key, TTL: 20 * time.Second, Call: callOf(t, b, "alice\nreq-1", "another ttl")})
		testkit.WantErr(t, err, ErrOtherBody)
		_, err = AcquireLease(ctx, b, LeaseRequest{Key: key, Call: callOf(t, b, "mallory\nreq-1", "ttl")})
		testkit.WantErr(t, err, joblock.ErrHeld)
		parked, err := Park(ctx, b, again.Token, "", time.Minute)
		testkit.WantNil(t, "Park", err)
		_, err = AcquireLease(ctx, a, LeaseRequest{Key: key, Call: c})
		testkit.WantErr(t, err, joblock.ErrBusy)

		r := callOf(t, a, "alice\nresume", "")
		store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 100}, faultstore.Resume)
		_, err = Resume(ctx, a, parked, r.Name(), joblock.TTL(10*time.Second))
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		store.Clear()
		_, err = Resume(ctx, b, parked, "", joblock.TTL(10*time.Second))
		testkit.WantErr(t, err, joblock.ErrBusy)
		time.Sleep(4 * time.Second)
		resumed, err := Resume(ctx, b, parked, r.Name(), joblock.TTL(10*time.Second))
		testkit.WantNil(t, "the same Resume", err)
		time.Sleep(resumed.Lease - time.Millisecond)
		if st := status(t, b); st.State != joblock.StateHeld || st.Fence != resumed.Fence {
			t.Errorf("trusted for %s, but %+v", resumed.Lease, st)
		}
		testkit.WantNil(t, "Release", Release(ctx, b, resumed.Token, ""))
		_, err = AcquireLease(ctx, b, LeaseRequest{Key: key, Call: c})
		testkit.WantErr(t, err, joblock.ErrAlreadyReleased) // a copy of the first request that comes late takes nothing
	})
}

// A call that waits is repeated elsewhere, and gets the lock there. The first copy then gives up, which costs the second
// copy nothing.
func TestFirstCopyOfAWaitingCallGivesUp(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, store *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		other, err := AcquireLease(ctx, b, LeaseRequest{Key: key, TTL: time.Minute})
		testkit.WantNil(t, "AcquireLease", err)
		c := callOf(t, a, "alice", "")
		actx, leave := context.WithCancel(ctx)
		first := make(chan error)
		go func() {
			_, err := AcquireLease(actx, a, LeaseRequest{Key: key, Wait: time.Hour, Call: c})
			first <- err
		}()
		synctest.Wait()
		if st := status(t, b); st.Waiters != 1 {
			t.Fatalf("%+v", st)
		}
		store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire) // so the second copy comes first
		testkit.WantNil(t, "Release", Release(ctx, b, other.Token, ""))
		lease, err := AcquireLease(ctx, b, LeaseRequest{Key: key, Wait: time.Hour, Call: c})
		testkit.WantNil(t, "the second copy", err)
		store.Clear()
		leave()
		<-first
		time.Sleep(2 * time.Second)
		if st := status(t, b); st.Fence != lease.Fence || st.State != joblock.StateHeld {
			t.Errorf("%+v, want fence %d", st, lease.Fence)
		}
		_, err = RenewLease(ctx, b, lease.Token, 0, 0)
		testkit.WantNil(t, "RenewLease", err)
		testkit.WantNil(t, "Release", Release(ctx, b, lease.Token, ""))
	})
}

// A call that stops waiting leaves no place behind.
func TestCallThatGivesUpLeavesTheLine(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, _ *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		other, err := AcquireLease(ctx, b, LeaseRequest{Key: key, TTL: time.Minute})
		testkit.WantNil(t, "AcquireLease", err)
		_, err = AcquireLease(ctx, a, LeaseRequest{Key: key, Wait: time.Second, Call: callOf(t, a, "alice", "")})
		testkit.WantErr(t, err, joblock.ErrTimeout)
		time.Sleep(time.Second)
		testkit.WantNil(t, "Release", Release(ctx, b, other.Token, ""))
		if st := status(t, b); st.Locked() || st.Waiters != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestLeaseOfALimit(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, _ *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		var leases []Grant
		for i := range 2 {
			lease, err := AcquireLease(ctx, a, LeaseRequest{Key: key, Limit: 2, TTL: 10 * time.Second})
			testkit.WantNil(t, fmt.Sprint("permit ", i), err)
			leases = append(leases, lease)
		}
		_, err := AcquireLease(ctx, b, LeaseRequest{Key: key, Limit: 2})
		testkit.WantErr(t, err, joblock.ErrHeld)
		got := make(chan error)
		go func() {
			_, err := AcquireLease(ctx, b, LeaseRequest{Key: key, Limit: 2, Wait: time.Minute})
			got <- err
		}()
		synctest.Wait()
		renewed, err := RenewLease(ctx, b, leases[0].Token, 0, 0)
		testkit.WantNil(t, "RenewLease", err)
		testkit.WantNil(t, "Release", Release(ctx, a, renewed.Token, ""))
		testkit.WantNil(t, "the third", <-got)
		_, err = AcquireLease(ctx, a, LeaseRequest{Key: key, Limit: 2, Call: callOf(t, a, "x", "")})
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
}

func TestBadLeasesAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, locks *joblock.Locker, _ *faultstore.Store) {
		ctx := t.Context()
		for name, err := range map[string]error{
			"nil Locker":    second(AcquireLease(ctx, nil, LeaseRequest{Key: key})),
			"no key":        second(AcquireLease(ctx, locks, LeaseRequest{})),
			"own key":       second(AcquireLease(ctx, locks, LeaseRequest{Key: "%keeper"})),
			"TTL":           second(AcquireLease(ctx, locks, LeaseRequest{Key: key, TTL: 1000 * time.Hour})),
			"wait":          second(AcquireLease(ctx, locks, LeaseRequest{Key: key, Wait: -1})),
			"limit":         second(AcquireLease(ctx, locks, LeaseRequest{Key: key, Limit: 257})),
			"holder":        second(AcquireLease(ctx, locks, LeaseRequest{Key: key, Holder: "a\nb"})),
			"call of nil":   second(NewCall(ctx, nil, "x", "")),
			"renew nothing": second(RenewLease(ctx, locks, joblock.Token{}, 0, 0)),
			"release":       Release(ctx, locks, joblock.Token{}, ""),
			"release nil":   Release(ctx, nil, newToken(t, "x"), ""),
			"reason":        Release(ctx, locks, newToken(t, "x"), strings.Repeat("x", 257)),
		} {
			if !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
	})
}
