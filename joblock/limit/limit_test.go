package limit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// room is what a limit guards: it notices when there are too many inside, two with
// one permit, and fences that do not grow.
type room struct {
	mu      sync.Mutex
	inside  map[string]bool
	fences  map[string]int64
	most    int
	entries int
	wrong   []string
}

func (r *room) enter(lock *joblock.Lock) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside == nil {
		r.inside, r.fences = make(map[string]bool), make(map[string]int64)
	}
	key, fence := lock.Key(), lock.Fence()
	if r.inside[key] {
		r.wrong = append(r.wrong, "two have "+key)
	}
	if fence <= r.fences[key] {
		r.wrong = append(r.wrong, fmt.Sprintf("%s: fence %d after %d", key, fence, r.fences[key]))
	}
	r.inside[key], r.fences[key] = true, fence
	r.entries++
	r.most = max(r.most, len(r.inside))
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.inside, key)
	}
}

// check fails the test unless there were n stays, up to most at once.
func (r *room) check(t testing.TB, n, most int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.wrong {
		t.Error(w)
	}
	if r.entries != n || r.most != most {
		t.Errorf("%d stays, at most %d at once; want %d, at most %d", r.entries, r.most, n, most)
	}
}

// permits takes all n permits of key.
func (k *kit) permits(key string, n int) joblock.Locks {
	k.Helper()
	var locks joblock.Locks
	for range n {
		locks = append(locks, k.take(n, key))
	}
	return locks
}

// wantLimit checks how many permits of key are taken and how many wait.
func (k *kit) wantLimit(key string, n, taken, waiting int) {
	k.Helper()
	synctest.Wait()
	st, err := limit.New(k.Locks, n).Status(context.Background(), key)
	wantNil(k, "Status", err)
	if st.Taken != taken || st.Waiters != waiting {
		k.Errorf("%d permits taken and %d waiting, want %d and %d", st.Taken, st.Waiters, taken, waiting)
	}
}

// wantNoPlaces checks that the queues of the permits are empty.
func (k *kit) wantNoPlaces(key string, n int) {
	k.Helper()
	synctest.Wait()
	st, err := limit.New(k.Locks, n).Status(context.Background(), key)
	wantNil(k, "Status", err)
	for _, permit := range st.Permits {
		if permit.Waiters != 0 {
			k.Errorf("%d are in the queue of %s", permit.Waiters, permit.Key)
		}
	}
}

func TestNeverMoreThanTheLimit(t *testing.T) {
	for _, c := range []struct{ most, waiters, rounds int }{{1, 20, 5}, {3, 40, 5}, {8, 1000, 1}} {
		t.Run(fmt.Sprintf("%d waiters for %d", c.waiters, c.most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lockers := []*joblock.Locker{k.Locks, k.Peer(), k.Peer()}
				var room room
				var wg sync.WaitGroup
				for i := range c.waiters {
					wg.Go(func() {
						for range c.rounds {
							lock, err := limit.New(lockers[i%len(lockers)], c.most).Acquire(t.Context(), "key")
							if err != nil {
								t.Errorf("waiter %d: %v", i, err)
								return
							}
							leave := room.enter(lock)
							time.Sleep(time.Duration(1+i%7) * 10 * time.Millisecond)
							leave()
							wantNil(t, "Release", lock.Release(t.Context()))
						}
					})
				}
				wg.Wait()
				room.check(t, c.waiters*c.rounds, c.most)
				k.wantLimit("key", c.most, 0, 0)
				k.wantNoPlaces("key", c.most)
			})
		})
	}
}

// Waiters of three processes get permits in the order in which they came, each at
// the moment one is given back, and a caller that only tries does not overtake them.
func TestPermitsAreGivenInTheOrderInWhichWaitersCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, n = 3, 60
		k := newKit(t, nil)
		lockers := []*joblock.Locker{k.Locks, k.Peer(), k.Peer()}
		held := k.permits("key", most)
		var ws []*lockkit.Waiting
		for i := range n {
			ws = append(ws, k.Wait(limit.New(lockers[i%len(lockers)], most), "key"))
		}
		k.wantLimit("key", most, most, n)
		for i, w := range ws {
			wantNil(t, "Release", held[0].Release(t.Context()))
			for _, locks := range lockers {
				_, err := limit.New(locks, most).TryAcquire(t.Context(), "key")
				wantErr(t, err, joblock.ErrHeld)
			}
			held = append(held[1:], w.Granted(0))
			if i+1 < n && ws[i+1].Over() {
				t.Fatalf("waiter %d got a permit before one was given back: %v", i+1, ws[i+1].Err)
			}
		}
		k.wantLimit("key", most, most, 0)
	})
}

