package joblock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

func TestSingletonRunsOneAtATimeAndMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var running, most, terms atomic.Int32
		lead := func(ctx context.Context) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			terms.Add(1)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		const nodes = 5
		var stops [nodes]context.CancelCauseFunc
		gone := errors.New("node stops")
		results := make(chan error, nodes)
		for i := range nodes {
			var ctx context.Context
			ctx, stops[i] = context.WithCancelCause(t.Context())
			peer := k.peer()
			go func() { results <- peer.Singleton(ctx, "lead", lead) }()
			synctest.Wait() // they stand in line in this order
		}
		for i := range nodes {
			if got := terms.Load(); got != int32(i+1) {
				t.Fatalf("after %d nodes stopped fn has run %d times, want %d", i, got, i+1)
			}
			stops[i](gone) // while it leads: the next one does at once
			if err := <-results; !errors.Is(err, gone) {
				t.Errorf("node %d returned %v, want what fn returned", i, err)
			}
			synctest.Wait()
		}
		if most.Load() != 1 {
			t.Errorf("%d ran at once", most.Load())
		}
		k.wantState("lead", joblock.StateFree)
	})
}

func TestSingletonReturnsWhenTheFunctionDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		mine := errors.New("mine")
		runs := 0
		err := k.locks.Singleton(t.Context(), "lead", func(context.Context) error {
			if runs++; runs > 1 {
				t.Fatal("ran again")
			}
			return errors.Join(mine, joblock.ErrLost) // of another lock: not of this one
		})
		if !errors.Is(err, mine) {
			t.Errorf("Singleton returned %v, want %v", err, mine)
		}
		if err := k.locks.Singleton(t.Context(), "lead", func(context.Context) error { return nil }); err != nil {
			t.Errorf("Singleton returned %v, want nil", err)
		}
		k.wantState("lead", joblock.StateFree)
	})
}

// A leader that loses its lock is notified, is waited for, and stands again.
func TestSingletonIsElectedAgainAfterALoss(t *testing.T) {
	for name, lose := range map[string]func(k *kit){
		"forced":        func(k *kit) { _ = k.locks.ForceRelease(k.Context(), "lead", joblock.Reason("test")) },
		"forced at end": func(k *kit) { _ = k.locks.ForceRelease(k.Context(), "lead", joblock.Reason("test")) },
		"store was away": func(k *kit) {
			k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire, faultstore.Renew)
			time.Sleep(2 * time.Minute)
			k.store.Clear()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				terms := 0
				err := k.locks.Singleton(t.Context(), "lead", func(ctx context.Context) error {
					lock, ok := joblock.FromContext(ctx)
					if !ok {
						t.Fatal("the context does not carry the lock")
					}
					if terms++; terms == 2 {
						return nil
					}
					lose(k)
					if name == "forced at end" {
						return nil // before it could know
					}
					<-ctx.Done()
					wantErr(t, context.Cause(ctx), joblock.ErrLost)
					wantErr(t, lock.Err(), joblock.ErrLost)
					return context.Cause(ctx)
				})
				if err != nil || terms != 2 {
					t.Errorf("Singleton returned %v after %d terms, want nil after 2", err, terms)
				}
			})
		})
	}
}

func TestSingletonWaitsOutAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire, faultstore.Renew)
		time.AfterFunc(10*time.Minute, func() { k.store.Clear() })
		start := time.Now()
		err := k.locks.Singleton(t.Context(), "lead", func(context.Context) error { return nil })
		if err != nil || time.Since(start) < 10*time.Minute {
			t.Errorf("Singleton returned %v after %s, want nil after the outage", err, time.Since(start))
		}

		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire, faultstore.Renew)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = k.locks.Singleton(ctx, "lead", func(context.Context) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Singleton returned %v, want the deadline", err)
		}
	})
}

func TestSingletonEndsWithItsTimeAndItsLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("lead")
		never := func(context.Context) error { t.Error("ran next to the holder"); return nil }
		wantErr(t, k.locks.Singleton(t.Context(), "lead", never, joblock.MaxWait(time.Minute)), joblock.ErrTimeout)

		done := make(chan error)
		peer := k.peer()
		go func() { done <- peer.Singleton(t.Context(), "lead", never) }()
		synctest.Wait()
		if err := peer.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		wantErr(t, <-done, joblock.ErrClosed)
		if err := lock.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}

		wantErr(t, k.locks.Singleton(t.Context(), "lead", nil), joblock.ErrInvalid)
		wantErr(t, k.locks.Singleton(t.Context(), "", never), joblock.ErrInvalid)
	})
}
