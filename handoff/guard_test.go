package handoff_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

func TestGuardCallsUnderTheLocks(t *testing.T) {
	locks := newMemLocker(t)
	guard := &handoff.Guard{Locks: locks}
	type name struct{}
	var inside context.Context
	errOwn := errors.New("the function's own")
	err := guard.Do(context.WithValue(t.Context(), name{}, "mine"), handoff.Claim{Key: "a", Keys: []string{"b"}, Holder: "me"},
		func(ctx context.Context) error {
			inside = ctx
			lock, _ := joblock.FromContext(ctx)
			if lock.Key() != "a" || len(joblock.LocksFromContext(ctx)) != 2 || ctx.Err() != nil || ctx.Value(name{}) != "mine" {
				t.Errorf("the context has %v, %v", joblock.LocksFromContext(ctx), context.Cause(ctx))
			}
			for _, key := range []string{"a", "b"} {
				if st := wantState(t, locks, key, joblock.StateHeld); st.Holder != "me" {
					t.Errorf("the holder of %s is %q", key, st.Holder)
				}
			}
			return errOwn
		})
	if err != errOwn {
		t.Fatalf("the error is %+v, want that of the function", err)
	}
	if inside == nil || inside.Err() == nil {
		t.Error("the context goes on after the call")
	}
	wantState(t, locks, "a", joblock.StateFree)
	wantState(t, locks, "b", joblock.StateFree)
}

// wantRefusedBy checks that guard refuses claim without a call, and returns the refusal.
func wantRefusedBy(t *testing.T, guard *handoff.Guard, claim handoff.Claim) *handoff.Refusal {
	t.Helper()
	err := guard.Do(t.Context(), claim, func(context.Context) error { t.Error("called"); return nil })
	var refusal *handoff.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("the error is %v, want a Refusal", err)
	}
	return refusal
}

func TestGuardRefusesWithoutACall(t *testing.T) {
	noLocker := func(*testing.T) *joblock.Locker { return nil }
	away := func(t *testing.T) *joblock.Locker {
		store := newStore()
		store.Set(faultstore.Fault{Err: errDown}, faultstore.Acquire)
		return newLocker(t, store)
	}
	for name, tt := range map[string]struct {
		locks  func(t *testing.T) *joblock.Locker // nil: a Locker whose key "held" is held
		claim  handoff.Claim
		status int
		code   string
	}{
		"held":        {nil, handoff.Claim{Key: "held"}, 429, joblock.CodeOf(joblock.ErrHeld)},
		"empty part":  {nil, handoff.Claim{Key: joblock.Key("export", "")}, 400, joblock.CodeOf(joblock.ErrInvalid)},
		"no claim":    {nil, handoff.Claim{}, 500, claimFailed},
		"store away":  {away, handoff.Claim{Key: "a"}, 503, joblock.CodeOf(joblock.ErrUnavailable)},
		"nil Locker":  {noLocker, handoff.Claim{Key: "a"}, 500, claimFailed},
		"nil, NoLock": {noLocker, handoff.Claim{NoLock: true}, 500, claimFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log testkit.Log
				locks := newMemLocker(t)
				acquire(t, locks, "held")
				guard := &handoff.Guard{Locks: locks, Logger: log.JSON()}
				if tt.locks != nil {
					guard.Locks = tt.locks(t)
				}
				refusal := wantRefusedBy(t, guard, tt.claim)
				if refusal.Status != tt.status || refusal.Code != tt.code || refusal.Err == nil {
					t.Fatalf("the refusal is %+v", refusal)
				}
				if retry := refusal.RetryAfter >= time.Second; retry != (tt.status == 429 || tt.status == 503) {
					t.Errorf("RetryAfter is %s", refusal.RetryAfter)
				}
				switch tt.status {
				case 500:
					wantOneEntry(t, &log, "ERROR", "")
				case 503, 400:
					wantOneEntry(t, &log, "WARN", "")
				}
				wantState(t, locks, "a", joblock.StateFree)
			})
		})
	}
	locks := newMemLocker(t)
	var none *handoff.Guard
	if refusal := wantRefusedBy(t, none, handoff.Claim{Key: "a"}); refusal.Status != 500 {
		t.Errorf("a nil Guard: %+v", refusal)
	}
	if refusal := handoff.RefusalOf(t.Context(), (&handoff.Guard{Locks: locks}).Do(t.Context(), handoff.Claim{Key: "a"}, nil)); refusal.Status != 500 {
		t.Errorf("a nil function: %+v", refusal)
	}
	wantState(t, locks, "a", joblock.StateFree)
}

