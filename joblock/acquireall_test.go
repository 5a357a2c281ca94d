package joblock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestAcquireAllTakesAllInTheOrderOfTheKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks, err := k.locks.AcquireAll(t.Context(), []string{"c", "a", "c", "b"}, joblock.Owner("me"), joblock.MaxWait(0))
		wantNil(t, "AcquireAll", err)
		var got string
		for _, lock := range locks {
			got += lock.Key()
			if lock.Owner() != "me" {
				t.Error("the owner is not passed on")
			}
		}
		if got != "cab" {
			t.Errorf("keys %q, want cab", got)
		}
		if lock, ok := locks.ByKey("b"); !ok || lock.Key() != "b" {
			t.Errorf("ByKey gives %v", lock)
		}
		if _, ok := locks.ByKey("d"); ok {
			t.Error("ByKey finds what is not there")
		}
		wantNil(t, "Err", locks.Err())
		ctx, stop := locks.Context(t.Context())
		defer stop()
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "a"))
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), joblock.ErrLost)
		wantErr(t, locks.Err(), joblock.ErrLost)
		wantErr(t, locks.Release(t.Context()), joblock.ErrLost)
		for _, key := range []string{"a", "b", "c"} {
			k.wantState(key, joblock.StateFree)
		}
	})
}

func TestAcquireAllTakesAllOrNone(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []joblock.AcquireOption
		do   func(*kit)
		want error
		took time.Duration
	}{
		{"does not wait", []joblock.AcquireOption{joblock.MaxWait(0)}, func(k *kit) { k.acquire("b") }, joblock.ErrHeld, 0},
		{"waits", []joblock.AcquireOption{joblock.MaxWait(5 * time.Second)}, func(k *kit) { k.acquire("b") }, joblock.ErrTimeout, 5 * time.Second},
		{"the wait is over before the last", []joblock.AcquireOption{joblock.MaxWait(5 * time.Second)}, func(k *kit) {
			k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2600 * time.Millisecond}, faultstore.Acquire)
			_, err := k.peer().TryAcquire(k.Context(), "c")
			wantNil(k, "TryAcquire", err)
		}, joblock.ErrTimeout, 7800 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				c.do(k)
				start := time.Now()
				locks, err := k.locks.AcquireAll(t.Context(), []string{"c", "a", "b"}, c.opts...)
				if locks != nil {
					t.Error("got some locks")
				}
				wantErr(t, err, c.want)
				if d := time.Since(start); d != c.took {
					t.Errorf("took %s, want %s", d, c.took)
				}
				k.wantState("a", joblock.StateFree)
			})
		})
	}
}

// All callers take their locks in one order, whatever order they name them in.
func TestAcquireAllAsksInTheOrderOfTheNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var asked asking
		asked.Store = k.store
		locks := k.open(&asked, nil)
		for _, keys := range [][]string{{"c", "a", "b"}, {"b", "c", "b", "a", "c"}, {"a", "b", "c"}} {
			asked.keys = nil
			all, err := locks.AcquireAll(t.Context(), keys, joblock.MaxWait(0))
			wantNil(t, "AcquireAll", err)
			if got := strings.Join(asked.keys, " "); got != "a b c" {
				t.Errorf("for %v it asked for %s, want a b c", keys, got)
			}
			wantNil(t, "Release", all.Release(t.Context()))
		}
	})
}

// asking is a Store that notes which keys are asked for, one after the other.
type asking struct {
	driver.Store
	keys []string
}

func (s *asking) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.keys = append(s.keys, req.Key)
	return s.Store.Acquire(ctx, req)
}

func TestAcquireAllOfOverlappingKeysDoesNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		peers := []*joblock.Locker{k.locks, k.peer()}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), 1))
				for range 10 {
					var keys []string
					for _, n := range rnd.Perm(5)[:3] {
						keys = append(keys, fmt.Sprint("key-", n))
					}
					locks, err := peers[i%2].AcquireAll(context.Background(), keys, joblock.MaxWait(time.Minute))
					if err != nil {
						t.Errorf("AcquireAll: %v", err)
						return
					}
					time.Sleep(100 * time.Millisecond)
					if err := locks.Release(context.Background()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		wg.Wait()
	})
}
