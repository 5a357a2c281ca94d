package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

func TestListWalksAllPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		for i := range 1200 {
			k.acquire(fmt.Sprintf("a:%04d", i))
		}
		k.acquire("b:1")
		wantNil(t, "Release", k.acquire("a:ended").Release(t.Context()))
		count := func(opts joblock.ListOptions) (n int) {
			t.Helper()
			for _, err := range k.locks.List(t.Context(), opts) {
				wantNil(t, "List", err)
				n++
			}
			return n
		}
		if n := count(joblock.ListOptions{}); n != 1201 {
			t.Errorf("%d locks, want 1201", n)
		}
		if n := count(joblock.ListOptions{Prefix: "a:"}); n != 1200 {
			t.Errorf("%d locks with the prefix, want 1200", n)
		}
		if n := count(joblock.ListOptions{Prefix: "a:", Ended: true}); n != 1201 {
			t.Errorf("%d locks with those that have ended, want 1201", n)
		}
		calls := k.store.Calls(faultstore.List)
		for range k.locks.List(t.Context(), joblock.ListOptions{}) {
			break
		}
		if n := k.store.Calls(faultstore.List) - calls; n != 1 {
			t.Errorf("%d pages were read for one lock", n)
		}
	})
}

// partsStore has lists of several parts. Each page but the first takes a while, and has one lock.
type partsStore struct {
	driver.Store
	parts, pages int
	took         time.Duration
	fails        string // the cursor of a page that cannot be read

	mu      sync.Mutex
	reading map[int]bool            // parts of which a page is being read
	most    int                     // of reading
	begun   map[int][]time.Duration // when the pages of each part were asked for, from start on
	start   time.Time
}

func newPartsStore(parts, pages int, took time.Duration) *partsStore {
	return &partsStore{
		Store: memstore.New(nil), parts: parts, pages: pages, took: took,
		reading: make(map[int]bool), begun: make(map[int][]time.Duration), start: time.Now(),
	}
}

var errPage = errors.New("page cannot be read")

func (s *partsStore) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	var page driver.ListPage
	if req.Cursor == "" {
		for part := range s.parts {
			page.Next = append(page.Next, fmt.Sprint(part, " ", 0))
		}
		return page, nil
	}
	var part, n int
	if _, err := fmt.Sscan(req.Cursor, &part, &n); err != nil {
		return page, err
	}
	if req.Cursor == s.fails {
		return page, errPage
	}
	s.mu.Lock()
	if s.reading[part] {
		panic("two pages of one part at the same time")
	}
	s.reading[part] = true
	s.most = max(s.most, len(s.reading))
	s.begun[part] = append(s.begun[part], time.Since(s.start))
	s.mu.Unlock()
	select {
	case <-time.After(s.took):
	case <-ctx.Done():
	}
	s.mu.Lock()
	delete(s.reading, part)
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return page, err
	}
	page.Records = []driver.Record{{Key: req.Cursor, State: driver.StateHeld}}
	page.Progress = 1 / float64(s.parts*s.pages)
	if n+1 < s.pages {
		page.Next = []string{fmt.Sprint(part, " ", n+1)}
	}
	return page, nil
}

func TestListReadsPartsAtTheSameTimeAndRestsBetweenPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newPartsStore(3, 4, time.Second)
		locks := newKit(t, nil).open(store, nil)
		var progress []float64
		keys := make(map[string]bool)
		for st, err := range locks.List(t.Context(), joblock.ListOptions{
			Share: 0.2, Progress: func(done float64) { progress = append(progress, done) },
		}) {
			wantNil(t, "List", err)
			keys[st.Key] = true
		}
		if len(keys) != 12 {
			t.Errorf("listed %d locks, want 12: %v", len(keys), keys)
		}
		for part, begun := range store.begun {
			if want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second}; !slices.Equal(begun, want) {
				t.Errorf("the pages of part %d were asked for at %s, want %s", part, begun, want)
			}
		}
		if n := len(progress); n != 14 || progress[0] != 0 || math.Abs(progress[6]-0.5) > 1e-9 || progress[n-1] != 1 || !slices.IsSorted(progress) {
			t.Errorf("the progress was %v, want 0 to 1 in steps of 1/12", progress)
		}
	})
}

func TestListReadsSixteenPartsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newPartsStore(40, 2, time.Second)
		locks := newKit(t, nil).open(store, nil)
		n := 0
		for _, err := range locks.List(t.Context(), joblock.ListOptions{Share: 1}) {
			wantNil(t, "List", err)
			n++
		}
		if n != 80 || store.most != 16 {
			t.Errorf("listed %d locks and read up to %d parts at a time, want 80 and 16", n, store.most)
		}
	})
}

// What the loop does with a lock counts as rest.
func TestListDoesNotRestAfterASlowLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newPartsStore(1, 3, time.Second)
		locks := newKit(t, nil).open(store, nil)
		for _, err := range locks.List(t.Context(), joblock.ListOptions{}) {
			wantNil(t, "List", err)
			time.Sleep(3 * time.Second)
		}
		if took := time.Since(store.start); took != 12*time.Second {
			t.Errorf("the walk took %s, want 12s", took)
		}
	})
}

func TestListEndsAtOnce(t *testing.T) {
	cause := errors.New("enough")
	for _, tc := range []struct {
		name string
		end  func(locks *joblock.Locker, cancel context.CancelCauseFunc)
		want error
	}{
		{"with its context", func(_ *joblock.Locker, cancel context.CancelCauseFunc) { cancel(cause) }, cause},
		{"with its Locker", func(locks *joblock.Locker, _ context.CancelCauseFunc) { locks.Close(context.Background()) }, joblock.ErrClosed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newPartsStore(2, 3, time.Second)
				locks := newKit(t, nil).open(store, nil)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(10*time.Second, func() { tc.end(locks, cancel) }) // between two pages
				var errs []error
				for _, err := range locks.List(ctx, joblock.ListOptions{Share: 0.01}) {
					if err != nil {
						errs = append(errs, err)
					}
				}
				if len(errs) != 1 || !errors.Is(errs[0], tc.want) {
					t.Errorf("the errors are %v, want %v", errs, tc.want)
				}
				if took := time.Since(store.start); took != 10*time.Second {
					t.Errorf("the walk ended after %s, want 10s", took)
				}
			})
		})
	}
}

func TestListReportsOnePageThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newPartsStore(5, 3, time.Second)
		store.fails = "2 1"
		locks := newKit(t, nil).open(store, nil)
		var errs []error
		for _, err := range locks.List(t.Context(), joblock.ListOptions{}) {
			if err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) != 1 || !errors.Is(errs[0], joblock.ErrUnavailable) || !errors.Is(errs[0], errPage) {
			t.Errorf("the errors are %v, want ErrUnavailable because of %q", errs, errPage)
		}
	})
}

func TestListRefusesBadShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		for _, share := range []float64{-0.5, 0.0009, 1.001, math.Inf(1), math.NaN()} {
			for _, err := range k.locks.List(t.Context(), joblock.ListOptions{Share: share}) {
				wantErr(t, err, joblock.ErrInvalid)
			}
			if n := k.store.Calls(faultstore.List); n != 0 {
				t.Fatalf("with Share %v List sent %d calls", share, n)
			}
		}
	})
}