func TestGuardReleasesAfterAPanic(t *testing.T) {
	locks := newMemLocker(t)
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("the panic is %v", p)
			}
		}()
		_ = (&handoff.Guard{Locks: locks}).Do(t.Context(), handoff.Claim{Key: "k"}, func(context.Context) error { panic("boom") })
	}()
	wantState(t, locks, "k", joblock.StateFree)
}

// Keep works with every Guard around the call, and so does the check that the request has the lock already.
func TestGuardsInEachOther(t *testing.T) {
	locks := newMemLocker(t)
	guard := &handoff.Guard{Locks: locks}
	var kept *joblock.Lock
	h := handoff.Middleware(locks, fixed(handoff.Claim{Key: "outer"}))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		kept, _ = joblock.FromContext(r.Context())
		var refusal *handoff.Refusal
		err := guard.Do(r.Context(), handoff.Claim{Key: "outer"}, func(context.Context) error { t.Error("called"); return nil })
		if !errors.As(err, &refusal) || refusal.Status != 500 {
			t.Errorf("the lock that the request has is refused with %+v", err)
		}
		if err := guard.Do(r.Context(), handoff.Claim{Key: "inner"}, func(ctx context.Context) error {
			if !handoff.Keep(ctx, kept) {
				t.Error("the outer lock cannot be kept inside")
			}
			return nil
		}); err != nil {
			t.Errorf("refused: %+v", err)
		}
	}))
	serve(h)
	wantState(t, locks, "inner", joblock.StateFree)
	wantState(t, locks, "outer", joblock.StateHeld)
	if err := kept.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Some servers write the next request over the texts of the last one.
func TestTheLockHasItsOwnKey(t *testing.T) {
	locks := newMemLocker(t)
	text := func(s string) (string, []byte) { b := []byte(s); return unsafe.String(&b[0], len(b)), b }
	key, keyBytes := text("export")
	further, furtherBytes := text("audit")
	holder, holderBytes := text("acct-7")
	var held joblock.Locks
	err := (&handoff.Guard{Locks: locks}).Do(t.Context(), handoff.Claim{Key: key, Keys: []string{further}, Holder: holder}, func(ctx context.Context) error {
		held = joblock.LocksFromContext(ctx)
		for _, b := range [][]byte{keyBytes, furtherBytes, holderBytes} {
			copy(b, "XXXXXXXX")
		}
		if st := wantState(t, locks, "export", joblock.StateHeld); st.Holder != "acct-7" {
			t.Errorf("the holder is %q", st.Holder)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("refused: %+v", err)
	}
	if held[0].Key() != "export" || held[1].Key() != "audit" {
		t.Errorf("the locks have the keys %q and %q now", held[0].Key(), held[1].Key())
	}
	wantState(t, locks, "export", joblock.StateFree)
	wantState(t, locks, "audit", joblock.StateFree)
}

// RefusalOf takes the options of the Guard around the handler, and the defaults elsewhere.
func TestRefusalOf(t *testing.T) {
	held := fmt.Errorf("export: %w", &joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: "k", Remaining: time.Hour})
	guard := &handoff.Guard{Locks: newMemLocker(t), MaxRetryAfter: 7 * time.Second}
	if err := guard.Do(t.Context(), handoff.Claim{NoLock: true}, func(ctx context.Context) error {
		if f := handoff.RefusalOf(ctx, held); f.Status != 429 || f.RetryAfter != 7*time.Second || !errors.Is(f.Err, joblock.ErrHeld) {
			t.Errorf("inside: %+v", f)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if f := handoff.RefusalOf(t.Context(), held); f.Status != 429 || f.RetryAfter != time.Minute {
		t.Errorf("outside: %+v", f)
	}
	if f := handoff.RefusalOf(t.Context(), nil); f.Status != 500 {
		t.Errorf("of no error: %+v", f)
	}
}

// A framework that writes a Refusal as JSON writes what Refusal.ServeHTTP writes.
func TestRefusalAsJSON(t *testing.T) {
	locks := newMemLocker(t)
	acquire(t, locks, "secret")
	refusal := wantRefusedBy(t, &handoff.Guard{Locks: locks}, handoff.Claim{Key: "secret"})
	text, err := json.Marshal(refusal)
	if err != nil {
		t.Fatal(err)
	}
	w := serve(http.HandlerFunc(refusal.ServeHTTP))
	if want := w.Body.String(); string(text)+"\n" != want {
		t.Errorf("JSON is %s, want %s", text, want)
	}
	var fields map[string]string
	if err := json.Unmarshal(text, &fields); err != nil || len(fields) != 2 || fields["code"] == "" || fields["message"] == "" {
		t.Errorf("JSON is %s", text)
	}
}
