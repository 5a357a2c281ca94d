package internal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

func TestModesOfFaults(t *testing.T) {
	for _, c := range []struct {
		name          string
		fault         faultstore.Fault
		err           error
		took          time.Duration // until the call returns
		applied, late bool          // when it returns, and a minute later
	}{
		{"Refuse", faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Err, 0, false, false},
		{"Drop", faultstore.Fault{Mode: faultstore.Drop}, faultstore.Err, 0, true, true},
		{"Hang", faultstore.Fault{Mode: faultstore.Hang}, context.DeadlineExceeded, time.Second, false, false},
		{"HangApplied", faultstore.Fault{Mode: faultstore.HangApplied}, context.DeadlineExceeded, time.Second, true, true},
		{"Slow", faultstore.Fault{Mode: faultstore.Slow, Delay: 5 * time.Second}, nil, 5 * time.Second, true, true},
		{"Late", faultstore.Fault{Mode: faultstore.Late, Delay: 5 * time.Second}, nil, 5 * time.Second, true, true},
		{"Stray", faultstore.Fault{Mode: faultstore.Stray, Delay: 5 * time.Second}, faultstore.Err, 0, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New(&memstore.Config{Silent: true})
				store := faultstore.New(mem)
				defer store.Close()
				store.Set(c.fault, faultstore.Acquire)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				reply, err := store.Acquire(ctx, driver.AcquireRequest{
					Key: "key", Owner: "me", Nonce: "n", TTL: time.Hour, Retain: time.Hour,
				})
				if !errors.Is(err, c.err) || (err == nil) != (reply.Outcome == driver.OutcomeOK) {
					t.Errorf("reply %+v, error %v, want %v", reply, err, c.err)
				}
				if d := time.Since(start); d != c.took {
					t.Errorf("took %s, want %s", d, c.took)
				}
				for _, want := range []bool{c.applied, c.late} {
					recs, err := mem.Inspect(t.Context(), driver.InspectRequest{Keys: []string{"key"}})
					if err != nil || (recs[0].State == driver.StateHeld) != want {
						t.Errorf("after %s the key is %s, applied should be %v", time.Since(start), recs[0].State, want)
					}
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

func TestFaultsHitByNameAndNumber(t *testing.T) {
	store := faultstore.New(memstore.New(&memstore.Config{Silent: true}))
	defer store.Close()
	ctx := context.Background()
	inspect := func() error {
		_, err := store.Inspect(ctx, driver.InspectRequest{Keys: []string{"a", "b"}})
		return err
	}
	list := func() error { _, err := store.List(ctx, driver.ListRequest{}); return err }

	store.Set(faultstore.Fault{Times: 2}, faultstore.Inspect)
	for i, want := range []bool{true, true, false} {
		if err := inspect(); (err != nil) != want {
			t.Errorf("call %d: %v", i, err)
		}
		if err := list(); err != nil {
			t.Errorf("another call: %v", err)
		}
	}
	store.Set(faultstore.Fault{}, faultstore.Inspect, faultstore.List)
	for range 5 {
		if inspect() == nil || list() == nil {
			t.Error("a fault without a number ends by itself")
		}
	}
	store.Clear(faultstore.Inspect)
	if inspect() != nil || list() == nil {
		t.Error("Clear of one name")
	}
	store.Clear()
	if inspect() != nil || list() != nil {
		t.Error("Clear of all")
	}
	if _, err := store.Inspect(ctx, driver.InspectRequest{Keys: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if c, i, l := store.Calls(faultstore.Inspect), store.Items(faultstore.Inspect), store.Largest(faultstore.Inspect); c != 11 || i != 21 || l != 2 {
		t.Errorf("%d calls, %d items, largest %d; want 11, 21, 2", c, i, l)
	}
	if n := store.Calls(""); n != 11+10 {
		t.Errorf("%d calls in all, want 21", n)
	}
}

func TestFaultsWithErrAndBefore(t *testing.T) {
	store := faultstore.New(memstore.New(&memstore.Config{Silent: true}))
	defer store.Close()
	list := func() error { _, err := store.List(t.Context(), driver.ListRequest{}); return err }
	down, called := errors.New("down"), 0
	for _, mode := range []faultstore.Mode{faultstore.Refuse, faultstore.Drop, faultstore.Stray} {
		store.Set(faultstore.Fault{Mode: mode, Err: down}, faultstore.List)
		if err := list(); !errors.Is(err, down) {
			t.Errorf("mode %d: error %v, want %v", mode, err, down)
		}
	}
	store.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 2, Before: func() { called++ }}, faultstore.List)
	for range 3 {
		if err := list(); err != nil {
			t.Error(err)
		}
	}
	if called != 2 {
		t.Errorf("Before was called %d times, want 2", called)
	}
}

func TestPushesAreLostOrLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(&memstore.Config{Silent: true}))
		defer store.Close()
		start := time.Now()
		var mu sync.Mutex
		var came []time.Duration
		stop, err := store.Subscribe(t.Context(), driver.ForcedInbox, func(driver.Push) {
			mu.Lock()
			defer mu.Unlock()
			came = append(came, time.Since(start))
		})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		for i, set := range []func(){
			func() {},
			func() { store.Set(faultstore.Fault{}, faultstore.Forced) },
			func() { store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: time.Hour}, faultstore.Forced) },
			func() { store.Clear() },
		} {
			set()
			if _, err := store.Acquire(t.Context(), driver.AcquireRequest{
				Key: "key", Owner: "me", Nonce: fmt.Sprint("acquire ", i), TTL: time.Minute, Retain: time.Hour,
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := store.Release(t.Context(), []driver.ReleaseRequest{{
				Term: driver.Term{Key: "key"}, Nonce: fmt.Sprint("force ", i), Retain: time.Hour, Kind: driver.ReleaseForced,
			}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if want := []time.Duration{0, 3 * time.Second, time.Hour + 2*time.Second}; !slices.Equal(came, want) {
			t.Errorf("pushes came after %s, want %s", came, want)
		}
	})
}
