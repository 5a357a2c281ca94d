package memo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

func TestReadShowsStateMemoAndTheStoresClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		k.StoreSkew = time.Hour
		lock := k.Acquire("held")
		testkit.WantNil(t, "memo.Write", memo.Write(t.Context(), lock, []byte("page 7")))
		done := k.Acquire("done")
		testkit.WantNil(t, "memo.Write", memo.Write(t.Context(), done, []byte("page 9")))
		testkit.WantNil(t, "Release", done.Release(t.Context()))

		before := k.Store.Calls(faultstore.Inspect)
		views, err := memo.Read(t.Context(), k.Locks, "done", "never", "held")
		testkit.WantNil(t, "Read", err)
		if n := k.Store.Calls(faultstore.Inspect) - before; n != 1 {
			t.Errorf("%d calls, want one for all keys", n)
		}
		for i, want := range []struct {
			key   string
			state joblock.State
			memo  string
		}{{"done", joblock.StateFree, "page 9"}, {"never", joblock.StateFree, ""}, {"held", joblock.StateHeld, "page 7"}} {
			v := views[i]
			if v.Key != want.key || v.State != want.state || !bytes.Equal(v.Memo, []byte(want.memo)) {
				t.Errorf("view %d is %+v, want %+v", i, v, want)
			}
			if want.key == "never" {
				if !v.Now.IsZero() {
					t.Errorf("a key without a record was read at %s", v.Now)
				}
			} else if d := time.Until(v.Now).Round(time.Second); d != time.Hour {
				t.Errorf("the store's clock is %s ahead, want 1h", d)
			}
			if v.Owner == (*core.Lock)(lock).Owner() {
				t.Error("the view shows the owner token")
			}
		}
	})
}

func TestReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		_, err := memo.Read(t.Context(), k.Locks, "good", strings.Repeat("x", driver.MaxKeyBytes+1))
		testkit.WantErr(t, err, joblock.ErrInvalid)
		if n := k.Store.Calls(""); n != 0 {
			t.Errorf("%d calls were made for a bad key", n)
		}
		views, err := memo.Read(t.Context(), k.Locks)
		if len(views) != 0 || err != nil {
			t.Errorf("Read of nothing: %v, %v", views, err)
		}
		k.Store.Set(faultstore.Fault{}, faultstore.Inspect)
		views, err = memo.Read(t.Context(), k.Locks, "a", "b")
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		if views != nil {
			t.Errorf("views without an answer: %+v", views)
		}
		k.Store.Clear()
		testkit.WantNil(t, "Close", k.Locks.Close(context.Background()))
		_, err = memo.Read(t.Context(), k.Locks, "a")
		testkit.WantErr(t, err, joblock.ErrClosed)
	})
}

// halfStore answers for the first key only, as a cluster with a dead node does.
type halfStore struct{ driver.Store }

func (s halfStore) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	recs, err := s.Store.Inspect(ctx, req)
	for i := range recs[1:] {
		recs[i+1] = driver.Record{Key: req.Keys[i+1]}
	}
	if err == nil && len(recs) > 1 {
		err = faultstore.Err
	}
	return recs, err
}

// A key that could not be read would look like a key that was never used.
func TestReadReturnsAllViewsOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		locks := k.Open(halfStore{k.Mem}, nil)
		k.Acquire("a")
		k.Acquire("b")
		views, err := memo.Read(t.Context(), locks, "a", "b")
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		if views != nil {
			t.Errorf("views %+v, want none: one key has no answer", views)
		}
	})
}

func TestReadOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		keys := make([]string, driver.MaxBatch+1)
		for i := range keys {
			keys[i] = fmt.Sprint("key ", i)
		}
		last := k.Acquire(keys[driver.MaxBatch])
		testkit.WantNil(t, "memo.Write", memo.Write(t.Context(), last, []byte("last")))
		before := k.Store.Calls(faultstore.Inspect)
		views, err := memo.Read(t.Context(), k.Locks, keys...)
		testkit.WantNil(t, "Read", err)
		if n := k.Store.Calls(faultstore.Inspect) - before; n != 2 {
			t.Errorf("%d calls for %d keys, want 2", n, len(keys))
		}
		if len(views) != len(keys) || string(views[len(keys)-1].Memo) != "last" {
			t.Errorf("%d views of %d keys, or not in their order", len(views), len(keys))
		}
	})
}

