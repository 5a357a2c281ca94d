package joblocktest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/joblocktest"
)

// both runs f with the clock of the machine and in a bubble. A Kit must work in both.
func both(t *testing.T, f func(t *testing.T, k *joblocktest.Kit)) {
	t.Run("clock of the machine", func(t *testing.T) { f(t, joblocktest.New(t, nil)) })
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, joblocktest.New(t, nil)) })
	})
}

func TestContextCarriesTheLocks(t *testing.T) {
	both(t, func(t *testing.T, k *joblocktest.Kit) {
		ctx := k.Context("a", "b")
		lock, ok := joblock.FromContext(ctx)
		if !ok || lock.Key() != "a" || lock.Err() != nil || lock.Fence() == 0 {
			t.Errorf("FromContext = %v, %v", lock, ok)
		}
		if b, ok := joblock.LocksFromContext(ctx).ByKey("b"); !ok || b.Err() != nil {
			t.Errorf("the lock on b is %v, %v", b, ok)
		}
		if ctx.Err() != nil {
			t.Errorf("the context has ended: %v", context.Cause(ctx))
		}
		for _, key := range []string{"a", "b"} {
			if st := k.Status(key); st.State != joblock.StateHeld {
				t.Errorf("%s is %s", key, st.State)
			}
		}
		type name struct{}
		inner := k.In(context.WithValue(ctx, name{}, "mine"), "c")
		if inner.Value(name{}) != "mine" || len(joblock.LocksFromContext(inner)) != 3 {
			t.Errorf("a context in another one has the locks %v", joblock.LocksFromContext(inner))
		}
	})
}

// At once, for a lock of the Kit's and for one that the code under test has taken.
func TestLoseEndsTheWork(t *testing.T) {
	both(t, func(t *testing.T, k *joblocktest.Kit) {
		ctx := k.Context("a")
		own, err := k.Locks.TryAcquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		ownCtx, stop := own.Context(t.Context())
		defer stop()
		for key, ctx := range map[string]context.Context{"a": ctx, "b": ownCtx} {
			start := time.Now()
			k.Lose(key)
			<-ctx.Done()
			// A renewal would tell the loss after ten seconds. Only the bubble's clock is fit to tell.
			if took := time.Since(start); took > time.Second && strings.HasSuffix(t.Name(), "bubble") {
				t.Errorf("%s: the context has ended after %s", key, took)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, joblock.ErrLost) {
				t.Errorf("%s: the cause is %v", key, cause)
			}
			if st := k.Status(key); st.Locked() {
				t.Errorf("%s is %s", key, st.State)
			}
		}
		if lock, _ := joblock.FromContext(ctx); !errors.Is(lock.Err(), joblock.ErrLost) {
			t.Errorf("Err is %v", lock.Err())
		}
	})
}

func TestHoldKeepsOthersOut(t *testing.T) {
	both(t, func(t *testing.T, k *joblocktest.Kit) {
		release := k.Hold("a")
		if _, err := k.Locks.TryAcquire(t.Context(), "a"); !errors.Is(err, joblock.ErrHeld) {
			t.Errorf("TryAcquire: %v", err)
		}
		release()
		if lock, err := k.Locks.TryAcquire(t.Context(), "a"); err != nil {
			t.Error(err)
		} else if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		k.Hold("b") // released by the end of the test
	})
}

func TestFailAndRepair(t *testing.T) {
	both(t, func(t *testing.T, k *joblocktest.Kit) {
		k.Context("held")
		repair := k.Fail()
		if _, err := k.Locks.TryAcquire(t.Context(), "a"); !errors.Is(err, joblock.ErrUnavailable) {
			t.Errorf("TryAcquire: %v", err)
		}
		if st := k.Status("held"); st.State != joblock.StateHeld {
			t.Errorf("held is %s", st.State)
		}
		k.Hold("b")
		k.Lose("b")
		repair()
		k.Context("a")
		k.Fail() // repaired by the end of the test
	})
}

func TestAdvanceEndsLeasesAndReservations(t *testing.T) {
	both(t, func(t *testing.T, k *joblocktest.Kit) {
		lock, err := k.Locks.TryAcquire(t.Context(), "parked")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Park(t.Context(), joblock.Reserve(time.Hour), joblock.ForJob("default/1")); err != nil {
			t.Fatal(err)
		}
		ctx := k.Context("held")
		k.Advance(59 * time.Minute)
		if st := k.Status("parked"); st.State != joblock.StateParked {
			t.Errorf("parked is %s after 59 minutes", st.State)
		}
		k.Advance(2 * time.Minute)
		for _, key := range []string{"parked", "held"} {
			if st := k.Status(key); st.Locked() {
				t.Errorf("%s is %s after an hour", key, st.State)
			}
			k.Hold(key)
		}
		held, _ := joblock.FromContext(ctx)
		if err := held.Renew(t.Context()); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("Renew: %v", err)
		}
	})
}

// fake is a testing.TB that ends like a test, to see what a Kit does then.
type fake struct {
	testing.TB
	cleanups []func()
	failed   string
}

func (f *fake) Helper()          {}
func (f *fake) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *fake) Errorf(format string, args ...any) {
	f.failed += fmt.Sprintf(format, args...) + "\n"
}
func (f *fake) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

// test runs f as a test of its own, and returns what it has failed with.
func (f *fake) test(body func()) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(f.cleanups) - 1; i >= 0; i-- {
				f.cleanups[i]()
			}
		}()
		body()
	}()
	<-done
	return f.failed
}

// What a test does wrong ends it, with a word that says what.
func TestMisuseEndsTheTest(t *testing.T) {
	for name, tt := range map[string]struct {
		body func(f *fake)
		says string
	}{
		"nothing":            {func(f *fake) { joblocktest.New(f, nil) }, ""},
		"a bad Config":       {func(f *fake) { joblocktest.New(f, &joblock.Config{TTL: -1}) }, "Config.TTL"},
		"a lock that is not": {func(f *fake) { joblocktest.New(f, nil).Lose("a") }, `the lock on "a" has no holder`},
		"a bad key":          {func(f *fake) { joblocktest.New(f, nil).Context("") }, "key"},
		"a busy key": {func(f *fake) {
			k := joblocktest.New(f, nil)
			k.Hold("a")
			k.Hold("a")
		}, "hold"},
		"a function that fails": {func(f *fake) {
			joblocktest.New(f, nil).Go(func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("the disk is full")
			})
		}, "the disk is full"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{TB: t}
			failed := f.test(func() { tt.body(f) })
			if (failed == "") != (tt.says == "") || !strings.Contains(failed, tt.says) {
				t.Errorf("the test has failed with %q, want %q", failed, tt.says)
			}
		})
	}
}

// Fail leaves no call of the store working.
func TestFailMakesEntriesFail(t *testing.T) {
	k := joblocktest.New(t, nil)
	repair := k.Fail()
	if _, err := k.Store.Entries(t.Context(), driver.EntriesRequest{}); err == nil {
		t.Error("Entries has worked during Fail")
	}
	repair()
	if _, err := k.Store.Entries(t.Context(), driver.EntriesRequest{}); err != nil {
		t.Errorf("Entries after the repair: %v", err)
	}
}
