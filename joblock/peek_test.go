package joblock_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestPeekShowsStateMemoAndTheStoresClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.StoreSkew = time.Hour
		lock := k.acquire("held")
		wantNil(t, "SetMemo", lock.SetMemo(t.Context(), []byte("page 7")))
		done := k.acquire("done")
		wantNil(t, "SetMemo", done.SetMemo(t.Context(), []byte("page 9")))
		wantNil(t, "Release", done.Release(t.Context()))

		before := k.store.Calls(faultstore.Inspect)
		views, err := k.locks.Peek(t.Context(), "done", "never", "held")
		wantNil(t, "Peek", err)
		if n := k.store.Calls(faultstore.Inspect) - before; n != 1 {
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
			if v.Owner == lock.Owner() {
				t.Error("the view shows the owner token")
			}
		}
	})
}

func TestPeekErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		_, err := k.locks.Peek(t.Context(), "good", strings.Repeat("x", driver.MaxKeyBytes+1))
		wantErr(t, err, joblock.ErrInvalid)
		if n := k.store.Calls(""); n != 0 {
			t.Errorf("%d calls were made for a bad key", n)
		}
		views, err := k.locks.Peek(t.Context())
		if len(views) != 0 || err != nil {
			t.Errorf("Peek of nothing: %v, %v", views, err)
		}
		k.store.Set(faultstore.Fault{}, faultstore.Inspect)
		views, err = k.locks.Peek(t.Context(), "a", "b")
		wantErr(t, err, joblock.ErrUnavailable)
		if len(views) != 2 || views[1].Key != "b" || !views[1].Now.IsZero() {
			t.Errorf("views without an answer: %+v", views)
		}
		k.store.Clear()
		wantNil(t, "Close", k.locks.Close(context.Background()))
		_, err = k.locks.Peek(t.Context(), "a")
		wantErr(t, err, joblock.ErrClosed)
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

func TestPeekReturnsWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks := k.open(halfStore{k.mem}, nil)
		k.acquire("a")
		k.acquire("b")
		views, err := locks.Peek(t.Context(), "a", "b")
		wantErr(t, err, joblock.ErrUnavailable)
		if views[0].Now.IsZero() || !views[1].Now.IsZero() {
			t.Errorf("views %+v, want an answer for the first only", views)
		}
	})
}
