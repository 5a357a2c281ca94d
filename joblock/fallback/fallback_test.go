package fallback_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/fallback"
	"github.com/joblock/toolkit/joblock/memo"
)

const warning = "the work runs under a lock of this process alone"

func TestStoreAway(t *testing.T) {
	for name, tc := range map[string]struct {
		away     fallback.Away
		ran      int
		warnings int
	}{
		"refuse":           {fallback.Refuse, 0, 0},
		"warn":             {fallback.Warn, 3, 3},
		"warn each minute": {fallback.WarnEachMinute, 3, 1},
		"proceed":          {fallback.Proceed, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, fallback.Config{Away: tc.away}, func(k *kit) {
				k.away()
				ran := 0
				for range 3 {
					begun := time.Now()
					err := k.guarded.Do(background, key, func(ctx context.Context) error {
						ran++
						if lock, _ := joblock.FromContext(ctx); !fallback.Local(lock) {
							t.Error("the lock is not local")
						}
						return nil
					})
					if tc.away == fallback.Refuse {
						testkit.WantErr(t, err, joblock.ErrUnavailable)
					} else {
						testkit.WantNil(t, "Do", err)
					}
					if d := time.Since(begun); d > 2*lockkit.CallTimeout {
						t.Errorf("Do took %s", d)
					}
				}
				if got := strings.Count(k.Logs.String(), warning); ran != tc.ran || got != tc.warnings {
					t.Errorf("%d ran with %d warnings, want %d with %d", ran, got, tc.ran, tc.warnings)
				}
				told := k.emitted(event.FellBack)
				if len(told) != tc.ran {
					t.Errorf("%d events, want %d", len(told), tc.ran)
				}
				for _, e := range told {
					if e.Key != key || e.Owner == "" || e.Fence == 0 || e.Waited == 0 || !errors.Is(e.Err, joblock.ErrUnavailable) {
						t.Errorf("got %+v", e)
					}
				}
			})
		})
	}
}

func TestWarningsOfAMinuteAreCounted(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.WarnEachMinute}, func(k *kit) {
		k.away()
		fall := func() {
			testkit.WantNil(t, "Do", k.guarded.Do(background, key, func(context.Context) error { return nil }, joblock.MaxWait(0)))
		}
		fall()
		fall()
		fall()
		time.Sleep(time.Minute)
		fall()
		if logs := k.Logs.String(); strings.Count(logs, warning) != 2 || !strings.Contains(logs, `skipped=2`) {
			t.Errorf("the log has\n%s", logs)
		}
	})
}

// The store goes away while a function runs under the store's lock: a call that falls back waits for that function.
func TestFallBackWaitsForTheHolderOfTheStoresLock(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		first := k.start()
		k.wantRunning(first, false)
		k.away()
		second := k.start()
		time.Sleep(2 * lockkit.TTL)
		k.wantWaiting(second) // although the first has lost the store's lock
		close(first.end)
		testkit.WantErr(t, <-first.err, joblock.ErrLost)
		k.wantRunning(second, true)
		k.finish(second)
		if len(k.emitted(event.FellBack)) != 1 {
			t.Errorf("got %+v", k.emitted(event.FellBack))
		}
	})
}

// The store comes back while a function runs under a local lock: the next call gets the store's lock, and waits.
func TestStoreComesBackUnderALocalLock(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		k.away()
		first := k.start()
		k.wantRunning(first, true)
		k.back()
		time.Sleep(2 * lockkit.TTL) // the local lock is renewed, and late grants are removed
		second, third := k.start(), k.start(joblock.MaxWait(time.Second))
		k.wantWaiting(second)
		k.WantState(key, driver.StateHeld)
		testkit.WantErr(t, <-third.err, joblock.ErrTimeout)
		k.finish(first)
		k.wantRunning(second, false)
		k.finish(second)
		k.WantFreeWithin(key, time.Second)
	})
}

// The store goes away again while a call that has the store's lock waits for a function under a local lock.
func TestStoresLockIsLostNextToALocalLock(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		k.away()
		first := k.start()
		k.wantRunning(first, true)
		k.back()
		time.Sleep(lockkit.TTL)
		second := k.start()
		k.wantWaiting(second)
		k.WantState(key, driver.StateHeld)
		k.away()
		testkit.WantErr(t, <-second.err, joblock.ErrLost)
		k.finish(first)
	})
}

