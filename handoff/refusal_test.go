package handoff_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// body is the JSON answer to a refused request.
type body struct{ Message, Code string }

// someSeconds stands for a Retry-After that depends on a clock that runs.
const someSeconds = "some"

// wantRefusal checks the default answer and returns its body.
func wantRefusal[C ~string](t *testing.T, w *httptest.ResponseRecorder, status int, code C, retryAfter string) body {
	t.Helper()
	if w.Code != status {
		t.Errorf("status is %d, want %d", w.Code, status)
	}
	if got := w.Header().Get("Retry-After"); retryAfter == someSeconds {
		if n, err := strconv.Atoi(got); err != nil || n < 1 || n > 60 {
			t.Errorf("Retry-After is %q, want a number from 1 to 60", got)
		}
	} else if got != retryAfter {
		t.Errorf("Retry-After is %q, want %q", got, retryAfter)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type is %q", got)
	}
	var b body
	dec := json.NewDecoder(w.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		t.Fatalf("body is not the JSON object: %v", err)
	}
	if b.Code != string(code) || b.Message == "" {
		t.Errorf("body is %+v, want code %s", b, code)
	}
	return b
}

func TestRetryAfterIsWhatIsLeftRoundedUpWithinBounds(t *testing.T) {
	for _, tc := range []struct {
		name string
		ttl  time.Duration
		hold time.Duration // parked for so long, if not 0
		most time.Duration
		want string
	}{
		{name: "next to nothing", ttl: time.Millisecond, want: "1"},
		{name: "less than whole seconds", ttl: 1990 * time.Millisecond, want: "2"},
		{name: "rounded up", ttl: 2001 * time.Millisecond, want: "3"},
		{name: "reserved for an hour", ttl: time.Second, hold: time.Hour, want: "60"},
		{name: "a lease of a minute", ttl: time.Minute, want: "60"},
		{name: "a lease of two minutes", ttl: 2 * time.Minute, want: "60"},
		{name: "reserved for two hours", ttl: time.Second, hold: 2 * time.Hour, want: "120"},
		{name: "reserved for a retry in two days", ttl: time.Second, hold: 49 * time.Hour, want: "2940"},
		{name: "reserved for ten days", ttl: time.Second, hold: 240 * time.Hour, want: "3600"},
		{name: "reserved for ten days, bound of the caller", ttl: time.Second, hold: 240 * time.Hour, most: time.Minute, want: "60"},
		{name: "bound of the caller", ttl: time.Hour, most: 5 * time.Second, want: "5"},
		{name: "senseless bound", ttl: time.Hour, most: -time.Second, want: "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Virtual time: a lease of a millisecond may be over before its acquire returns.
			synctest.Test(t, func(t *testing.T) {
				locks := newMemLocker(t)
				lock := acquire(t, locks, "k", joblock.TTL(tc.ttl), joblock.NoRenew())
				if tc.hold > 0 {
					if _, err := lock.Park(t.Context(), joblock.Reserve(tc.hold), joblock.ForJob("default/1")); err != nil {
						t.Fatal(err)
					}
				}
				w := serve((&handoff.Guard{Locks: locks, MaxRetryAfter: tc.most}).Middleware(fixed(handoff.Claim{Key: "k"}))(accept))
				wantRefusal(t, w, http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrHeld), tc.want)
			})
		})
	}
}

