package joblock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/jobs"
)

// grain is what stores round the time left up by.
const grain = time.Millisecond

// recorder collects events.
type recorder struct {
	mu     sync.Mutex
	events []event.Event
}

func (r *recorder) observe(e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// take returns the events since the last take, after all that can happen now.
func (r *recorder) take() []event.Event {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// want checks all events since the last call, in order, with all their fields. An error
// only has to match.
func (r *recorder) want(t testing.TB, want ...event.Event) {
	t.Helper()
	got := r.take()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d:\n%+v", len(got), len(want), got)
	}
	for i := range want {
		g, w := got[i], want[i]
		if !errors.Is(g.Err, w.Err) {
			t.Errorf("event %d, %s, has error %v, want %v", i, g.Kind, g.Err, w.Err)
		}
		if g.Err, w.Err = nil, nil; g != w {
			t.Errorf("event %d is\n%+v, want\n%+v", i, g, w)
		}
	}
}

// observed is a kit whose Locker, the holder "us", tells the recorder.
func observed(t *testing.T, cfg joblock.Config) (*kit, *recorder) {
	t.Helper()
	rec := new(recorder)
	cfg.Observer, cfg.Holder = rec.observe, "us"
	return newKit(t, &cfg), rec
}

// about is an event of lock at its present fence.
func about(kind event.Kind, lock *joblock.Lock) event.Event {
	return event.Event{Kind: kind, Key: lock.Key(), Owner: lock.Digest(), Fence: lock.Fence(), Holder: "us"}
}

// with returns e as change makes it.
func with(e event.Event, change func(*event.Event)) event.Event {
	change(&e)
	return e
}

func heldFor(e event.Event, d time.Duration) event.Event {
	return with(e, func(e *event.Event) { e.Held = d })
}

func failed(e event.Event, err error) event.Event {
	return with(e, func(e *event.Event) { e.Err = err })
}

func TestObserverGetsTheEventsOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		lock := k.acquire("key")
		rec.want(t, about(event.Acquired, lock))
		time.Sleep(time.Minute) // renewals emit no event
		wantNil(t, "Release", lock.Release(t.Context(), joblock.Reason("done")))
		rec.want(t, with(heldFor(about(event.Released, lock), time.Minute), func(e *event.Event) { e.Reason = "done" }))
		wantErr(t, lock.Release(t.Context()), joblock.ErrAlreadyReleased)
		rec.want(t)

		_, err := k.peer().TryAcquire(t.Context(), "key", joblock.NoRenew())
		wantNil(t, "TryAcquire", err)
		time.Sleep(time.Minute)
		next := k.acquire("key")
		rec.want(t, with(about(event.Acquired, next), func(e *event.Event) { e.Prior = driver.EndedLapsed }))
	})
}

func TestObserverGetsContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		theirs, err := k.peer().TryAcquire(t.Context(), "key", joblock.TTL(20*time.Second))
		wantNil(t, "TryAcquire", err)
		contended := func(d time.Duration) event.Event {
			return event.Event{Kind: event.Contended, Key: "key", Owner: digestOf(t, "me"), Holder: "peer", Remaining: d + grain}
		}
		me := joblock.Owner("me")
		_, err = k.locks.TryAcquire(t.Context(), "key", me)
		wantErr(t, err, joblock.ErrHeld)
		rec.want(t, contended(20*time.Second))
		_, err = k.locks.Acquire(t.Context(), "key", me, joblock.MaxWait(0))
		wantErr(t, err, joblock.ErrHeld)
		rec.want(t, contended(20*time.Second))

		w := k.wait(k.locks, "key", me)
		rec.want(t, contended(20*time.Second))
		time.Sleep(time.Minute) // it asks many times
		rec.want(t)
		wantNil(t, "Release", theirs.Release(t.Context()))
		lock := w.granted(onTime)
		rec.want(t, with(about(event.Acquired, lock), func(e *event.Event) {
			e.Waited, e.Prior = time.Minute, driver.EndedReleased
		}))
	})
}

// digestOf is what is shown of owner.
func digestOf(t testing.TB, owner string) string {
	lock := newKit(t.(*testing.T), nil).acquire("key", joblock.Owner(owner))
	return lock.Digest()
}

