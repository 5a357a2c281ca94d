package handoff_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

func TestFiveRequestsAtOnceOneIsServed(t *testing.T) {
	locks := newMemLocker(t)
	var served atomic.Int32
	refused := make(chan struct{}) // closed when four are
	h := handoff.Middleware(locks, fixed(handoff.Claim{Key: "export:acct-7"}))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if served.Add(1) == 1 {
				<-refused
			}
			w.WriteHeader(http.StatusAccepted)
		}))
	answers := make(chan *httptest.ResponseRecorder, 5)
	for range 5 {
		go func() { answers <- serve(h) }()
	}
	for range 4 {
		w := <-answers
		wantRefusal(t, w, http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrHeld), someSeconds)
	}
	close(refused)
	if w := <-answers; w.Code != http.StatusAccepted || served.Load() != 1 {
		t.Errorf("status is %d, %d were served; want 202 and 1", w.Code, served.Load())
	}
	wantState(t, locks, "export:acct-7", joblock.StateFree)
}

func TestRequestRunsUnderItsLock(t *testing.T) {
	locks := newMemLocker(t)
	claim := handoff.Claim{Key: "k", Holder: "export of acct-7"}
	h := handoff.Middleware(locks, fixed(claim))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, ok := joblock.FromContext(r.Context())
		if !ok || lock.Key() != "k" || lock.Err() != nil {
			t.Errorf("FromContext = %v, %v", lock, ok)
		}
		if st := wantState(t, locks, "k", joblock.StateHeld); st.Holder != claim.Holder {
			t.Errorf("holder is %q", st.Holder)
		}
	}))
	serve(h)
	wantState(t, locks, "k", joblock.StateFree)
}

func TestNoLockServesWithoutALock(t *testing.T) {
	s := newStore()
	s.Set(faultstore.Fault{Err: errDown}, faultstore.Acquire) // it is not even asked
	locks := newLocker(t, s)
	h := handoff.Middleware(locks, fixed(handoff.Claim{NoLock: true}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lock, ok := joblock.FromContext(r.Context()); ok || lock != nil {
			t.Errorf("FromContext = %v, %v; want none", lock, ok)
		}
		if all := joblock.LocksFromContext(r.Context()); all != nil {
			t.Errorf("LocksFromContext = %v", all)
		}
		if handoff.Keep(r.Context(), nil) {
			t.Error("a nil lock was kept")
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	if w := serve(h); w.Code != http.StatusAccepted {
		t.Errorf("status is %d", w.Code)
	}
}

func TestPanicReleasesAndGoesOn(t *testing.T) {
	for _, want := range []any{"boom", http.ErrAbortHandler, errors.New("an error")} {
		locks := newMemLocker(t)
		h := handoff.Middleware(locks, fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { panic(want) }))
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic is %v, want %v", got, want)
				}
			}()
			serve(h)
		}()
		wantState(t, locks, "k", joblock.StateFree)
	}
}

func TestPanicInTheClaimHoldsNothing(t *testing.T) {
	locks := newMemLocker(t)
	h := handoff.Middleware(locks, func(*http.Request) (handoff.Claim, error) { panic("boom") })(accept)
	defer func() {
		if recover() == nil {
			t.Error("the panic was swallowed")
		}
	}()
	serve(h)
}

// A real server and a real client, which goes away while it is served.
func TestClientThatIsGoneWhileServedFreesTheLock(t *testing.T) {
	locks := newMemLocker(t)
	entered := make(chan struct{})
	h := (&handoff.Guard{Locks: locks, Logger: silent}).Middleware(fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			// net/http notices that a client has gone only when its body was read.
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			close(entered)
			<-r.Context().Done()
			if cause := context.Cause(r.Context()); errors.Is(cause, joblock.ErrLost) {
				t.Errorf("cause is %v, but the lock was not lost", cause)
			}
			wantState(t, locks, "k", joblock.StateHeld)
		}))
	srv := httptest.NewServer(h)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Client().Do(req); !errors.Is(err, context.Canceled) {
		t.Errorf("the client's error is %v", err)
	}
	srv.Close() // returns when the request has been served
	wantState(t, locks, "k", joblock.StateFree)
}