// A call that has the store's lock, and does not get the local lock in time, gives the store's lock back.
func TestStoresLockIsGivenBack(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		k.away()
		first := k.start()
		k.wantRunning(first, true)
		k.back()
		time.Sleep(lockkit.TTL)
		testkit.WantErr(t, k.guarded.Do(background, key, nothing, joblock.MaxWait(0)), joblock.ErrHeld)
		k.WantState(key, driver.StateFree)
		k.away()
		testkit.WantErr(t, k.guarded.Do(background, key, nothing, joblock.MaxWait(0)), joblock.ErrHeld, joblock.ErrUnavailable)
		k.back()
		k.finish(first)
	})
}

// Outages come and go while several goroutines work: no two functions run at a time, under either kind of lock.
func TestOneFunctionAtATimeOverOutages(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Proceed}, func(k *kit) {
		var running, overlaps, local, remote atomic.Int32
		ctx, stop := context.WithTimeout(background, 20*time.Minute)
		defer stop()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				for ctx.Err() == nil {
					_ = k.guarded.Do(ctx, key, func(ctx context.Context) error {
						if running.Add(1) != 1 {
							overlaps.Add(1)
						}
						if lock, _ := joblock.FromContext(ctx); fallback.Local(lock) {
							local.Add(1)
						} else {
							remote.Add(1)
						}
						time.Sleep(jitter.N(20 * time.Second)) // some ignore the loss of their lock
						running.Add(-1)
						return nil
					})
					time.Sleep(jitter.N(3 * time.Second))
				}
			})
		}
		for ctx.Err() == nil {
			time.Sleep(jitter.N(90 * time.Second))
			k.away()
			time.Sleep(jitter.N(60 * time.Second))
			k.back()
		}
		all.Wait()
		t.Logf("%d ran under local locks, %d under the store's", local.Load(), remote.Load())
		if overlaps.Load() > 0 || local.Load() == 0 || remote.Load() == 0 {
			t.Errorf("%d overlaps; %d ran under local locks, %d under the store's", overlaps.Load(), local.Load(), remote.Load())
		}
	})
}

func TestLocalLock(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		var before int64
		testkit.WantNil(t, "Do", k.guarded.Do(background, key, func(ctx context.Context) error {
			lock, _ := joblock.FromContext(ctx)
			before = lock.Fence()
			if fallback.Local(lock) {
				t.Error("a lock of the store is local")
			}
			return nil
		}))
		k.away()
		last := int64(0)
		var token joblock.Token
		for range 2 {
			testkit.WantNil(t, "Do", k.guarded.Do(background, key, func(ctx context.Context) error {
				lock, _ := joblock.FromContext(ctx)
				if f := lock.Fence(); f <= last || f >= before {
					t.Errorf("fence %d, want one above %d and below %d", f, last, before)
				}
				last, token = lock.Fence(), lock.Token()
				for range 2 {
					_, err := lock.Park(ctx)
					wantText(t, err, "local to this process", key)
					wantText(t, memo.Write(ctx, lock, []byte("x")), "local to this process", key)
					testkit.WantNil(t, "Renew", lock.Renew(ctx))
				}
				time.Sleep(3 * lockkit.TTL)
				return lock.Err()
			}))
		}
		_, err := k.Locks.Resume(background, token)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		k.back()
		_, err = k.Locks.Resume(background, token)
		testkit.WantErr(t, err, joblock.ErrNotFound)
	})
}

// A lock of the store that is lost while its function runs does not become a local lock.
func TestLossIsNoFallBack(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		err := k.guarded.Do(background, key, func(ctx context.Context) error {
			k.away()
			<-ctx.Done()
			return context.Cause(ctx)
		})
		testkit.WantErr(t, err, joblock.ErrLost)
		if told := k.emitted(event.FellBack); len(told) > 0 {
			t.Errorf("got %+v", told)
		}
	})
}

func TestNoFallBack(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn, Overrun: time.Hour}, func(k *kit) {
		peer, err := k.Peer().TryAcquire(background, key)
		testkit.WantNil(t, "TryAcquire", err)
		never := func(context.Context) error { t.Error("the function ran"); return nil }
		testkit.WantErr(t, k.guarded.Do(background, key, never, joblock.MaxWait(0)), joblock.ErrHeld)
		testkit.WantErr(t, k.guarded.Do(background, key, never, joblock.MaxWait(time.Second)), joblock.ErrTimeout)
		testkit.WantNil(t, "Release", peer.Release(background))

		testkit.WantErr(t, k.guarded.Do(background, "", never), joblock.ErrInvalid)
		testkit.WantErr(t, k.guarded.Do(background, key, nil), joblock.ErrInvalid)
		k.Store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Acquire)
		ctx, stop := context.WithTimeout(background, time.Second)
		defer stop()
		testkit.WantErr(t, k.guarded.Do(ctx, key, never), context.DeadlineExceeded)
		k.back()
		if told := k.emitted(event.FellBack); len(told) > 0 {
			t.Errorf("got %+v", told)
		}
	})
}

