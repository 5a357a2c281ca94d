package cli

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// lookout is a watch in virtual time.
type lookout struct {
	*testing.T
	locks *joblock.Locker
	store *faultstore.Store
	watch *watch
	said  []string

	mu   sync.Mutex
	seen []string // the changes
	err  error
	stop context.CancelFunc
	over chan struct{}
}

// watching runs f while a watch with the options o goes on. Each change is seen as "kind key".
func watching(t *testing.T, o watchOptions, f func(*lookout)) *lookout {
	l := &lookout{T: t, over: make(chan struct{})}
	synctest.Test(t, func(t *testing.T) {
		l.T = t
		l.store = faultstore.New(memstore.New(&memstore.Config{Silent: true}))
		locks, err := joblock.New(l.store, &joblock.Config{Logger: slog.New(slog.DiscardHandler), CallTimeout: time.Second})
		testkit.WantNil(t, "New", err)
		defer func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) }()
		l.locks = locks
		desk, err := ops.New(ops.Config{Locks: locks})
		testkit.WantNil(t, "ops.New", err)
		if o.interval == 0 {
			o.interval = time.Second
		}
		l.watch = &watch{watchOptions: o, desk: desk, talk: func(format string, args ...any) { l.said = append(l.said, fmt.Sprintf(format, args...)) }}
		var ctx context.Context
		ctx, l.stop = context.WithCancel(t.Context())
		go func() {
			defer close(l.over)
			for c, err := range l.watch.changes(ctx) {
				l.mu.Lock()
				if err != nil {
					l.err = err
				} else {
					l.seen = append(l.seen, string(c.Kind)+" "+c.Key)
				}
				l.mu.Unlock()
			}
		}()
		synctest.Wait()
		f(l)
		l.stop()
		<-l.over
	})
	return l
}

// sees waits for a look, and checks what the watch has seen since the last call.
func (l *lookout) sees(want ...string) {
	l.Helper()
	time.Sleep(1500 * time.Millisecond)
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	got := l.seen
	l.seen = nil
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.Errorf("the watch has seen %q, want %q", got, want)
	}
}

func (l *lookout) acquire(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	l.Helper()
	lock, err := l.locks.TryAcquire(l.Context(), key, opts...)
	testkit.WantNil(l.T, "TryAcquire", err)
	return lock
}

// A lock's life, seen by a watch of its key, and by a watch of all keys.
func TestWatchSeesALocksLife(t *testing.T) {
	for name, o := range map[string]watchOptions{"key": {keys: []string{"a"}}, "all": {}, "under": {query: ops.LocksQuery{Prefix: "a"}}} {
		t.Run(name, func(t *testing.T) {
			watching(t, o, func(l *lookout) {
				if len(o.keys) > 0 {
					l.sees("now a")
				} else {
					l.sees()
				}
				ctx := l.Context()
				lock := l.acquire("a")
				l.sees("taken a")
				l.sees() // renewals are no changes
				token, err := lock.Park(ctx, joblock.ForJob("q/1"))
				testkit.WantNil(l.T, "Park", err)
				l.sees("parked a")
				lock, err = l.locks.Resume(ctx, token, joblock.ForJob("q/1"))
				testkit.WantNil(l.T, "Resume", err)
				l.sees("resumed a")
				testkit.WantNil(l.T, "Release", lock.Release(ctx))
				l.sees("released a")
				lock = l.acquire("a")
				testkit.WantNil(l.T, "Release", lock.Release(ctx))
				l.sees("released a") // taken and released between two looks
				l.acquire("a")
				l.sees("taken a")
				testkit.WantNil(l.T, "ForceRelease", l.locks.ForceRelease(ctx, "a", joblock.Reason("by hand")))
				l.sees("forced a")
				l.acquire("a", joblock.NoRenew(), joblock.TTL(2*time.Second))
				l.sees("taken a")
				l.sees("lapsed a")
			})
		})
	}
}

// A key that passes from one holder to the next is taken, although it was held at both looks.
func TestWatchSeesANewHolderByItsFence(t *testing.T) {
	watching(t, watchOptions{keys: []string{"a"}}, func(l *lookout) {
		lock := l.acquire("a")
		l.sees("now a", "taken a")
		testkit.WantNil(l.T, "Release", lock.Release(l.Context()))
		l.acquire("a")
		l.sees("taken a")
	})
}

func TestWatchOfAJobsLockThatIsOrphaned(t *testing.T) {
	watching(t, watchOptions{query: ops.LocksQuery{States: []joblock.State{joblock.StateOrphaned}}}, func(l *lookout) {
		token, err := l.acquire("a").Park(l.Context(), joblock.ForJob("q/1"))
		testkit.WantNil(l.T, "Park", err)
		l.sees()
		_, err = l.locks.Resume(l.Context(), token, joblock.ForJob("q/1"), joblock.NoRenew(), joblock.TTL(time.Second))
		testkit.WantNil(l.T, "Resume", err)
		l.sees("orphaned a")
		l.sees()
		_, err = l.locks.Resume(l.Context(), token, joblock.ForJob("q/1"))
		testkit.WantNil(l.T, "Resume", err)
		l.sees("resumed a")
		l.sees()
	})
}

