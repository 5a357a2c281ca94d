package singleflight_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// rates is a result with something of everything in it.
type rates struct {
	Base  string
	At    time.Time
	Of    map[string]float64
	Steps []int
	Next  *rates
}

var someRates = rates{
	Base: "EUR", At: time.Unix(1_700_000_000, 0), Of: map[string]float64{"USD": 1.08},
	Steps: []int{1, -70000}, Next: &rates{Base: "NOK"},
}

// computer is a function for Do that counts its runs.
type computer struct {
	runs atomic.Int32
	took time.Duration
	err  error
}

// run returns the number of the run.
func (c *computer) run(ctx context.Context) (int, error) {
	n := int(c.runs.Add(1))
	time.Sleep(c.took)
	return n, c.err
}

// fly is Do with c.
func (c *computer) fly(t testing.TB, locks *joblock.Locker, ttl time.Duration, opts ...joblock.AcquireOption) int {
	t.Helper()
	n, err := singleflight.Do(t.Context(), locks, "key", ttl, c.run, opts...)
	wantNil(t, "Do", err)
	return n
}

func TestFlightComputesOnceForAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		processes := []*joblock.Locker{k.Locks, k.Peer(), k.Peer()}
		var runs, running atomic.Int32
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				got, err := singleflight.Do(t.Context(), processes[i%3], "key", time.Minute,
					func(ctx context.Context) (rates, error) {
						if running.Add(1) != 1 {
							t.Error("two compute at once")
						}
						defer running.Add(-1)
						runs.Add(1)
						time.Sleep(50 * time.Second) // longer than a lease
						return someRates, ctx.Err()
					})
				if err != nil || !got.At.Equal(someRates.At) || got.Of["USD"] != 1.08 || got.Base != "EUR" ||
					len(got.Steps) != 2 || got.Steps[1] != -70000 || got.Next == nil || got.Next.Base != "NOK" {
					t.Errorf("caller %d got %+v, error %v", i, got, err)
				}
			})
		}
		wg.Wait()
		if n := runs.Load(); n != 1 {
			t.Errorf("computed %d times, want once", n)
		}
		k.WantState("key", joblock.StateFree)
	})
}

func TestHitIsOneStoreCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var c computer
		c.fly(t, k.Peer(), time.Minute)
		before := k.Record("key").Fence
		k.Store.Set(faultstore.Fault{}, faultstore.Acquire) // a hit needs no lock
		if n := c.fly(t, k.Locks, time.Minute); n != 1 {
			t.Errorf("got the result of run %d", n)
		}
		if all, inspect := k.Store.Calls(""), k.Store.Calls(faultstore.Inspect); all != 1 || inspect != 1 {
			t.Errorf("%d calls, %d of them Inspect; want one", all, inspect)
		}
		if after := k.Record("key").Fence; after != before {
			t.Error("a hit took the lock")
		}
	})
}

// The TTL of a result counts from when it was there, not from when a caller began to
// compute it, began to wait for it or released the lock.
func TestFlightKeepsAResultForItsTTL(t *testing.T) {
	for _, retain := range []time.Duration{time.Millisecond, time.Hour} {
		t.Run("Retain "+retain.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, &joblock.Config{Retain: retain})
				c := computer{took: 10 * time.Minute}
				for range 3 { // and two who wait
					go c.fly(t, k.Peer(), time.Minute)
				}
				time.Sleep(c.took)
				synctest.Wait()
				c.took = 0
				time.Sleep(time.Minute - time.Millisecond)
				if n := c.fly(t, k.Locks, time.Minute); n != 1 {
					t.Errorf("just before its end got run %d", n)
				}
				time.Sleep(time.Millisecond)
				if n := c.fly(t, k.Locks, time.Minute); n != 2 {
					t.Errorf("after its end got run %d", n)
				}
			})
		})
	}
}

// A waiter's release must neither lengthen nor shorten the life of a result.
func TestDoFuncTakesTTLFromTheValue(t *testing.T) {
	for _, tt := range []struct{ ttl, want time.Duration }{
		{20 * time.Minute, 20 * time.Minute}, // longer than Config.Retain
		{1500 * time.Microsecond, time.Millisecond},
		{999 * time.Microsecond, 0},
		{0, 0},
		{-time.Hour, 0},
		{1<<63 - 1, driver.MaxPeriod},
	} {
		t.Run(tt.ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				c := computer{took: time.Second}
				fly := func() int {
					n, err := singleflight.DoFunc(t.Context(), k.Locks, "key", func(n int) time.Duration {
						if n == 0 {
							t.Error("not asked with the value")
						}
						return tt.ttl
					}, c.run)
					wantNil(t, "DoFunc", err)
					return n
				}
				go fly()
				synctest.Wait()
				if n := fly(); n != 1 && tt.want > 0 || n != 2 && tt.want == 0 {
					t.Errorf("who waited got run %d", n)
				}
				runs := c.runs.Load()
				if tt.want > 0 {
					time.Sleep(tt.want - time.Millisecond)
					if n := fly(); n != 1 {
						t.Errorf("before its end got run %d", n)
					}
					time.Sleep(time.Millisecond)
				}
				if n := fly(); n != int(runs)+1 {
					t.Errorf("after its end got run %d, want %d", n, runs+1)
				}
				// No caller waited for that one.
				if kept := len(k.Record("key").Memo) > 0; kept != (tt.want > 0) {
					t.Errorf("kept %v", kept)
				}
				if tt.want > 0 {
					time.Sleep(tt.want - time.Millisecond)
					if n := fly(); n != int(runs)+1 {
						t.Errorf("before the next one's end got run %d", n)
					}
				}
			})
		})
	}
}