func TestLossEndsTheRequestsContext(t *testing.T) {
	locks := newMemLocker(t)
	var log testkit.Log
	var owner string
	h := (&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "a", Keys: []string{"b"}}))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if err := locks.ForceRelease(r.Context(), "b", joblock.Reason("by hand")); err != nil {
				t.Error(err)
			}
			lock, _ := joblock.LocksFromContext(r.Context()).ByKey("b")
			owner = (*core.Lock)(lock).Owner()
			if err := lock.Renew(r.Context()); !errors.Is(err, joblock.ErrLost) {
				t.Errorf("Renew: %v", err)
			}
			<-r.Context().Done()
			if cause := context.Cause(r.Context()); !errors.Is(cause, joblock.ErrLost) {
				t.Errorf("cause is %v, want ErrLost", cause)
			}
		}))
	serve(h)
	wantState(t, locks, "a", joblock.StateFree)
	if text := log.String(); !strings.Contains(text, `"level":"WARN"`) || !strings.Contains(text, `"key":"b"`) {
		t.Errorf("a lock lost under the request is not in the log: %s", text)
	}
	if strings.Contains(log.String(), owner) {
		t.Error("an owner token got into the log")
	}
}

func TestFailedReleaseIsLogged(t *testing.T) {
	s := newStore()
	locks := newLocker(t, s)
	var log testkit.Log
	h := (&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { s.Set(faultstore.Fault{Err: errDown}, faultstore.Release) }))
	serve(h)
	s.Clear(faultstore.Release)
	if text := log.String(); !strings.Contains(text, `"level":"WARN"`) || !strings.Contains(text, errDown.Error()) {
		t.Errorf("log is %q", text)
	}
}

func TestWhatTheHandlerHasSettledIsLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		settle func(ctx context.Context, lock *joblock.Lock) error
		want   joblock.State
	}{
		"released": {func(ctx context.Context, lock *joblock.Lock) error { return lock.Release(ctx) }, joblock.StateFree},
		"handed over": {func(ctx context.Context, lock *joblock.Lock) error {
			_, err := lock.Park(ctx, joblock.ForJob("default/1"))
			return err
		}, joblock.StateParked},
		"kept": {func(ctx context.Context, lock *joblock.Lock) error {
			for range 2 {
				if !handoff.Keep(ctx, lock) {
					return errors.New("Keep is false")
				}
			}
			return nil
		}, joblock.StateHeld},
	} {
		t.Run(name, func(t *testing.T) {
			locks := newMemLocker(t)
			var log testkit.Log
			var lock *joblock.Lock
			h := (&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) {
					lock, _ = joblock.FromContext(r.Context())
					if err := tc.settle(r.Context(), lock); err != nil {
						t.Error(err)
					}
				}))
			serve(h)
			st := wantState(t, locks, "k", tc.want)
			if log.String() != "" {
				t.Errorf("log is %q, want none", log.String())
			}
			if st.Locked() { // and it can be released from anywhere by its owner token
				if err := locks.Release(t.Context(), lock.Token()); err != nil {
					t.Error(err)
				}
				wantState(t, locks, "k", joblock.StateFree)
			}
		})
	}
}

func TestKeepIsForTheRequestsOwnLocksWhileItRuns(t *testing.T) {
	locks := newMemLocker(t)
	strange := acquire(t, locks, "strange")
	var ctx context.Context
	var lock *joblock.Lock
	serve(handoff.Middleware(locks, fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			ctx = r.Context()
			lock, _ = joblock.FromContext(ctx)
			if handoff.Keep(ctx, strange) {
				t.Error("a lock of another caller was kept")
			}
			if handoff.Keep(context.Background(), lock) {
				t.Error("a lock was kept without its request")
			}
		})))
	if handoff.Keep(ctx, lock) {
		t.Error("a lock was kept after the response")
	}
	if ctx.Err() == nil {
		t.Error("the request's context outlives the response")
	}
	wantState(t, locks, "k", joblock.StateFree)
}