func TestAnswersByError(t *testing.T) {
	refuse := func(err error) func(*http.Request) (handoff.Claim, error) {
		return func(*http.Request) (handoff.Claim, error) { return handoff.Claim{}, err }
	}
	busy := &joblock.Error{Code: joblock.CodeOf(joblock.ErrBusy), Key: "k", Remaining: 1500 * time.Millisecond}
	for _, tc := range []struct {
		name       string
		claim      func(*http.Request) (handoff.Claim, error)
		status     int
		code       string
		retryAfter string
		says       string // part of the log
	}{
		{"key too long", fixed(handoff.Claim{Key: strings.Repeat("k", driver.MaxKeyBytes+1)}),
			400, joblock.CodeOf(joblock.ErrInvalid), "", "at most 512"},
		{"control character", fixed(handoff.Claim{Key: "a\nb"}), 400, joblock.CodeOf(joblock.ErrInvalid), "", "control character"},
		{"an empty part", fixed(handoff.Claim{Key: joblock.Key("export", "")}), 400, joblock.CodeOf(joblock.ErrInvalid), "", "part 2 of the key is empty"},
		{"an empty part of a further key", fixed(handoff.Claim{Key: "a", Keys: []string{joblock.Key("")}}), 400, joblock.CodeOf(joblock.ErrInvalid), "", "part 1 of the key is empty"},
		{"a key of the toolkit's own", fixed(handoff.Claim{Key: "100%next"}), 400, joblock.CodeOf(joblock.ErrInvalid), "", "joblock.Key"},
		{"control character in a further key", fixed(handoff.Claim{Key: "a", Keys: []string{"a\nb"}}), 400, joblock.CodeOf(joblock.ErrInvalid), "", "control character"},
		{"a bad key and a bad TTL", fixed(handoff.Claim{Key: "a\nb", TTL: -1}), 400, joblock.CodeOf(joblock.ErrInvalid), "", "control character"},
		{"the claim says invalid", refuse(fmt.Errorf("secret: %w", &joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Detail: "account is missing"})),
			400, joblock.CodeOf(joblock.ErrInvalid), "", "account is missing"},
		{"the claim says busy", refuse(busy), 429, joblock.CodeOf(joblock.ErrBusy), "2", ""},
		{"the claim says unavailable", refuse(joblock.ErrUnavailable), 503, joblock.CodeOf(joblock.ErrUnavailable), "1", "outcome unknown"},
		{"the claim's own time is up", refuse(fmt.Errorf("secret: %w", context.DeadlineExceeded)), 503, joblock.CodeOf(joblock.ErrTimeout), "1", "deadline"},
		{"the claim fails", refuse(errors.New("secret: database is on fire")), 500, claimFailed, "", "on fire"},
		{"the claim says not found", refuse(fmt.Errorf("secret: %w", joblock.ErrNotFound)), 500, claimFailed, "", "no such lock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			served := false
			next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })
			var log testkit.Log
			w := serve((&handoff.Guard{Locks: newMemLocker(t), Logger: log.JSON()}).Middleware(tc.claim)(next))
			b := wantRefusal(t, w, tc.status, tc.code, tc.retryAfter)
			if tc.says != "" && strings.Contains(b.Message, tc.says) || strings.Contains(b.Message, "secret") {
				t.Errorf("message is %q, which is text of the error", b.Message)
			}
			if served {
				t.Error("a refused request was served")
			}
			switch tc.status {
			case 500:
				wantOneEntry(t, &log, "ERROR", tc.says)
			case 503, 400:
				wantOneEntry(t, &log, "WARN", tc.says)
			default:
				if log.String() != "" {
					t.Errorf("what is no fault of the server is logged: %s", log.String())
				}
			}
		})
	}
}

// foreignStore finds something that is not a lock at every key.
type foreignStore struct {
	driver.Store
	asked atomic.Int32
}

func (s *foreignStore) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	s.asked.Add(1)
	return driver.Reply{Outcome: driver.OutcomeForeign}, nil
}

// What the application and its store have made wrong is not the client's fault.
func TestFaultsOfTheServerAre500(t *testing.T) {
	for name, tc := range map[string]struct {
		claim handoff.Claim
		says  string
		asked int32
	}{
		"nothing":             {handoff.Claim{}, "Claim.NoLock", 0},
		"no key but a TTL":    {handoff.Claim{TTL: time.Second}, "Claim.Key is empty", 0},
		"no first key":        {handoff.Claim{Keys: []string{"k"}}, "Claim.Key is empty", 0},
		"a further key empty": {handoff.Claim{Key: "k", Keys: []string{""}}, "Claim.Keys", 0},
		"a lock and none":     {handoff.Claim{Key: "k", NoLock: true}, "Claim.NoLock", 0},
		"none for a while":    {handoff.Claim{MaxHold: 1, NoLock: true}, "Claim.NoLock", 0},
		"negative hold":       {handoff.Claim{Key: "k", MaxHold: -1}, "Claim.MaxHold is -1ns, must be from 0", 0},
		"hold too long":       {handoff.Claim{Key: "k", MaxHold: driver.MaxPeriod + 1}, "Claim.MaxHold", 0},
		"negative TTL":        {handoff.Claim{Key: "k", TTL: -1}, "TTL", 0},
		"TTL too long":        {handoff.Claim{Key: "k", TTL: 48 * time.Hour}, "TTL", 0},
		"negative wait":       {handoff.Claim{Key: "k", MaxWait: -1}, "MaxWait", 0},
		"holder too long":     {handoff.Claim{Key: "k", Holder: strings.Repeat("h", driver.MaxLabelBytes+1)}, "holder", 0},
		"holder not UTF-8":    {handoff.Claim{Key: "k", Holder: "\xff"}, "holder", 0},
		"foreign value":       {handoff.Claim{Key: "k"}, "not a lock", 1},
		"foreign, of Keys":    {handoff.Claim{Key: "k", Keys: []string{"l"}}, "not a lock", 1},
		"foreign, and waits":  {handoff.Claim{Key: "k", MaxWait: time.Minute}, "not a lock", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := &foreignStore{Store: newStore()}
			var log testkit.Log
			ctx, cancel := context.WithCancel(t.Context())
			var got handoff.Refusal
			answer := func(w http.ResponseWriter, r *http.Request, f handoff.Refusal) {
				got = f
				cancel()
				f.ServeHTTP(w, r)
			}
			h := (&handoff.Guard{Locks: newLocker(t, s), Logger: log.JSON(), OnRefusal: answer}).Middleware(fixed(tc.claim))(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") }))
			w := serveRequest(h, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
			b := wantRefusal(t, w, http.StatusInternalServerError, claimFailed, "")
			if strings.Contains(b.Message, tc.says) {
				t.Errorf("message %q tells the client about our mistake", b.Message)
			}
			if !errors.Is(got.Err, joblock.ErrInvalid) {
				t.Errorf("Refusal.Err is %v, want ErrInvalid", got.Err)
			}
			wantOneEntry(t, &log, "ERROR", tc.says)
			if n := s.asked.Load(); n != tc.asked {
				t.Errorf("the store was asked %d times, want %d", n, tc.asked)
			}
		})
	}
}

func TestRefusalMadeByHandIsServed(t *testing.T) {
	for _, status := range []int{-1, 0, 99, http.StatusContinue, http.StatusSwitchingProtocols, 1000} {
		w := httptest.NewRecorder()
		handoff.Refusal{Status: status}.ServeHTTP(w, nil)
		wantRefusal(t, w, http.StatusInternalServerError, claimFailed, "")
	}
	w := httptest.NewRecorder()
	handoff.Refusal{Status: 418, Code: "TEAPOT", Message: "short and stout", RetryAfter: 1}.ServeHTTP(w, nil)
	wantRefusal(t, w, 418, "TEAPOT", "1")
}

func TestStoreThatIsDownIs503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var log testkit.Log
		h := (&handoff.Guard{Locks: newLocker(t, s), Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "k"}))(accept)
		s.Set(faultstore.Fault{Err: errDown}, faultstore.Acquire)
		b := wantRefusal(t, serve(h), http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrUnavailable), "1")
		if strings.Contains(b.Message, errDown.Error()) {
			t.Errorf("message %q tells the client about our network", b.Message)
		}
		if !strings.Contains(log.String(), errDown.Error()) {
			t.Errorf("log does not name the cause: %s", log.String())
		}
		s.Clear(faultstore.Acquire)
		if w := serve(h); w.Code != http.StatusAccepted {
			t.Errorf("status is %d when the store is back", w.Code)
		}
	})
}