func TestFlightIsBoundedByMaxWaitAndContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		c := computer{took: time.Hour}
		var others sync.WaitGroup
		others.Go(func() { c.fly(t, k.Peer(), time.Minute) })
		synctest.Wait()

		_, err := singleflight.Do(t.Context(), k.Locks, "key", time.Minute, c.run, joblock.MaxWait(time.Minute))
		wantErr(t, err, joblock.ErrTimeout)
		_, err = singleflight.Do(t.Context(), k.Locks, "key", time.Minute, c.run, joblock.MaxWait(0))
		wantErr(t, err, joblock.ErrHeld)

		// Of three who wait, the middle one goes.
		ctx, cancel := context.WithCancelCause(t.Context())
		mine := errors.New("mine")
		for i := range 3 {
			others.Go(func() {
				if i != 1 {
					if n := c.fly(t, k.Locks, time.Minute); n != 1 {
						t.Errorf("got run %d", n)
					}
					return
				}
				_, err := singleflight.Do(ctx, k.Locks, "key", time.Minute, c.run)
				wantErr(t, err, mine)
			})
			synctest.Wait()
		}
		cancel(mine)
		others.Wait()
		if n := c.runs.Load(); n != 1 {
			t.Errorf("computed %d times", n)
		}
		_, err = singleflight.Do(ctx, k.Locks, "key", time.Minute, c.run)
		wantErr(t, err, mine) // even where a result is fresh
		wantNotErr(t, err, joblock.ErrUnavailable)
	})
}

// What the caller no longer wants, the others do.
func TestFlightSharesWhatACancelledCallerComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var c computer
		ctx, cancel := context.WithCancel(t.Context())
		n, err := singleflight.Do(ctx, k.Locks, "key", time.Minute, func(ctx context.Context) (int, error) {
			cancel()
			return c.run(ctx)
		})
		if n != 1 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		if n := c.fly(t, k.Peer(), time.Minute); n != 1 {
			t.Errorf("got run %d", n)
		}
	})
}

func TestFlightRefusesBadInput(t *testing.T) {
	type fn = func(context.Context) (int, error)
	good := func(context.Context) (int, error) { t.Error("computed"); return 0, nil }
	for _, tt := range []struct {
		name string
		key  string
		ttl  time.Duration
		fn   fn
		opts []joblock.AcquireOption
		says string
	}{
		{"nil function", "key", time.Minute, nil, nil, "the function is nil"},
		{"zero ttl", "key", 0, good, nil, "ttl is 0s, must be at least 1ms"},
		{"negative ttl", "key", -1, good, nil, "ttl is -1ns"},
		{"huge ttl", "key", driver.MaxPeriod + 1, good, nil, "must be at most 8784h"},
		{"empty key", "", time.Minute, good, nil, "key is empty"},
		{"key with a newline", "a\nb", time.Minute, good, nil, "U+000A"},
		{"bad option", "key", time.Minute, good, []joblock.AcquireOption{joblock.TTL(-1)}, "TTL is -1ns"},
		{"nil option", "key", time.Minute, good, []joblock.AcquireOption{nil}, "an option is nil"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newKit(t, nil)
			_, err := singleflight.Do(t.Context(), k.Locks, tt.key, tt.ttl, tt.fn, tt.opts...)
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(fmt.Sprint(err), tt.says) {
				t.Errorf("error %q does not say %q", err, tt.says)
			}
			if n := k.Store.Calls(""); n != 0 {
				t.Errorf("%d store calls", n)
			}
		})
	}
	t.Run("nil locks", func(t *testing.T) {
		_, err := singleflight.Do(t.Context(), nil, "key", time.Minute, good)
		wantErr(t, err, joblock.ErrInvalid)
	})
	t.Run("nil ttl function", func(t *testing.T) {
		_, err := singleflight.DoFunc(t.Context(), newKit(t, nil).Locks, "key", nil, good)
		wantErr(t, err, joblock.ErrInvalid)
	})
	t.Run("closed", func(t *testing.T) {
		k := newKit(t, nil)
		wantNil(t, "Close", k.Locks.Close(t.Context()))
		_, err := singleflight.Do(t.Context(), k.Locks, "key", time.Minute, good)
		wantErr(t, err, joblock.ErrClosed)
	})
}
