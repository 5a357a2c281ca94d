package joblock_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

func TestTwoLockersExcludeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lockers := []*joblock.Locker{k.locks, k.peer(), k.peer()}
		var mu sync.Mutex
		var inside, most, runs int
		var last int64
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				err := lockers[i%3].Do(context.Background(), "key", func(ctx context.Context) error {
					lock, _ := joblock.FromContext(ctx)
					mu.Lock()
					inside++
					runs++
					most = max(most, inside)
					if lock.Fence() <= last {
						t.Errorf("fence %d after %d", lock.Fence(), last)
					}
					last = lock.Fence()
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					inside--
					mu.Unlock()
					return nil
				})
				if err != nil {
					t.Errorf("Do: %v", err)
				}
			})
		}
		wg.Wait()
		if most != 1 || runs != 30 {
			t.Errorf("%d runs, %d at once", runs, most)
		}
	})
}

// A holder that was paused past its lease can neither extend nor free the lock of
// its successor.
func TestOldHandleCannotTouchItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		old := k.acquire("key", joblock.Owner("same"), joblock.NoRenew())
		k.StoreSkew = time.Minute // the old holder does not know yet
		next, err := k.peer().TryAcquire(t.Context(), "key", joblock.Owner("same"))
		wantNil(t, "TryAcquire", err)
		if next.Fence() <= old.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), old.Fence())
		}
		before := k.record("key")
		wantErr(t, old.Release(t.Context()), joblock.ErrLost)
		wantErr(t, old.Release(t.Context()), joblock.ErrAlreadyReleased)
		after := k.record("key")
		if after.Fence != before.Fence || after.Lease != before.Lease || after.State != joblock.StateHeld {
			t.Errorf("the record was %+v and is %+v", before, after)
		}
		wantNil(t, "Err", next.Err())
	})
}

func TestReleaseOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		ctx, stop := lock.Context(t.Context())
		defer stop()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		wantNil(t, "Release", lock.Release(gone, joblock.Reason("done early"))) // detached from its context
		err := lock.Release(t.Context())
		wantErr(t, err, joblock.ErrAlreadyReleased)
		var e *joblock.Error
		if !errors.As(err, &e) || e.Ended != driver.EndedReleased || e.Reason != "done early" {
			t.Errorf("error is %+v", e)
		}
		wantErr(t, lock.Renew(t.Context()), joblock.ErrAlreadyReleased)
		_, err = lock.Park(t.Context())
		wantErr(t, err, joblock.ErrAlreadyReleased)
		if st, err := testkit.One(k.locks.Status(t.Context(), "key")); err != nil || st.Reason != "done early" {
			t.Errorf("status %+v, %v", st, err)
		}
		time.Sleep(time.Minute)
		select {
		case <-lock.Done():
			t.Error("Done of a released lock is closed")
		case <-ctx.Done():
			t.Error("the context of a released lock is cancelled")
		default:
		}
	})
}

func TestReleaseAfterForceSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		wantNil(t, "ForceRelease", k.peer().ForceRelease(t.Context(), "key", joblock.Reason("deploy")))
		err := lock.Release(t.Context())
		wantErr(t, err, joblock.ErrAlreadyReleased)
		var e *joblock.Error
		if !errors.As(err, &e) || e.Ended != driver.EndedForced || e.Reason != "deploy" {
			t.Errorf("error is %+v", e)
		}
	})
}

func TestContextCarriesTheLockAndEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		outer := k.acquire("outer")
		inner := k.acquire("inner")
		type mine struct{}
		octx, ostop := outer.Context(context.WithValue(t.Context(), mine{}, 7))
		defer ostop()
		ictx, istop := inner.Context(octx)
		defer istop()
		child, cancel := context.WithCancel(ictx)
		defer cancel()

		if got, ok := joblock.FromContext(child); !ok || got != inner {
			t.Errorf("FromContext gives %v, want the innermost", got)
		}
		if got, ok := joblock.FromContext(octx); !ok || got != outer {
			t.Errorf("FromContext gives %v", got)
		}
		if _, ok := joblock.FromContext(t.Context()); ok {
			t.Error("a lock from nowhere")
		}
		if child.Value(mine{}) != 7 {
			t.Error("the parent's values are not passed on")
		}

		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "inner"))
		<-child.Done()
		wantErr(t, context.Cause(child), joblock.ErrLost)
		wantNil(t, "outer context", octx.Err())
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "outer"))
		<-octx.Done()
		wantErr(t, context.Cause(octx), joblock.ErrLost)
	})
}

func TestOuterLossEndsTheInnerContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		outer, inner := k.acquire("outer"), k.acquire("inner")
		octx, ostop := outer.Context(t.Context())
		defer ostop()
		ictx, istop := inner.Context(octx)
		defer istop()
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "outer"))
		<-ictx.Done()
		wantErr(t, context.Cause(ictx), joblock.ErrLost)
		wantNil(t, "Err of the inner lock", inner.Err())
	})
}

func TestContextFollowsItsParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		cause := errors.New("shutdown")
		parent, cancel := context.WithCancelCause(t.Context())
		ctx, stop := lock.Context(parent)
		defer stop()
		cancel(cause)
		if ctx.Err() == nil || context.Cause(ctx) != cause {
			t.Errorf("Err %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
		wantNil(t, "Err of the lock", lock.Err())
	})
}

func TestContextOfALockThatHasEndedIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lost := k.acquire("lost")
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "lost"))
		<-lost.Done()
		released := k.acquire("released")
		wantNil(t, "Release", released.Release(t.Context()))
		parked := k.acquire("parked")
		k.park(parked)
		for _, c := range []struct {
			lock *joblock.Lock
			want error
		}{
			{lost, joblock.ErrLost}, {released, joblock.ErrAlreadyReleased}, {parked, joblock.ErrNotOwner}, {nil, joblock.ErrInvalid},
		} {
			ctx, stop := c.lock.Context(t.Context())
			if ctx.Err() == nil {
				t.Errorf("the context of %v is alive", c.lock)
			}
			wantErr(t, context.Cause(ctx), c.want)
			stop()
		}
	})
}

// stop gives the context free: a lock that lives for months must not collect the
// contexts of everything that was ever done under it.
func TestStopUnregistersTheContext(t *testing.T) {
	k := newKit(t, nil)
	lock := k.acquire("key")
	collected := make(chan struct{})
	func() {
		big := new([1 << 10]byte)
		runtime.AddCleanup(big, func(c chan struct{}) { close(c) }, collected)
		type key struct{}
		ctx, stop := lock.Context(context.WithValue(context.Background(), key{}, big))
		stop()
		if context.Cause(ctx) != context.Canceled {
			t.Errorf("stop ends it with %v", context.Cause(ctx))
		}
	}()
	for { // forever if the lock keeps the stopped context
		runtime.GC()
		select {
		case <-collected:
			runtime.KeepAlive(lock)
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestConcurrentUseOfOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: time.Second})
		lock := k.acquire("key")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 200 {
					_ = lock.Renew(t.Context())
					_ = lock.Err()
					_, stop := lock.Context(t.Context())
					_, _ = lock.Fence(), lock.ExpiresAt()
					_, _ = lock.MarshalText()
					if _, err := lock.Park(t.Context()); err == nil {
						if err := lock.Reclaim(t.Context()); err != nil {
							t.Errorf("Reclaim: %v", err)
						}
					}
					stop()
					time.Sleep(7 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		wantNil(t, "Err", lock.Err())
		time.Sleep(time.Minute) // the engine cares for it after all that
		wantNil(t, "Err", lock.Err())
		wantNil(t, "Release", lock.Release(t.Context()))
	})
}

// How long the end of a lock is remembered goes by who may still ask for it.
func TestEndsThatNoCallerCanAskForAreRememberedBriefly(t *testing.T) {
	for name, tc := range map[string]struct {
		opts []joblock.AcquireOption
		do   func(k *kit, lock *joblock.Lock)
		long bool
	}{
		"plain":    {},
		"printed":  {do: func(_ *kit, lock *joblock.Lock) { _, _ = lock.String(), lock.Digest() }},
		"token":    {do: func(_ *kit, lock *joblock.Lock) { lock.Token() }, long: true},
		"owner":    {do: func(_ *kit, lock *joblock.Lock) { lock.Owner() }, long: true},
		"an owner": {opts: []joblock.AcquireOption{joblock.Owner("me")}, long: true},
		"retain":   {opts: []joblock.AcquireOption{joblock.Retain(joblock.DefaultRetain)}, long: true},
		"memo": {do: func(k *kit, lock *joblock.Lock) {
			wantNil(k, "memo.Write", memo.Write(k.Context(), lock, []byte("page 7")))
		}, long: true},
		"parked": {do: func(k *kit, lock *joblock.Lock) {
			k.park(lock)
			wantNil(k, "Reclaim", lock.Reclaim(k.Context()))
		}, long: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock := k.acquire("key", tc.opts...)
				if tc.do != nil {
					tc.do(k, lock)
				}
				time.Sleep(time.Second) // or the fence is ahead of the store's clock, and remembered for that
				wantNil(t, "Release", lock.Release(t.Context()))
				for _, after := range []struct {
					time  time.Duration
					known bool
				}{{2*joblock.DefaultCallTimeout - time.Second, true}, {2 * time.Second, tc.long}, {joblock.DefaultRetain, false}} {
					time.Sleep(after.time)
					if known := k.record("key").Fence != 0; known != after.known {
						t.Errorf("%s later the store remembers it: %t, want %t", after.time, known, after.known)
					}
				}
			})
		})
	}
}