// While the store is away the watch says so once, and goes on where it was.
func TestWatchOutlivesAStoreThatIsAway(t *testing.T) {
	for name, o := range map[string]watchOptions{"key": {keys: []string{"a"}}, "all": {}} {
		t.Run(name, func(t *testing.T) {
			l := watching(t, o, func(l *lookout) {
				lock := l.acquire("a", joblock.NoRenew(), joblock.TTL(time.Hour))
				time.Sleep(2 * time.Second)
				synctest.Wait()
				l.seen = nil
				l.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Inspect, faultstore.List)
				time.Sleep(time.Minute)
				l.sees()
				testkit.WantNil(l.T, "Release", lock.Release(l.Context()))
				l.store.Clear(faultstore.Inspect, faultstore.List)
				time.Sleep(time.Minute)
				l.sees("released a")
				testkit.WantNil(l.T, "the watch", l.err)
			})
			if n := strings.Count(strings.Join(l.said, "\n"), "trying again"); n != 1 || l.said[len(l.said)-1] != "Redis answers again" {
				t.Errorf("the watch said %q", l.said)
			}
		})
	}
}

// Without an answer to the first look it is unknown whether there is a Redis at all.
func TestWatchEndsIfTheFirstLookHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(&memstore.Config{Silent: true}))
		store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Inspect, faultstore.List)
		locks, err := joblock.New(store, nil)
		testkit.WantNil(t, "New", err)
		defer func() { _ = locks.Close(context.Background()) }()
		desk, err := ops.New(ops.Config{Locks: locks})
		testkit.WantNil(t, "ops.New", err)
		for _, keys := range [][]string{nil, {"a"}} {
			w := &watch{watchOptions: watchOptions{keys: keys, interval: time.Second}, desk: desk}
			n := 0
			for _, err := range w.changes(t.Context()) {
				n++
				testkit.WantErr(t, err, joblock.ErrUnavailable)
			}
			if n != 1 {
				t.Errorf("%d rows, want the error alone", n)
			}
		}
	})
}

// With --until the watch ends as soon as the key is in the state, and else fails when --for is over.
func TestWatchUntil(t *testing.T) {
	for _, released := range []bool{true, false} {
		l := watching(t, watchOptions{keys: []string{"a"}, until: "free", during: time.Minute}, func(l *lookout) {})
		if l.err != nil || !l.watch.came {
			t.Errorf("a free key: %v, came %t", l.err, l.watch.came)
		}
		watching(t, watchOptions{keys: []string{"a"}, until: "held", during: time.Minute}, func(l *lookout) {
			l.sees("now a")
			if released {
				l.acquire("a")
				l.sees("taken a")
			} else {
				time.Sleep(time.Minute)
			}
			<-l.over
			if l.watch.came != released {
				l.Errorf("came %t, want %t", l.watch.came, released)
			}
			if err := l.watch.verdict(l.Context()); (err == nil) != released || err != nil && codeOf(err) != exitNo {
				l.Errorf("verdict %v", err)
			}
		})
	}
}

// The load on the store is bounded: a look begins an interval after the one before, at the earliest.
func TestWatchAsksOncePerInterval(t *testing.T) {
	watching(t, watchOptions{keys: []string{"a"}, interval: 10 * time.Second}, func(l *lookout) {
		before := l.store.Calls(faultstore.Inspect)
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if n := l.store.Calls(faultstore.Inspect) - before; n > 10 {
			t.Errorf("%d looks in ten intervals", n)
		}
	})
}

func TestKindOf(t *testing.T) {
	held := ops.Lock{Key: "k", State: joblock.StateHeld, Fence: 5, First: 5, Holder: "a"}
	with := func(l ops.Lock, f func(*ops.Lock)) ops.Lock { f(&l); return l }
	free := func(ended driver.Ended, fence int64) ops.Lock {
		return ops.Lock{Key: "k", Fence: fence, Ended: ended}
	}
	for _, tc := range []struct {
		was, is ops.Lock
		want    changeKind
	}{
		{held, held, ""},
		{held, with(held, func(l *ops.Lock) { l.Waiters, l.Now = 3, ops.Time{Time: time.Now()} }), ""},
		{ops.Lock{}, held, changeTaken},
		{held, with(held, func(l *ops.Lock) { l.Fence, l.First = 7, 7 }), changeTaken},
		{held, with(held, func(l *ops.Lock) { l.Fence = 7 }), changeResumed},
		{held, with(held, func(l *ops.Lock) { l.Holder = "b" }), changeOther},
		{held, with(held, func(l *ops.Lock) { l.State, l.Fence = joblock.StateParked, 6 }), changeParked},
		{held, with(held, func(l *ops.Lock) { l.State = joblock.StateOrphaned }), changeOrphaned},
		{held, ops.Lock{Key: "k", State: joblock.StateForeign}, changeForeign},
		{held, free(driver.EndedReleased, 5), changeReleased},
		{held, free(driver.EndedDone, 5), changeDone},
		{held, free(driver.EndedForced, 5), changeForced},
		{held, with(free(driver.EndedForced, 5), func(l *ops.Lock) { l.FreedBy = ops.FreedByKeeper }), changeFreed},
		{held, free(driver.EndedLapsed, 5), changeLapsed},
		{held, free(driver.EndedNone, 0), changeGone},
		{free(driver.EndedReleased, 5), free(driver.EndedNone, 0), ""},
		{free(driver.EndedReleased, 5), free(driver.EndedReleased, 9), changeReleased},
		{ops.Lock{}, free(driver.EndedReleased, 9), changeReleased},
		{ops.Lock{}, ops.Lock{}, ""},
	} {
		if got := kindOf(tc.was, tc.is); got != tc.want {
			t.Errorf("from %+v to %+v: %q, want %q", tc.was, tc.is, got, tc.want)
		}
	}
}
