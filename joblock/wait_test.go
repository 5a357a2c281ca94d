package joblock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

// No waiter is overtaken: not by TryAcquire, not by later callers, and not by the
// one that has just released.
func TestWaitersGetTheLockInTheOrderInWhichTheyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		k := newKit(t, &joblock.Config{Holder: "a"})
		lockers := []*joblock.Locker{k.locks, k.peer(), k.peer()}
		holder := k.acquire("key")
		var mu sync.Mutex
		var order []int
		turn := func(i int, lock *joblock.Lock) {
			mu.Lock()
			order = append(order, i)
			left := 2*n - len(order)
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			wantNil(t, "Release", lock.Release(context.Background()))
			if left == 0 {
				return
			}
			for _, locks := range lockers {
				if lock, err := locks.TryAcquire(t.Context(), "key"); lock != nil {
					t.Errorf("TryAcquire overtook %d waiters", left)
				} else {
					wantErr(t, err, joblock.ErrHeld)
				}
			}
		}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				for range 2 {
					lock, err := lockers[i%len(lockers)].Acquire(t.Context(), "key")
					if err != nil {
						t.Errorf("waiter %d: %v", i, err)
						return
					}
					turn(i, lock)
				}
			})
			synctest.Wait() // it has its place before the next one comes
		}
		k.wantWaiters("key", n)
		start := time.Now()
		wantNil(t, "Release", holder.Release(t.Context()))
		wg.Wait()
		for at, i := range order {
			if i != at%n {
				t.Fatalf("the order was %v", order)
			}
		}
		if took := time.Since(start); took != 2*n*10*time.Millisecond {
			t.Errorf("took %s: the lock was idle for %s", took, took-2*n*10*time.Millisecond)
		}
		k.wantState("key", joblock.StateFree)
		k.wantWaiters("key", 0)
	})
}

func TestOneSubscriptionServesAllWaitersOfALocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		for range 10 {
			wantNil(t, "Do", k.locks.Do(t.Context(), "key", func(context.Context) error { return nil }))
		}
		first := k.acquire("key")
		_, err := k.locks.Acquire(t.Context(), "key", joblock.MaxWait(0))
		wantErr(t, err, joblock.ErrHeld)
		if n := k.store.Calls(faultstore.Listen); n != 0 {
			t.Errorf("%d subscriptions, and no caller had to wait", n)
		}
		// All of them find that there is none yet.
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 100 * time.Millisecond}, faultstore.Listen)
		var ws []*waiting
		for i := range 100 {
			ws = append(ws, k.wait(k.locks, "key"))
			k.acquire(fmt.Sprint("other-", i))
			ws = append(ws, k.wait(k.locks, fmt.Sprint("other-", i)))
		}
		time.Sleep(time.Second)
		k.wantWaiters("key", 100)
		if n := k.store.Calls(faultstore.Listen); n != 1 {
			t.Errorf("%d subscriptions for 200 waiters on 101 keys, want 1", n)
		}
		wantNil(t, "Release", first.Release(t.Context()))
		served := 0 // whichever of them was the first to take its place
		for i := 0; i < len(ws); i += 2 {
			if ws[i].over() {
				served++
			}
		}
		if served != 1 {
			t.Errorf("%d of 100 waiters served by one release", served)
		}
		for _, w := range ws {
			w.cancel(nil)
			<-w.done
		}
		w := k.wait(k.locks, "key")
		if n := k.store.Calls(faultstore.Listen); n != 1 {
			t.Errorf("%d subscriptions after another wait, want the one", n)
		}
		w.cancel(nil)
		<-w.done
	})
}

// A hand-over costs one call to join and one to release, and wakes one waiter: the push has
// the grant.
func TestHandOverCostsTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		k := newKit(t, nil)
		holder := k.acquire("key")
		warm := k.wait(k.locks, "key") // the subscription is there
		warm.cancel(nil)
		<-warm.done
		synctest.Wait()
		before := k.store.Calls("")
		var ws []*waiting
		for range n {
			ws = append(ws, k.wait(k.locks, "key"))
		}
		if c := k.store.Calls("") - before; c != n {
			t.Errorf("%d calls for %d waiters to join, want %d", c, n, n)
		}
		before = k.store.Calls("") - k.store.Calls(faultstore.Push)
		wantNil(t, "Release", holder.Release(t.Context()))
		for i, w := range ws {
			lock := w.granted(0)
			if c := k.store.Calls("") - k.store.Calls(faultstore.Push) - before; c != i+1 {
				t.Fatalf("%d calls for %d hand-overs", c, i+1)
			}
			if got := k.store.Calls(faultstore.Push); got != i+1 {
				t.Fatalf("%d pushes for %d hand-overs", got, i+1)
			}
			wantNil(t, "Release", lock.Release(t.Context()))
		}
	})
}

