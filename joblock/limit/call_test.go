package limit_test

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
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/limit"
)

// A refusal names the holder whose permit is free first.
func TestRefusalNamesTheSoonest(t *testing.T) {
	for name, acquire := range map[string]func(*kit) error{
		"try": func(k *kit) error {
			_, err := limit.New(k.Locks, 3).TryAcquire(k.Context(), "key")
			wantErr(k, err, joblock.ErrHeld)
			return err
		},
		"no wait": func(k *kit) error {
			_, err := limit.New(k.Locks, 3).Acquire(k.Context(), "key", joblock.MaxWait(0))
			wantErr(k, err, joblock.ErrHeld)
			return err
		},
		"MaxWait": func(k *kit) error {
			_, err := limit.New(k.Locks, 3).Acquire(k.Context(), "key", joblock.MaxWait(time.Second))
			wantErr(k, err, joblock.ErrTimeout)
			wantNotErr(k, err, context.DeadlineExceeded)
			return err
		},
		"deadline": func(k *kit) error {
			ctx, cancel := context.WithTimeout(k.Context(), time.Second)
			defer cancel()
			_, err := limit.New(k.Locks, 3).Acquire(ctx, "key")
			wantErr(k, err, joblock.ErrTimeout, context.DeadlineExceeded)
			return err
		},
		"in line": func(k *kit) error {
			k.Wait(limit.New(k.Peer(), 3), "key")
			_, err := limit.New(k.Locks, 3).Acquire(k.Context(), "key", joblock.MaxWait(time.Second))
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
						k.take(3, "key", joblock.NoRenew(), joblock.TTL(ttl), joblock.Holder(fmt.Sprint("holder-", i)))
					}
					var e *joblock.Error
					if err := acquire(k); !errors.As(err, &e) || e.Key != "key" || e.Holder != "holder-1" || e.Remaining < 8*time.Second || e.Remaining > 10*time.Second+lockkit.OnTime {
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
		for _, n := range []int{0, -1, limit.Max + 1} {
			_, err := limit.New(k.Locks, n).TryAcquire(ctx, "key")
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(err.Error(), fmt.Sprintf("Limit is %d, must be from 1 to 256", n)) {
				t.Errorf("Limit(%d): %v", n, err)
			}
			_, err = limit.New(k.Locks, n).Status(ctx, "key")
			wantErr(t, err, joblock.ErrInvalid)
		}
		longest := strings.Repeat("x", driver.MaxKeyBytes-len("%#gate"))
		_, err := limit.New(k.Locks, 2).TryAcquire(ctx, longest+"x")
		wantErr(t, err, joblock.ErrInvalid)
		k.permits(longest, limit.Max)
		_, err = limit.New(k.Locks, limit.Max).Acquire(ctx, longest, joblock.MaxWait(time.Second))
		wantErr(t, err, joblock.ErrTimeout)
		_, err = limit.New(k.Locks, 1).Status(ctx, "")
		wantErr(t, err, joblock.ErrInvalid)
	})
}

func TestLimitThatWasNotMadeByNew(t *testing.T) {
	ctx := t.Context()
	for name, l := range map[string]*limit.Limit{"nil": nil, "zero": {}, "of no Locker": limit.New(nil, 3)} {
		_, try := l.TryAcquire(ctx, "key")
		_, acquire := l.Acquire(ctx, "key")
		_, all := l.AcquireAll(ctx, []string{"key"})
		_, status := l.Status(ctx, "key")
		do := l.Do(ctx, "key", func(context.Context) error { return nil })
		for call, err := range map[string]error{"TryAcquire": try, "Acquire": acquire, "AcquireAll": all, "Status": status, "Do": do} {
			if !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %s: %v, want ErrInvalid", name, call, err)
			}
		}
	}
}

// The usual acquire is two calls, and one that has to wait for one of n permits 3n
// more, of which n only read.
func TestWhatALimitCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		k := newKit(t, nil)
		peer := k.Peer() // whose calls are not counted
		var w *lockkit.Waiting
		mine, theirs := limit.New(k.Locks, n), limit.New(peer, n)
		held := joblock.Locks{k.take(n, "key")}
		k.Acquire("busy")
		k.Wait(k.Locks, "busy").Cancel(nil) // the subscription is there
		synctest.Wait()
		for _, c := range []struct {
			what                      string
			do                        func()
			reads, acquires, releases int
		}{
			{"free", func() {
				held = append(held, k.take(n, "other"))
			}, 1, 1, 0},
			{"release", func() {
				wantNil(t, "Release", held[1].Release(t.Context()))
			}, 0, 0, 1},
			{"one left", func() {
				for range n - 1 {
					lock, err := theirs.TryAcquire(t.Context(), "key")
					wantNil(t, "TryAcquire", err)
					held = append(held, lock)
				}
				_, err := theirs.TryAcquire(t.Context(), "key")
				wantErr(t, err, joblock.ErrHeld) // by now the number of permits is stored
			}, 0, 0, 0},
			{"refused", func() {
				_, err := mine.TryAcquire(t.Context(), "key")
				wantErr(t, err, joblock.ErrHeld)
			}, 1 + n - 1 + 1, 1, 0},
			{"first in line", func() {
				w = k.Wait(mine, "key")
			}, 1 + n - 1 + 1, 1 + 1 + n, 0},
			{"granted", func() {
				wantNil(t, "Release", held[0].Release(t.Context()))
				w.Granted(0)
			}, 0, 0, 1 + n - 1 + 1}, // the push has the grant
			{"second in line", func() {
				k.Wait(theirs, "key")
				w = k.Wait(mine, "key")
			}, 1 + n + 1, 1, 0},
			{"left", func() {
				w.Cancel(nil)
				<-w.Done
			}, 0, 0, 1},
		} {
			read, acquired, released := k.Store.Items(faultstore.Inspect), k.Store.Items(faultstore.Acquire), k.Store.Items(faultstore.Release)
			c.do()
			synctest.Wait()
			read = k.Store.Items(faultstore.Inspect) - read
			acquired = k.Store.Items(faultstore.Acquire) - acquired
			released = k.Store.Items(faultstore.Release) - released
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
				t.Errorf("%s: under an owner other than that with which the wait began", line)
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
		two := limit.New(k.Locks, 2)
		lock := k.take(2, "key")
		k.take(2, "key", joblock.Holder("soonest"), joblock.NoRenew(), joblock.TTL(20*time.Second))
		want("free", "acquired key%# 0s", "acquired key%# 0s")
		_, err := two.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)
		want("refused", "contended key 0s soonest")
		w := k.Wait(two, "key", joblock.MaxWait(10*time.Second))
		next := k.Wait(two, "key")
		want("in line", "contended key 0s soonest", "contended key 0s soonest")
		wantErr(t, w.Failed(time.Minute), joblock.ErrTimeout)
		want("timed out", "gave up key 10s soonest")
		time.Sleep(5 * time.Second)
		wantNil(t, "Release", lock.Release(t.Context()))
		next.Granted(0)
		want("granted", "acquired key%# 15s", "released key%# 0s")
	})
}