func TestClosedLockerIs503(t *testing.T) {
	locks := newMemLocker(t)
	if err := locks.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := serve((&handoff.Guard{Locks: locks, Logger: silent}).Middleware(fixed(handoff.Claim{Key: "k"}))(accept))
	wantRefusal(t, w, http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrClosed), "1")
}

func TestWaitThatIsUpIs429(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		acquire(t, locks, "k", joblock.TTL(10*time.Second))
		start := time.Now()
		w := serve(handoff.Middleware(locks, fixed(handoff.Claim{Key: "k", MaxWait: time.Minute}))(accept))
		wantRefusal(t, w, http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrTimeout), someSeconds)
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("waited %s, want MaxWait", waited)
		}
	})
}

func TestWaitThatIsRewardedIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		lock := acquire(t, locks, "k")
		time.AfterFunc(10*time.Second, func() { _ = lock.Release(context.Background()) })
		w := serve(handoff.Middleware(locks, fixed(handoff.Claim{Key: "k", MaxWait: time.Minute}))(accept))
		if w.Code != http.StatusAccepted {
			t.Errorf("status is %d, want 202", w.Code)
		}
	})
}

func TestClientThatIsGoneWhileWaitingLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		lock := acquire(t, locks, "k")
		var log testkit.Log
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		w := serveRequest(
			(&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "k", MaxWait: time.Hour}))(accept),
			httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
		wantRefusal(t, w, http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrTimeout), "1")
		wantOneEntry(t, &log, "DEBUG", "context canceled")
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		wantState(t, locks, "k", joblock.StateFree)
	})
}

// keyOf returns the key that an error is about.
func keyOf(err error) string {
	var e *joblock.Error
	errors.As(err, &e)
	return e.Key
}

func TestOnRefusalReplacesEveryAnswer(t *testing.T) {
	s := newStore()
	locks := newLocker(t, s)
	acquire(t, locks, "taken")
	s.Set(faultstore.Fault{Err: errDown}, faultstore.Release) // nothing gets better by itself
	for key, want := range map[string]error{
		"taken": joblock.ErrHeld,
		"a\nb":  joblock.ErrInvalid,
	} {
		var got handoff.Refusal
		answer := func(w http.ResponseWriter, r *http.Request, f handoff.Refusal) {
			got = f
			w.Header().Set("X-Refused", f.Code)
			f.ServeHTTP(w, r) // the default answer is still to be had
		}
		w := serve((&handoff.Guard{Locks: locks, OnRefusal: answer, Logger: silent}).Middleware(fixed(handoff.Claim{Key: key}))(accept))
		if !errors.Is(got.Err, want) || got.Status != w.Code || keyOf(got.Err) != key {
			t.Errorf("%q: refusal is %+v, answer %d; want %v", key, got, w.Code, want)
		}
		if w.Header().Get("X-Refused") != joblock.CodeOf(want) {
			t.Errorf("%q: headers are %v", key, w.Header())
		}
	}
	s.Clear(faultstore.Release)
}