func TestSeveralKeysAreTakenTogether(t *testing.T) {
	locks := newMemLocker(t)
	claim := handoff.Claim{Key: "c", Keys: []string{"a", "b"}}
	h := handoff.Middleware(locks, fixed(claim))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first, _ := joblock.FromContext(r.Context()); first.Key() != "c" {
			t.Errorf("FromContext has %s, want the lock on Claim.Key", first.Key())
		}
		if got := keysOf(joblock.LocksFromContext(r.Context())); !slices.Equal(got, []string{"c", "a", "b"}) {
			t.Errorf("LocksFromContext has %v", got)
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	if w := serve(h); w.Code != http.StatusAccepted {
		t.Errorf("status is %d", w.Code)
	}
	blocker := acquire(t, locks, "b")
	wantRefusal(t, serve(h), http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrHeld), someSeconds)
	wantState(t, locks, "a", joblock.StateFree)
	wantState(t, locks, "c", joblock.StateFree)
	if err := blocker.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	serve(h)
	for _, key := range []string{"a", "b", "c"} {
		wantState(t, locks, key, joblock.StateFree)
	}
}

func TestNestedMiddlewares(t *testing.T) {
	locks := newMemLocker(t)
	outer := handoff.Middleware(locks, fixed(handoff.Claim{Key: "account", Keys: []string{"region"}}))
	none := handoff.Middleware(locks, fixed(handoff.Claim{NoLock: true}))
	inner := handoff.Middleware(locks, fixed(handoff.Claim{Key: "export"}))
	serve(outer(none(inner(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if lock, _ := joblock.FromContext(ctx); lock.Key() != "export" {
			t.Errorf("FromContext has %s, want the innermost", lock.Key())
		}
		all := joblock.LocksFromContext(ctx)
		if got := keysOf(all); !slices.Equal(got, []string{"account", "region", "export"}) {
			t.Errorf("LocksFromContext has %v", got)
		}
		if !handoff.Keep(ctx, all[1]) {
			t.Error("a lock of the outer middleware could not be kept")
		}
	})))))
	wantState(t, locks, "account", joblock.StateFree)
	wantState(t, locks, "region", joblock.StateHeld)
	wantState(t, locks, "export", joblock.StateFree)

	// The inner one refuses: the outer one's locks are free again all the same.
	acquire(t, locks, "export")
	outer = handoff.Middleware(locks, fixed(handoff.Claim{Key: "account"}))
	wantRefusal(t, serve(outer(inner(accept))), http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrHeld), someSeconds)
	wantState(t, locks, "account", joblock.StateFree)
}

func TestResponseWriterIsPassedThrough(t *testing.T) {
	var got http.ResponseWriter
	h := handoff.Middleware(newMemLocker(t), fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { got = w }))
	if w := serve(h); got != http.ResponseWriter(w) {
		t.Errorf("the handler got a %T", got)
	}
}

func TestMiddlewareWithoutItsPartsServesNothing(t *testing.T) {
	locks := newMemLocker(t)
	claim := fixed(handoff.Claim{Key: "k"})
	for name, tt := range map[string]struct {
		locks *joblock.Locker
		claim func(*http.Request) (handoff.Claim, error)
		next  http.Handler
	}{
		"locks":                            {nil, claim, accept},
		"claim":                            {locks, nil, accept},
		"next":                             {locks, claim, nil},
		"locks, for a request without one": {nil, fixed(handoff.Claim{NoLock: true}), accept},
	} {
		t.Run(name, func(t *testing.T) {
			var log testkit.Log
			wantRefusal(t, serve((&handoff.Guard{Locks: tt.locks, Logger: log.JSON()}).Middleware(tt.claim)(tt.next)), http.StatusInternalServerError, claimFailed, "")
			wantOneEntry(t, &log, "ERROR", "nil Locker, claim function or next handler")
			wantState(t, locks, "k", joblock.StateFree)
		})
	}
}

func keysOf(locks joblock.Locks) []string {
	var keys []string
	for _, lock := range locks {
		keys = append(keys, lock.Key())
	}
	return keys
}