func TestViewInJSON(t *testing.T) {
	v := memo.View{Status: joblock.Status{Key: "import", State: joblock.StateHeld, TTL: time.Minute}}
	for _, c := range []struct{ memo, want string }{
		{"", `{"key":"import","state":"held","ttl_ms":60000}`},
		{"page 7", `{"key":"import","state":"held","ttl_ms":60000,"memo":"cGFnZSA3"}`},
	} {
		v.Memo = []byte(c.memo)
		text, err := json.Marshal(v)
		if err != nil || string(text) != c.want {
			t.Errorf("%s, %v; want %s", text, err, c.want)
		}
	}
}

// A lock that came without its memo, such as that of a job, gets the memo with Load.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkit.New(t, nil)
		first := k.Acquire("key")
		testkit.WantNil(t, "memo.Write", memo.Write(t.Context(), first, []byte("page 7")))
		testkit.WantNil(t, "Release", first.Release(t.Context()))

		lock := k.Acquire("key")
		if got := memo.Of(lock); got != nil {
			t.Fatalf("the lock came with the memo %q", got)
		}
		got, err := memo.Load(t.Context(), lock)
		if err != nil || string(got) != "page 7" || string(memo.Of(lock)) != "page 7" {
			t.Errorf("Load: %q, %v, and then Of: %q; want page 7", got, err, memo.Of(lock))
		}

		k.Store.Set(faultstore.Fault{Err: errors.New("away")}, faultstore.Inspect)
		_, err = memo.Load(t.Context(), lock)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		k.Store.Clear()
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
		later := k.Acquire("key")
		testkit.WantNil(t, "memo.Write", memo.Write(t.Context(), later, []byte("page 8")))
		if got, err := memo.Load(t.Context(), lock); got != nil || !errors.Is(err, joblock.ErrAlreadyReleased) {
			t.Errorf("after the lock's end: %q, %v, want ErrAlreadyReleased and not the next holder's memo", got, err)
		}
		_, err = memo.Load(t.Context(), nil)
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
}

// After a Write that fails, Of returns what it returned before.
func TestOfAfterAWriteThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		fail func(k *lockkit.Kit, lock *joblock.Lock)
		want error
	}{
		"forced": {func(k *lockkit.Kit, lock *joblock.Lock) {
			testkit.WantNil(k, "ForceRelease", k.Locks.ForceRelease(k.Context(), lock.Key()))
		}, joblock.ErrLost},
		"forced, and another holder": {func(k *lockkit.Kit, lock *joblock.Lock) {
			testkit.WantNil(k, "ForceRelease", k.Locks.ForceRelease(k.Context(), lock.Key()))
			testkit.WantNil(k, "memo.Write", memo.Write(k.Context(), k.Acquire(lock.Key()), []byte("theirs")))
		}, joblock.ErrLost},
		"released": {func(k *lockkit.Kit, lock *joblock.Lock) {
			testkit.WantNil(k, "Release", lock.Release(k.Context()))
		}, joblock.ErrAlreadyReleased},
		"parked": {func(k *lockkit.Kit, lock *joblock.Lock) {
			_, err := lock.Park(k.Context())
			testkit.WantNil(k, "Park", err)
		}, joblock.ErrNotOwner},
		"not sent": {func(k *lockkit.Kit, _ *joblock.Lock) {
			k.Store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew)
		}, joblock.ErrUnavailable},
		"not answered": {func(k *lockkit.Kit, _ *joblock.Lock) {
			k.Store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Renew)
		}, joblock.ErrUnavailable},
	} {
		for before, write := range map[string][]byte{"": nil, "page 7": []byte("page 7")} {
			t.Run(fmt.Sprintf("%s, %q before", name, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := lockkit.New(t, nil)
					lock := k.Acquire("key")
					testkit.WantNil(t, "memo.Write", memo.Write(t.Context(), lock, write))
					tc.fail(k, lock)
					testkit.WantErr(t, memo.Write(t.Context(), lock, []byte("page 8")), tc.want)
					if got := string(memo.Of(lock)); got != before {
						t.Errorf("then Of returns %q, want %q", got, before)
					}
					k.Store.Clear()
				})
			})
		}
	}
}