func TestObserverGetsWaitsThatEndWithoutTheLock(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(k *kit, w *waiting)
		err  error
	}{
		{"time is up", func(*kit, *waiting) {}, joblock.ErrTimeout},
		{"cancelled", func(_ *kit, w *waiting) { w.cancel(nil) }, context.Canceled},
		{"closed", func(k *kit, _ *waiting) { wantNil(k, "Close", k.locks.Close(k.Context())) }, joblock.ErrClosed},
		{"outage", func(k *kit, _ *waiting) { k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire) }, joblock.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, rec := observed(t, joblock.Config{})
				_, err := k.peer().TryAcquire(t.Context(), "key")
				wantNil(t, "TryAcquire", err)
				w := k.wait(k.locks, "key", joblock.MaxWait(time.Minute), joblock.Owner("me"))
				rec.take()
				time.Sleep(time.Second)
				c.end(k, w)
				wantErr(t, w.failed(2*time.Minute), c.err)
				rec.want(t, event.Event{
					Kind: event.GaveUp, Key: "key", Owner: digestOf(t, "me"), Holder: "peer", Waited: w.took, Err: c.err,
				})
			})
		})
	}
}

func TestObserverGetsAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{Reserve: time.Minute})
		of := func(kind event.Kind, lock *joblock.Lock) event.Event {
			return with(about(kind, lock), func(e *event.Event) { e.Job = "q/1" })
		}
		lock := k.acquire("key")
		rec.take()
		time.Sleep(time.Second)
		token := k.park(lock, joblock.ForJob("q/1"))
		rec.want(t, heldFor(of(event.Parked, lock), time.Second))
		wantErr(t, lock.Release(t.Context()), joblock.ErrNotOwner)
		rec.want(t)

		time.Sleep(time.Second)
		wantNil(t, "Reclaim", lock.Reclaim(t.Context()))
		rec.want(t, about(event.Reclaimed, lock)) // it is no job's any more
		time.Sleep(2 * time.Second)
		k.park(lock, joblock.ForJob("q/1"))
		rec.want(t, heldFor(of(event.Parked, lock), 2*time.Second))

		job := joblock.ForJob("q/1")
		resumed, err := k.locks.Resume(t.Context(), token, job, joblock.NoRenew())
		wantNil(t, "Resume", err)
		rec.want(t, of(event.Resumed, resumed))
		_, err = k.locks.Resume(t.Context(), token, job)
		wantErr(t, err, joblock.ErrBusy)
		rec.want(t, event.Event{
			Kind: event.Contended, Key: "key", Owner: lock.Digest(), Holder: "us", Job: "q/1", Remaining: joblock.DefaultTTL + grain,
		})
		_, err = k.locks.Resume(t.Context(), token, joblock.ForJob("q/2"))
		wantErr(t, err, joblock.ErrNotOwner)
		rec.want(t)

		time.Sleep(2 * time.Minute)
		rec.take() // it was lost
		again, err := k.locks.Resume(t.Context(), token, job)
		wantNil(t, "Resume", err)
		rec.want(t, with(of(event.Resumed, again), func(e *event.Event) { e.Recovered = true }))
	})
}

func TestObserverGetsWhoFreedALockFromOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		of := func(kind event.Kind, owner, reason string) event.Event {
			return event.Event{Kind: kind, Key: "key", Owner: owner, Reason: reason}
		}
		lock, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		wantErr(t, releaseOf(t.Context(), k.locks, "key", "someone else"), joblock.ErrNotOwner)
		rec.want(t)
		wantNil(t, "Release", releaseOf(t.Context(), k.locks, "key", lock.Owner()))
		rec.want(t, of(event.ReleasedByToken, lock.Digest(), ""))

		lock, err = k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		wantErr(t, k.locks.Release(t.Context(), lock.Token(), joblock.IfIdle(), joblock.Reason("over")), joblock.ErrBusy)
		rec.want(t)
		token := k.park(lock, joblock.ForJob("q/1"))
		wantNil(t, "Release", k.locks.Release(t.Context(), token, joblock.IfIdle(), joblock.Reason("over")))
		rec.want(t, of(event.Freed, lock.Digest(), "over"))

		for _, free := range []func() error{
			func() error {
				return jobs.Free(t.Context(), k.locks, jobs.Release{Key: "key", Job: "q/1", Reason: "over"})[0]
			},
			func() error {
				return k.locks.Release(t.Context(), lock.Token(), joblock.IfIdle(), joblock.Reason("over"), joblock.IfJob("q/1"))
			},
		} {
			lock, err = k.peer().TryAcquire(t.Context(), "key", joblock.Owner("job"))
			wantNil(t, "TryAcquire", err)
			wantErr(t, jobs.Free(t.Context(), k.locks, jobs.Release{Key: "key", Job: "q/1", Reason: "over"})[0], joblock.ErrNotOwner)
			k.park(lock, joblock.ForJob("q/1"))
			wantNil(t, "free", free())
		}
		freed := with(of(event.Freed, "", "over"), func(e *event.Event) { e.Job = "q/1" })
		rec.want(t, freed, with(freed, func(e *event.Event) { e.Owner = lock.Digest() }))

		_, err = k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key", joblock.Reason("stuck")))
		rec.want(t, of(event.Forced, "", "stuck"))
		wantErr(t, k.locks.ForceRelease(t.Context(), "key", joblock.Reason("stuck")), joblock.ErrNotFound)
		rec.want(t)
	})
}

func TestObserverThatPanicsBreaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{Observer: func(event.Event) { panic("no room for metrics") }})
		for range 3 {
			wantNil(t, "Release", k.acquire("key").Release(t.Context()))
		}
		lock := k.acquire("key", joblock.NoRenew())
		<-lock.Done() // signalled by the engine
		synctest.Wait()
		k.acquire("another")
		if n := strings.Count(k.logs.String(), "no room for metrics"); n != 1 {
			t.Errorf("the panic was logged %d times, want once:\n%s", n, k.logs)
		}
	})
}

// An Observer that calls back would wait forever for a lock that is held around it.
func TestObserverIsCalledWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k *kit
		var lock *joblock.Lock
		seen := make(map[event.Kind]bool)
		var mu sync.Mutex
		k = newKit(t, &joblock.Config{Observer: func(e event.Event) {
			mu.Lock()
			first := !seen[e.Kind]
			seen[e.Kind] = true
			mu.Unlock()
			if first && k != nil {
				_ = lock.Renew(context.Background())
				_ = lock.Release(context.Background())
				_, _ = k.locks.TryAcquire(context.Background(), "other")
			}
		}})
		everyEvent(k, &lock)
		everyEvent(k, &lock) // undisturbed by those called back before
		mu.Lock()
		defer mu.Unlock()
		if len(seen) != int(event.CleanupFailed) {
			t.Errorf("seen only %v", seen)
		}
	})
}

// everyEvent has each kind of event happen. It keeps the lock that they are about
// in lock.
func everyEvent(k *kit, lock **joblock.Lock) {
	ctx := k.Context()
	refuse := func(calls ...string) { k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, calls...) }
	get := func() *joblock.Lock {
		_ = k.peer().ForceRelease(ctx, "key") // it may be free already
		*lock = k.acquire("key")
		return *lock
	}
	wantNil(k, "Release", get().Release(ctx))

	theirs, err := k.peer().TryAcquire(ctx, "key")
	wantNil(k, "TryAcquire", err)
	_, err = k.locks.Acquire(ctx, "key", joblock.MaxWait(time.Second))
	wantErr(k, err, joblock.ErrTimeout)
	wantNil(k, "Release", releaseOf(ctx, k.locks, "key", theirs.Owner()))

	k.park(get())
	wantNil(k, "Reclaim", (*lock).Reclaim(ctx))
	token := k.park(get())
	*lock, err = k.locks.Resume(ctx, token)
	wantNil(k, "Resume", err)
	token = k.park(get())
	wantNil(k, "Release", k.locks.Release(ctx, token, joblock.IfIdle()))
	get()
	wantNil(k, "ForceRelease", k.locks.ForceRelease(ctx, "key"))

	get()
	refuse(faultstore.Renew)
	time.Sleep(25 * time.Second)
	k.store.Clear()
	time.Sleep(5 * time.Second)
	get()
	refuse(faultstore.Renew, faultstore.Release)
	time.Sleep(time.Minute)
	k.store.Clear()

	get()
	refuse(faultstore.Release)
	wantErr(k, (*lock).Release(ctx), joblock.ErrUnavailable)
	time.Sleep(time.Minute)
	k.store.Clear()
	synctest.Wait()
}
