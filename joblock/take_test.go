package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// taking takes keys, each for the job "q/" and the key.
func (k *kit) taking(ctx context.Context, keys ...string) []core.Taken {
	k.Helper()
	takes := make([]core.Take, len(keys))
	for i, key := range keys {
		takes[i] = core.Take{Key: key, Job: "q/" + key, Reserve: time.Hour}
	}
	taken := (*core.Locker)(k.locks).Take(ctx, "take", takes)
	if len(taken) != len(keys) {
		k.Fatalf("%d results for %d keys", len(taken), len(keys))
	}
	for i, got := range taken {
		if got.Token.IsZero() == (got.Err == nil) {
			k.Errorf("%s: token %v, error %v; want one of the two", keys[i], got.Token, got.Err)
		}
	}
	return taken
}

func TestTakenKeysAreParkedForTheirJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.acquire("held")
		next := keyspace.Next("k")
		taken := k.taking(t.Context(), "a", "held", next, "", "b")
		wantErr(t, taken[1].Err, joblock.ErrHeld)
		wantErr(t, taken[3].Err, joblock.ErrInvalid)
		for i, key := range map[int]string{0: "a", 2: next, 4: "b"} {
			wantNil(t, "take "+key, taken[i].Err)
			token := joblock.Token(taken[i].Token)
			if r := k.record(key); r.State != joblock.StateParked || r.Job != "q/"+key || r.Fence != token.Fence() || r.Holder == "" || r.Reserved < time.Hour {
				t.Errorf("record %+v, want it parked for an hour under fence %d", r, token.Fence())
			}
			_, err := k.locks.Resume(t.Context(), token, joblock.ForJob("q/other"))
			wantErr(t, err, joblock.ErrNotOwner)
			lock, err := k.locks.Resume(t.Context(), token, joblock.ForJob("q/"+key))
			wantNil(t, "Resume", err)
			wantNil(t, "Release", lock.Release(t.Context()))
		}
		var e *joblock.Error
		if !errors.As(taken[1].Err, &e) || e.Key != "held" || e.Op != "take" || e.Remaining <= 0 {
			t.Errorf("error %+v, want who has the key", e)
		}
	})
}

func TestBadTakesAreRefused(t *testing.T) {
	k := newKit(t, nil)
	for name, take := range map[string]core.Take{
		"no key":        {Job: "q/1", Reserve: time.Hour},
		"no job":        {Key: "k", Reserve: time.Hour},
		"long job":      {Key: "k", Job: strings.Repeat("j", driver.MaxLabelBytes+1), Reserve: time.Hour},
		"no time":       {Key: "k", Job: "q/1"},
		"too much time": {Key: "k", Job: "q/1", Reserve: driver.MaxPeriod + 1},
	} {
		got := (*core.Locker)(k.locks).Take(t.Context(), "take", []core.Take{take})[0]
		if !errors.Is(got.Err, joblock.ErrInvalid) || !got.Token.IsZero() {
			t.Errorf("%s: %+v, want ErrInvalid", name, got)
		}
	}
	if n := k.store.Calls(faultstore.Take); n != 0 {
		t.Errorf("%d calls of the store, want none", n)
	}
}

// A thousand keys go in one call of the store, more in several, and a dead store costs one
// timeout.
func TestManyKeysAreTakenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		keys := make([]string, driver.MaxBatch+1)
		for i := range keys {
			keys[i] = fmt.Sprint("key-", i)
		}
		for i, got := range k.taking(t.Context(), keys...) {
			wantNil(t, keys[i], got.Err)
			if key := got.Token.Key(); key != keys[i] {
				t.Fatalf("item %d is %s, want %s", i, key, keys[i])
			}
		}
		if calls, most := k.store.Calls(faultstore.Take), k.store.Largest(faultstore.Take); calls != 2 || most != driver.MaxBatch {
			t.Errorf("%d calls of up to %d items, want 2 of %d", calls, most, driver.MaxBatch)
		}
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Take)
		start := time.Now()
		for _, got := range k.taking(t.Context(), keys...) {
			wantErr(t, got.Err, joblock.ErrUnavailable)
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("a store that hangs took %s, want one timeout", took)
		}
	})
}

func TestTakeWithoutAnAnswerIsCleanedUp(t *testing.T) {
	for name, fault := range map[string]faultstore.Fault{
		"refused":          {Mode: faultstore.Refuse, Times: 1},
		"reply dropped":    {Mode: faultstore.Drop, Times: 1},
		"hangs":            {Mode: faultstore.Hang, Times: 1},
		"applied, hanging": {Mode: faultstore.HangApplied, Times: 1},
		"arrives late":     {Mode: faultstore.Stray, Times: 1, Delay: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				k.store.Set(fault, faultstore.Take)
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 3}, faultstore.Release)
				for _, got := range k.taking(t.Context(), "a", "b") {
					wantErr(t, got.Err, joblock.ErrUnavailable)
				}
				time.Sleep(fault.Delay)
				synctest.Wait()
				k.wantFreeWithin("a", 4*time.Second) // far below the reservation
				k.wantFreeWithin("b", 4*time.Second)
			})
		})
	}
}

func TestTakeUnderAnEndedContextSendsNothing(t *testing.T) {
	k := newKit(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the request is over")
	cancel(why)
	for _, got := range k.taking(ctx, "a", "b") {
		wantErr(t, got.Err, why)
		wantNotErr(t, got.Err, joblock.ErrUnavailable)
	}
	if n := k.store.Calls(""); n != 0 {
		t.Errorf("%d calls of the store, want none", n)
	}
	wantNil(t, "Close", k.locks.Close(t.Context()))
	wantErr(t, k.taking(t.Context(), "a")[0].Err, joblock.ErrClosed)
}

func TestObserverGetsTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		_, err := k.peer().TryAcquire(t.Context(), "key", joblock.NoRenew())
		wantNil(t, "TryAcquire", err)
		wantErr(t, k.taking(t.Context(), "key")[0].Err, joblock.ErrHeld)
		if told := rec.take(); len(told) != 1 || told[0].Kind != event.Contended || told[0].Holder != "peer" {
			t.Errorf("got %+v, want the contention", told)
		}
		time.Sleep(time.Minute)
		token := k.taking(t.Context(), "key")[0].Token
		e := event.Event{
			Kind: event.Acquired, Key: "key", Owner: token.Digest(), Fence: token.Fence(), Holder: "us", Prior: driver.EndedLapsed,
		}
		rec.want(t, e, with(e, func(e *event.Event) { e.Kind, e.Job, e.Prior = event.Parked, "q/key", driver.EndedNone }))
	})
}
