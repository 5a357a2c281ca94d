package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// What is told of a refusal is about the holder whose permit can be had first.
func TestRefusalTellsOfTheSoonest(t *testing.T) {
	for name, acquire := range map[string]func(*kit) error{
		"try": func(k *kit) error {
			_, err := k.locks.TryAcquire(k.Context(), "key", joblock.Limit(3))
			wantErr(k, err, joblock.ErrHeld)
			return err
		},
		"no wait": func(k *kit) error {
			_, err := k.locks.Acquire(k.Context(), "key", joblock.Limit(3), joblock.MaxWait(0))
			wantErr(k, err, joblock.ErrHeld)
			return err
		},
		"MaxWait": func(k *kit) error {
			_, err := k.locks.Acquire(k.Context(), "key", joblock.Limit(3), joblock.MaxWait(time.Second))
			wantErr(k, err, joblock.ErrTimeout)
			wantNotErr(k, err, context.DeadlineExceeded)
			return err
		},
		"deadline": func(k *kit) error {
			ctx, cancel := context.WithTimeout(k.Context(), time.Second)
			defer cancel()
			_, err := k.locks.Acquire(ctx, "key", joblock.Limit(3))
			wantErr(k, err, joblock.ErrTimeout, context.DeadlineExceeded)
			return err
		},
		"in line": func(k *kit) error {
			k.wait(k.peer(), "key", joblock.Limit(3))
			_, err := k.locks.Acquire(k.Context(), "key", joblock.Limit(3), joblock.MaxWait(time.Second))
			wantErr(k, err, joblock.ErrTimeout)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				synctest.Test(t, func(t *testing.T) {
					testkit.Seed(t, seed)
					k := newKit(t, nil)
					for i, ttl := range []time.Duration{20 * time.Second, 10 * time.Second, 30 * time.Second} {
						k.acquire("key", joblock.Limit(3), joblock.NoRenew(), joblock.TTL(ttl), joblock.Holder(fmt.Sprint("holder-", i)))
					}
					var e *joblock.Error
					if err := acquire(k); !errors.As(err, &e) || e.Key != "key" || e.Holder != "holder-1" || e.Remaining < 8*time.Second || e.Remaining > 10*time.Second+onTime {
						t.Errorf("%+v, want holder-1 and what is left of 10s", e)
					}
				})
			}
		})
	}
}

func TestLimitOutOfBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		ctx := t.Context()
		for _, n := range []int{0, -1, joblock.MaxLimit + 1} {
			_, err := k.locks.TryAcquire(ctx, "key", joblock.Limit(n))
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(err.Error(), fmt.Sprintf("Limit is %d, must be from 1 to 256", n)) {
				t.Errorf("Limit(%d): %v", n, err)
			}
			_, err = k.locks.LimitStatus(ctx, "key", n)
			wantErr(t, err, joblock.ErrInvalid)
		}
		longest := strings.Repeat("x", driver.MaxKeyBytes-len("%#gate"))
		_, err := k.locks.TryAcquire(ctx, longest+"x", joblock.Limit(2))
		wantErr(t, err, joblock.ErrInvalid)
		k.permits(longest, joblock.MaxLimit)
		_, err = k.locks.Acquire(ctx, longest, joblock.Limit(joblock.MaxLimit), joblock.MaxWait(time.Second))
		wantErr(t, err, joblock.ErrTimeout)
		_, err = k.locks.LimitStatus(ctx, "", 1)
		wantErr(t, err, joblock.ErrInvalid)
	})
}