// Permits that are given back together go to as many waiters, whichever of them the
// first one is granted first.
func TestPermitsFreedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		k := newKit(t, nil)
		held := k.permits("key", most)
		var ws []*lockkit.Waiting
		for range most + 2 {
			ws = append(ws, k.Wait(limit.New(k.Locks, most), "key"))
		}
		var wg sync.WaitGroup
		for _, lock := range held {
			wg.Go(func() { wantNil(t, "Release", lock.Release(t.Context())) })
		}
		wg.Wait()
		for _, w := range ws[:most] {
			w.Granted(lockkit.OnTime)
		}
		if ws[most].Over() || ws[most+1].Over() {
			t.Error("more permits than there are")
		}
		k.wantLimit("key", most, most, 2)
	})
}

// While nodes with another limit are about there are as many holders as the larger
// limit says.
func TestLimitsOfTwoSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.permits("key", 2)
		_, err := limit.New(k.Locks, 2).TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)
		lock := k.take(4, "key")
		last := k.take(4, "key")
		_, err = limit.New(k.Locks, 4).TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)

		w := k.Wait(limit.New(k.Peer(), 2), "key")
		wantNil(t, "Release", lock.Release(t.Context()))
		wantNil(t, "Release", last.Release(t.Context()))
		if w.Over() {
			t.Error("a third holder under a limit of two")
		}
		k.wantLimit("key", 4, 2, 1)
	})
}

// A limit knows nothing of a lock on its key, nor of another limit.
func TestKeysOfLimitsDoNotMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.Acquire("key")
		k.take(1, "key")
		k.Acquire(joblock.Key("key%#1"))
		lock := k.take(2, "other")
		if key := lock.Key(); key != "other%#1" && key != "other%#2" {
			t.Errorf("the permit's key is %q", key)
		}
	})
}

func TestPermitIsALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		ctx := t.Context()
		lock, err := limit.New(k.Locks, 1).Acquire(ctx, "key", joblock.TTL(time.Minute), joblock.Holder("me"), joblock.Owner("mine"))
		wantNil(t, "Acquire", err)
		if id := (*core.Lock)(lock); id.TTL() != time.Minute || id.Owner() != "mine" || k.Record(lock.Key()).Holder != "me" {
			t.Errorf("the options are lost: %s, %q", id.TTL(), k.Record(lock.Key()).Holder)
		}
		time.Sleep(time.Hour) // it is renewed
		token := k.park(lock, joblock.ForJob("q/1"))
		_, err = limit.New(k.Locks, 1).TryAcquire(ctx, "key")
		wantErr(t, err, joblock.ErrHeld)
		var e *joblock.Error
		if errors.As(err, &e); e.Key != "key" || e.Job != "q/1" || e.Remaining.Round(time.Second) != lockkit.Reserve {
			t.Errorf("refused with %+v", e)
		}
		resumed, err := k.Peer().Resume(ctx, token, joblock.ForJob("q/1"))
		wantNil(t, "Resume", err)
		if resumed.Key() != lock.Key() || resumed.Fence() <= lock.Fence() {
			t.Errorf("resumed %v, was %v", resumed, lock)
		}
		wantNil(t, "Release", resumed.Release(ctx))

		wantErr(t, limit.New(k.Locks, 1).Do(ctx, "key", func(ctx context.Context) error {
			permit, _ := joblock.FromContext(ctx)
			wantNil(t, "ForceRelease", k.Locks.ForceRelease(ctx, permit.Key(), joblock.Reason("test")))
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), joblock.ErrLost)
			return nil
		}), joblock.ErrLost)
		all, err := limit.New(k.Locks, 1).AcquireAll(ctx, []string{"b", "a"})
		wantNil(t, "AcquireAll", err)
		if len(all) != 2 || all[0].Key() != "b%#1" || all[1].Key() != "a%#1" {
			t.Errorf("AcquireAll gave %v", all)
		}
	})
}
