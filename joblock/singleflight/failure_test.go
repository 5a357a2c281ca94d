package singleflight_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/singleflight"
)

func TestFlightDoesNotKeepErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		c := computer{took: time.Second, err: errors.New("mine")}
		var wg sync.WaitGroup
		wg.Go(func() {
			n, err := singleflight.Do(t.Context(), k.Locks, "key", time.Minute, c.run)
			wantErr(t, err, c.err)
			if n != 0 {
				t.Errorf("got %d with an error", n)
			}
		})
		synctest.Wait()
		ok := computer{took: time.Second}
		for range 3 {
			wg.Go(func() { ok.fly(t, k.Peer(), time.Minute) })
		}
		wg.Wait()
		if n := ok.runs.Load(); n != 1 {
			t.Errorf("%d of those who waited computed, want 1", n)
		}
	})
}

// Neither a panic nor the end of the goroutine leaves the key locked.
func TestFlightReleasesHoweverTheFunctionEnds(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				var kept context.Context
				var recovered any
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { recovered = recover() }()
					_, _ = singleflight.Do(t.Context(), k.Locks, "key", time.Minute, func(ctx context.Context) (int, error) {
						kept = ctx
						time.Sleep(time.Second)
						end()
						return 0, nil
					})
					t.Error("returned")
				})
				synctest.Wait()
				var c computer
				start := time.Now()
				c.fly(t, k.Peer(), time.Minute)
				if d := time.Since(start); d != time.Second {
					t.Errorf("the next had it after %s, want 1s", d)
				}
				wg.Wait()
				if name == "panic" && recovered != "boom" {
					t.Errorf("recovered %v", recovered)
				}
				if kept.Err() == nil {
					t.Error("the function's context lives on")
				}
			})
		})
	}
}

func TestFlightWithoutItsLockHasNoResult(t *testing.T) {
	mine := errors.New("mine")
	for name, tt := range map[string]struct {
		lose func(k *kit)
		err  error
	}{
		"forced":                  {func(k *kit) { wantNil(k, "ForceRelease", k.Peer().ForceRelease(k.Context(), "key")) }, nil},
		"forced, and fails":       {func(k *kit) { wantNil(k, "ForceRelease", k.Peer().ForceRelease(k.Context(), "key")) }, mine},
		"closed":                  {func(k *kit) { wantNil(k, "Close", k.Locks.Close(k.Context())) }, nil},
		"the store does not come": {func(k *kit) { k.Store.Set(faultstore.Fault{}, faultstore.Renew) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				n, err := singleflight.Do(t.Context(), k.Locks, "key", time.Hour, func(ctx context.Context) (int, error) {
					tt.lose(k)
					<-ctx.Done()
					wantErr(t, context.Cause(ctx), joblock.ErrLost)
					return 1, tt.err
				})
				wantErr(t, err, joblock.ErrLost)
				if tt.err != nil {
					wantErr(t, err, tt.err)
				}
				if n != 0 {
					t.Errorf("got %d without the lock", n)
				}
				if looks := k.Store.Calls(faultstore.Inspect); looks != 1 {
					t.Errorf("the news came after %d more calls", looks-1)
				}
				var next computer
				next.fly(t, k.Peer(), time.Minute)
				if next.runs.Load() != 1 {
					t.Error("the result is kept")
				}
			})
		})
	}
}

// The loss is noticed only by the store's refusal to keep the result.
func TestFlightThatIsLostUnnoticedHasNoResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		n, err := singleflight.Do(t.Context(), k.Locks, "key", time.Hour, func(context.Context) (int, error) {
			wantNil(t, "ForceRelease", k.Peer().ForceRelease(t.Context(), "key"))
			return 1, nil
		})
		wantErr(t, err, joblock.ErrLost)
		if n != 0 || len(k.Record("key").Memo) != 0 {
			t.Errorf("got %d, kept %q", n, k.Record("key").Memo)
		}
		if logs := k.Logs.String(); strings.Contains(logs, "may have failed") {
			t.Errorf("a loss is reported twice: %s", logs)
		}
	})
}

func TestFlightGoesOnWhenTheComputingProcessDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var wg sync.WaitGroup
		wg.Go(func() { // its process is cut off; the release does not come either
			_, err := singleflight.Do(t.Context(), k.Locks, "key", time.Hour, func(ctx context.Context) (int, error) {
				k.Store.Set(faultstore.Fault{}, faultstore.Renew, faultstore.Release)
				<-ctx.Done()
				return 0, nil
			})
			wantErr(t, err, joblock.ErrLost)
		})
		synctest.Wait()
		var c computer
		start := time.Now()
		for range 3 {
			wg.Go(func() { c.fly(t, k.Peer(), time.Hour) })
		}
		wg.Wait()
		if n := c.runs.Load(); n != 1 {
			t.Errorf("computed %d times", n)
		}
		if d := time.Since(start); d < lockkit.TTL || d > lockkit.TTL+lockkit.Poll {
			t.Errorf("went on after %s, want one lease", d)
		}
	})
}