// The lock of a job is the store's lock: the function hands the lock over as under Locker.Do.
func TestStoresLockIsHandedOver(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		testkit.WantNil(t, "Do", k.guarded.Do(background, key, func(ctx context.Context) error {
			lock, _ := joblock.FromContext(ctx)
			_, err := lock.Park(ctx)
			return err
		}))
		k.WantState(key, driver.StateParked)
	})
}

func TestOverrun(t *testing.T) {
	const most = 5 * time.Minute
	bubble(t, fallback.Config{Away: fallback.Warn, Overrun: most}, func(k *kit) {
		for _, tc := range []struct {
			name string
			runs time.Duration
			away bool
			told int
		}{
			{"in time", most - time.Second, false, 0},
			{"too long", 3 * most, false, 1},
			{"too long under a local lock", 3 * most, true, 1},
		} {
			before := len(k.emitted(event.Overran))
			if tc.away {
				k.away()
			}
			testkit.WantNil(t, tc.name, k.guarded.Do(background, key, func(ctx context.Context) error {
				if tc.runs > most {
					time.Sleep(most - time.Nanosecond)
					synctest.Wait()
					if n := len(k.emitted(event.Overran)) - before; n > 0 {
						t.Errorf("%s: reported before the time", tc.name)
					}
					time.Sleep(time.Nanosecond)
					synctest.Wait()
					if n := len(k.emitted(event.Overran)) - before; n != 1 {
						t.Errorf("%s: reported %d times at the time", tc.name, n)
					}
				}
				time.Sleep(tc.runs - most)
				return nil
			}))
			time.Sleep(2 * most)
			told := k.emitted(event.Overran)[before:]
			if len(told) != tc.told {
				t.Errorf("%s: got %+v, want %d", tc.name, told, tc.told)
			}
			for _, e := range told {
				if e.Key != key || e.Held != most || e.Fence == 0 || e.Owner == "" {
					t.Errorf("%s: got %+v", tc.name, e)
				}
			}
		}
		if n := strings.Count(k.Logs.String(), "still running after Config.Overrun"); n != 2 {
			t.Errorf("%d warnings in\n%s", n, k.Logs.String())
		}
	})
}

func TestNewRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		for _, cfg := range []fallback.Config{{Away: fallback.Proceed + 1}, {Overrun: -1}, {Away: fallback.Proceed}} {
			_, err := fallback.New(k.Locks, &cfg)
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
		_, err := fallback.New(nil, nil)
		testkit.WantErr(t, err, joblock.ErrInvalid)
		var none *fallback.Locker
		for _, locks := range []*fallback.Locker{none, new(fallback.Locker)} {
			testkit.WantErr(t, locks.Do(background, key, nothing), joblock.ErrInvalid)
			testkit.WantErr(t, locks.Close(background), joblock.ErrInvalid)
		}
		if fallback.Local(nil) {
			t.Error("a nil lock is local")
		}
	})
}

func TestClose(t *testing.T) {
	bubble(t, fallback.Config{Away: fallback.Warn}, func(k *kit) {
		k.away()
		err := k.guarded.Do(background, key, func(ctx context.Context) error {
			testkit.WantNil(t, "Close", k.guarded.Close(background))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		testkit.WantErr(t, err, joblock.ErrLost)
		err = k.guarded.Do(background, key, nothing)
		testkit.WantErr(t, err, joblock.ErrClosed)
		testkit.WantNotErr(t, err, joblock.ErrUnavailable) // the store was not asked
		k.back()
		testkit.WantNil(t, "Do", k.Locks.Do(background, key, nothing))
	})
}

func nothing(context.Context) error { return nil }

// wantText checks that err is ErrInvalid and has each of the texts.
func wantText(t *testing.T, err error, texts ...string) {
	t.Helper()
	testkit.WantErr(t, err, joblock.ErrInvalid)
	for _, text := range texts {
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %q, without %q", err, text)
		}
	}
}