// The usual acquire is two calls, and one that has to wait for one of n permits 3n
// more, of which n only read.
func TestWhatALimitCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		k := newKit(t, nil)
		peer := k.peer() // whose calls are not counted
		var w *waiting
		limit := joblock.Limit(n)
		held := joblock.Locks{k.acquire("key", limit)}
		k.acquire("busy")
		k.wait(k.locks, "busy").cancel(nil) // the subscription is there
		synctest.Wait()
		for _, c := range []struct {
			what                      string
			do                        func()
			reads, acquires, releases int
		}{
			{"free", func() {
				held = append(held, k.acquire("other", limit))
			}, 1, 1, 0},
			{"release", func() {
				wantNil(t, "Release", held[1].Release(t.Context()))
			}, 0, 0, 1},
			{"one left", func() {
				for range n - 1 {
					lock, err := peer.TryAcquire(t.Context(), "key", limit)
					wantNil(t, "TryAcquire", err)
					held = append(held, lock)
				}
			}, 0, 0, 0},
			{"refused", func() {
				_, err := k.locks.TryAcquire(t.Context(), "key", limit)
				wantErr(t, err, joblock.ErrHeld)
			}, 1 + n - 1, 1, 0},
			{"first in line", func() {
				w = k.wait(k.locks, "key", limit)
			}, 1 + n - 1, 1 + 1 + n, 0},
			{"granted", func() {
				wantNil(t, "Release", held[0].Release(t.Context()))
				w.granted(0)
			}, 0, 1, 1 + n - 1 + 1},
			{"second in line", func() {
				k.wait(peer, "key", limit)
				w = k.wait(k.locks, "key", limit)
			}, 1 + n, 1, 0},
			{"left", func() {
				w.cancel(nil)
				<-w.done
			}, 0, 0, 1},
		} {
			read, acquired, released := k.store.Items(faultstore.Inspect), k.store.Items(faultstore.Acquire), k.store.Items(faultstore.Release)
			c.do()
			synctest.Wait()
			read = k.store.Items(faultstore.Inspect) - read
			acquired = k.store.Items(faultstore.Acquire) - acquired
			released = k.store.Items(faultstore.Release) - released
			if read != c.reads || acquired != c.acquires || released != c.releases {
				t.Errorf("%s: %d reads, %d acquires, %d releases; want %d, %d, %d",
					c.what, read, acquired, released, c.reads, c.acquires, c.releases)
			}
		}
	})
}

// Events tell of a limit's waits as of a lock's, and of nothing that goes on behind.
func TestEventsOfALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		contended := make(map[string]bool) // by owner
		k := newKit(t, &joblock.Config{Observer: func(e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			line := fmt.Sprint(e.Kind, " ", strings.TrimRight(e.Key, "0123456789"), " ", e.Waited.Round(time.Second))
			if e.Kind == event.Contended || e.Kind == event.GaveUp {
				line += " " + e.Holder
			}
			got = append(got, line)
			waited := e.Kind == event.GaveUp || e.Kind == event.Acquired && e.Waited > 0
			if e.Kind == event.Contended {
				contended[e.Owner] = true
			} else if waited && !contended[e.Owner] {
				t.Errorf("%s: under another owner than the wait began", line)
			}
		}})
		want := func(what string, lines ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(got) // what two goroutines tell in one instant comes in either order
			if !slices.Equal(got, lines) {
				t.Errorf("%s:\n got %q\nwant %q", what, got, lines)
			}
			got = nil
		}
		limit := joblock.Limit(2)
		lock := k.acquire("key", limit)
		k.acquire("key", limit, joblock.Holder("soonest"), joblock.NoRenew(), joblock.TTL(20*time.Second))
		want("free", "acquired key%# 0s", "acquired key%# 0s")
		_, err := k.locks.TryAcquire(t.Context(), "key", limit)
		wantErr(t, err, joblock.ErrHeld)
		want("refused", "contended key 0s soonest")
		w := k.wait(k.locks, "key", limit, joblock.MaxWait(10*time.Second))
		next := k.wait(k.locks, "key", limit)
		want("in line", "contended key 0s soonest", "contended key 0s soonest")
		wantErr(t, w.failed(time.Minute), joblock.ErrTimeout)
		want("timed out", "gave up key 10s soonest")
		time.Sleep(5 * time.Second)
		wantNil(t, "Release", lock.Release(t.Context()))
		next.granted(0)
		want("granted", "acquired key%# 15s", "released key%# 0s")
	})
}