// While nothing happens a waiter asks once per poll and costs one goroutine.
func TestIdleWaitersAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, minutes = 1000, 3
		k := newKit(t, nil)
		_, err := k.peer().TryAcquire(t.Context(), "key") // renewed there, and not counted here
		wantNil(t, "TryAcquire", err)
		synctest.Wait()
		idle := goroutines()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				_, err := k.locks.Acquire(ctx, "key")
				wantErr(t, err, context.Canceled)
			})
		}
		time.Sleep(time.Second)
		k.wantWaiters("key", n)
		if g := goroutines() - idle; g > n+10 {
			t.Errorf("%d goroutines for %d waiters", g, n)
		}
		before := k.store.Calls("")
		time.Sleep(minutes * time.Minute)
		calls := float64(k.store.Calls("")-before) / n / (minutes * 60)
		if calls > 0.5 || calls < 0.1 {
			t.Errorf("%.2f calls per waiter and second, want about 0.25", calls)
		}
		if renewals := k.store.Calls(faultstore.Renew); renewals != 0 {
			t.Errorf("%d renewals of nothing", renewals)
		}
		k.wantWaiters("key", n)
		cancel()
		wg.Wait()
		time.Sleep(time.Second)
		k.wantWaiters("key", 0)
		if g := goroutines() - idle; g > 1 {
			t.Errorf("%d goroutines are left", g)
		}
	})
}

func TestDoExcludesAcrossLockersUnderContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const goroutines, rounds = 100, 10
		k := newKit(t, nil)
		lockers := []*joblock.Locker{k.locks, k.peer(), k.peer()}
		var s section
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				for range rounds {
					if err := lockers[i%len(lockers)].Do(t.Context(), "key", func(ctx context.Context) error {
						lock, _ := joblock.FromContext(ctx)
						s.visit(lock.Fence(), time.Millisecond)
						return ctx.Err()
					}); err != nil {
						t.Errorf("Do: %v", err)
					}
				}
			})
		}
		start := time.Now()
		wg.Wait()
		s.check(t, goroutines*rounds)
		if took := time.Since(start); took > goroutines*rounds*time.Millisecond+joblock.DefaultPoll {
			t.Errorf("took %s: pushes get lost", took)
		}
		k.wantWaiters("key", 0)
	})
}

func TestAcquireAllWaitsInQueuesWithoutDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lockers := []*joblock.Locker{k.locks, k.peer(), k.peer()}
		sets := [][]string{{"a", "b", "c"}, {"c", "a"}, {"b", "c"}, {"c", "b", "a"}}
		var s section // every set has c
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				locks, err := lockers[i%len(lockers)].AcquireAll(t.Context(), sets[i%len(sets)], joblock.MaxWait(time.Minute))
				if err != nil {
					t.Errorf("AcquireAll: %v", err)
					return
				}
				c, _ := locks.ByKey("c")
				s.visit(c.Fence(), 10*time.Millisecond)
				wantNil(t, "Release", locks.Release(t.Context()))
			})
		}
		start := time.Now()
		wg.Wait()
		s.check(t, 40)
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s, want 400ms", took)
		}
		// Locks taken before the one that is not to be had are handed on.
		c := k.acquire("c")
		all := make(chan error, 1)
		go func() {
			_, err := k.locks.AcquireAll(t.Context(), sets[0], joblock.MaxWait(time.Second))
			all <- err
		}()
		synctest.Wait()
		next := k.wait(k.peer(), "a")
		wantErr(t, <-all, joblock.ErrTimeout)
		next.granted(onTime)
		wantNil(t, "Release", c.Release(t.Context()))
	})
}