func TestFlightReportsAStoreThatIsAway(t *testing.T) {
	for name, call := range map[string]string{"first look": faultstore.Inspect, "lock": faultstore.Acquire} {
		for mode, fault := range map[string]faultstore.Mode{"refuses": faultstore.Refuse, "hangs": faultstore.Hang} {
			t.Run(name+" "+mode, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKit(t, nil)
					k.Store.Set(faultstore.Fault{Mode: fault}, call)
					var c computer
					start := time.Now()
					_, err := singleflight.Do(t.Context(), k.Locks, "key", time.Minute, c.run)
					wantErr(t, err, joblock.ErrUnavailable)
					wantNotErr(t, err, joblock.ErrHeld, joblock.ErrTimeout)
					if c.runs.Load() != 0 {
						t.Error("computed without the lock")
					}
					if d := time.Since(start); d > 3*lockkit.CallTimeout {
						t.Errorf("notified after %s", d)
					}
				})
			})
		}
	}
}

// The caller that computed the result gets it, even if it cannot be shared.
func TestFlightReturnsWhatItCannotShare(t *testing.T) {
	type odd struct{ F func() }
	fly := func(k *kit, n int) (string, error) {
		return singleflight.Do(k.Context(), k.Locks, "key", time.Minute, func(context.Context) (string, error) {
			return strings.Repeat("x", n), nil
		})
	}
	const header, stringHeader = 28, 3
	most := driver.MaxMemoBytes - header - stringHeader
	for _, tt := range []struct {
		name string
		call func(k *kit) error
		says string // in the log
		kept bool
	}{
		{"largest", func(k *kit) error { _, err := fly(k, most); return err }, "", true},
		{"too large", func(k *kit) error { _, err := fly(k, most+1); return err }, "the result has 65509 bytes, at most 65508 can be shared", false},
		{"no encoding", func(k *kit) error {
			v, err := singleflight.Do(k.Context(), k.Locks, "key", time.Minute, func(context.Context) (odd, error) {
				return odd{func() {}}, nil
			})
			if v.F == nil {
				k.Error("did not get it")
			}
			return err
		}, "func()", false},
		{"store away before", func(k *kit) error {
			_, err := singleflight.Do(k.Context(), k.Locks, "key", time.Minute, func(context.Context) (int, error) {
				k.Store.Set(faultstore.Fault{Times: 1}, faultstore.Inspect)
				return 1, nil
			})
			return err
		}, "store unavailable", false},
		{"store away", func(k *kit) error {
			k.Store.Set(faultstore.Fault{Times: 1}, faultstore.Renew)
			_, err := fly(k, 1)
			return err
		}, "store unavailable", false},
		{"released by the function", func(k *kit) error {
			_, err := singleflight.Do(k.Context(), k.Locks, "key", time.Minute, func(ctx context.Context) (int, error) {
				lock, _ := joblock.FromContext(ctx)
				return 1, lock.Release(ctx)
			})
			return err
		}, "already released", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				wantNil(t, "Do", tt.call(k))
				if kept := len(k.Record("key").Memo) > 0; kept != tt.kept {
					t.Errorf("kept %v, want %v", kept, tt.kept)
				}
				logs := k.Logs.String()
				if warned := strings.Contains(logs, "may have failed"); warned == tt.kept {
					t.Errorf("warned %v, kept %v", warned, tt.kept)
				}
				if !strings.Contains(logs, tt.says) {
					t.Errorf("log %q does not say %q", logs, tt.says)
				}
				k.WantState("key", joblock.StateFree)
			})
		})
	}
}

// A release without an answer is repeated in the background, and is no reason to
// refuse a result.
func TestFlightResultOutlivesAFailedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.Store.Set(faultstore.Fault{Times: 1}, faultstore.Release)
		var c computer
		c.fly(t, k.Locks, time.Minute)
		k.WantFreeWithin("key", time.Second)
		if n := c.fly(t, k.Peer(), time.Minute); n != 1 {
			t.Errorf("got run %d", n)
		}
	})
}

// Nor does a waiter that dies with the lock, having got the result, take it along.
func TestFlightResultOutlivesAWaiterThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		c := computer{took: time.Second}
		go c.fly(t, k.Peer(), time.Hour)
		synctest.Wait()
		k.Store.Set(faultstore.Fault{}, faultstore.Release)
		c.fly(t, k.Locks, time.Hour)
		time.Sleep(time.Hour - time.Second) // much longer than Config.Retain
		if n := c.fly(t, k.Peer(), time.Hour); n != 1 {
			t.Errorf("got run %d", n)
		}
	})
}

// A function that asks for its own result would wait for itself: it is refused at once.
func TestFlightInsideItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		_, err := singleflight.Do(t.Context(), k.Locks, "key", time.Minute, func(ctx context.Context) (int, error) {
			return singleflight.Do(ctx, k.Locks, "key", time.Minute, func(context.Context) (int, error) { return 1, nil })
		})
		wantErr(k, err, joblock.ErrInvalid)
	})
}
