package handoff_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Around a mux, as the Use of many routers has it, the parameters of the route are not
// there yet. Such a request must not be served without its lock, nor under one that all
// requests have in common.
func TestParameterThatIsNotThereIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		key    func(r *http.Request) string
		status int
		code   string
		says   string
	}{
		"bare":     {func(r *http.Request) string { return r.PathValue("id") }, 500, claimFailed, "Claim.NoLock"},
		"as a key": {func(r *http.Request) string { return joblock.Key("export", r.PathValue("id")) }, 400, joblock.CodeOf(joblock.ErrInvalid), "part 2 of the key is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			locks := newMemLocker(t)
			var log testkit.Log
			use := (&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(func(r *http.Request) (handoff.Claim, error) {
				return handoff.Claim{Key: tc.key(r)}, nil
			})
			served := 0
			handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
			request := func() *http.Request { return httptest.NewRequest(http.MethodPost, "/exports/7", nil) }

			around := http.NewServeMux()
			around.Handle("POST /exports/{id}", handler)
			wantRefusal(t, serveRequest(use(around), request()), tc.status, tc.code, "")
			if served != 0 {
				t.Error("the handler was called")
			}
			if !strings.Contains(log.String(), tc.says) {
				t.Errorf("log is %q, want it to say %q", log.String(), tc.says)
			}

			within := http.NewServeMux()
			within.Handle("POST /exports/{id}", use(handler))
			if w := serveRequest(within, request()); w.Code != 200 || served != 1 {
				t.Errorf("within the mux: status %d, served %d times", w.Code, served)
			}
		})
	}
}

// The first of the requests that name no valid lock is logged, for it may be
// the route that is wrong. The others are not, for any client can send them.
func TestBadKeysDoNotFillTheLog(t *testing.T) {
	var log testkit.Log
	h := (&handoff.Guard{Locks: newMemLocker(t), Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "a\nb"}))(accept)
	for range 3 {
		wantRefusal(t, serve(h), http.StatusBadRequest, joblock.CodeOf(joblock.ErrInvalid), "")
	}
	if text := log.String(); strings.Count(text, `"level":"WARN"`) != 1 || strings.Count(text, `"level":"DEBUG"`) != 2 {
		t.Errorf("log is %s", text)
	}
}

// slowBody is the body of a client that sends nothing for a day.
type slowBody struct{}

func (slowBody) Read([]byte) (int, error) {
	time.Sleep(24 * time.Hour)
	return 0, io.EOF
}

// A client that sends its body slowly keeps others out for a while, not forever.
func TestSlowBodyHoldsTheLockForAWhile(t *testing.T) {
	for name, limit := range map[string]time.Duration{"by default": 0, "as claimed": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := newMemLocker(t)
				var log testkit.Log
				claim := handoff.Claim{Key: "k", MaxHold: limit}
				done := make(chan struct{})
				h := (&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(claim))(http.HandlerFunc(
					func(w http.ResponseWriter, r *http.Request) {
						defer close(done)
						if _, err := io.ReadAll(r.Body); err != nil {
							t.Error(err)
						}
						if lock, _ := joblock.FromContext(r.Context()); !errors.Is(lock.Err(), joblock.ErrLost) {
							t.Errorf("a day later the lock is %v, want ErrLost", lock.Err())
						}
						if cause := context.Cause(r.Context()); !errors.Is(cause, context.DeadlineExceeded) {
							t.Errorf("the context ended with %v, want DeadlineExceeded", cause)
						}
					}))
				go serveRequest(h, httptest.NewRequest(http.MethodPost, "/", slowBody{}))
				synctest.Wait()
				if limit == 0 {
					limit = defaultMaxHold
				}
				time.Sleep(limit - time.Second)
				wantState(t, locks, "k", joblock.StateHeld)
				time.Sleep(time.Second + 30*time.Second + time.Second)
				wantState(t, locks, "k", joblock.StateFree)
				next := acquire(t, locks, "k")
				if !strings.Contains(log.String(), "held its locks for too long") {
					t.Errorf("log is %s", log.String())
				}
				<-done
				synctest.Wait()
				if err := next.Release(t.Context()); err != nil {
					t.Errorf("what the request released was not its own: %v", err)
				}
			})
		})
	}
}

// The handler's context ends before the lease does, so that it can stop before any other caller
// else has the lock, and has it released as ever.
func TestHandlerIsCancelledBeforeItsLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		claim := handoff.Claim{Key: "k", Keys: []string{"l"}, MaxHold: 2 * time.Minute}
		start := time.Now()
		serve((&handoff.Guard{Locks: locks, Logger: silent}).Middleware(fixed(claim))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if cause := context.Cause(r.Context()); !errors.Is(cause, context.DeadlineExceeded) || time.Since(start) != 2*time.Minute {
				t.Errorf("got %v after %s", cause, time.Since(start))
			}
			if err := joblock.LocksFromContext(r.Context()).Err(); err != nil {
				t.Errorf("the locks are lost already: %v", err)
			}
			wantRefusalOf(t, r, context.Cause(r.Context()), http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrTimeout), "1")
		})))
		wantState(t, locks, "k", joblock.StateFree)
		wantState(t, locks, "l", joblock.StateFree)
	})
}

// What the handler has left running is cancelled before another caller can have the
// locks.
func TestContextEndsBeforeTheLocksAreReleased(t *testing.T) {
	for name, end := range map[string]func(){"returns": func() {}, "panics": func() { panic(http.ErrAbortHandler) }} {
		t.Run(name, func(t *testing.T) {
			var ctx context.Context // of the request
			released := 0
			s := newStore()
			s.Set(faultstore.Fault{Mode: faultstore.Pass, Before: func() {
				released++
				if ctx.Err() == nil {
					t.Error("a lock is released, and the context has not ended")
				}
			}}, faultstore.Release)
			h := handoff.Middleware(newLocker(t, s), fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) {
					ctx = r.Context()
					end()
				}))
			func() {
				defer func() { _ = recover() }()
				serve(h)
			}()
			if released != 1 {
				t.Errorf("%d releases, want 1", released)
			}
		})
	}
}

// A request that has nothing left to hold may take its time, and what it has kept is
// not the middleware's to let run out.
func TestRequestWithoutLocksMayTakeItsTime(t *testing.T) {
	for name, settle := range map[string]func(ctx context.Context, lock *joblock.Lock) error{
		"released": func(ctx context.Context, lock *joblock.Lock) error { return lock.Release(ctx) },
		"handed over": func(ctx context.Context, lock *joblock.Lock) error {
			_, err := lock.Park(ctx, joblock.ForJob("default/1"))
			return err
		},
		"kept": func(ctx context.Context, lock *joblock.Lock) error {
			if !handoff.Keep(ctx, lock) {
				return errors.New("not kept")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := newMemLocker(t)
				serve(handoff.Middleware(locks, fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
					func(w http.ResponseWriter, r *http.Request) {
						lock, _ := joblock.FromContext(r.Context())
						if err := settle(r.Context(), lock); err != nil {
							t.Error(err)
						}
						time.Sleep(10 * defaultMaxHold)
						if err := r.Context().Err(); err != nil {
							t.Errorf("the context has ended: %v", context.Cause(r.Context()))
						}
						if err := lock.Err(); name == "kept" && err != nil {
							t.Errorf("the kept lock: %v", err)
						}
					})))
			})
		})
	}
}

// Of many requests that would wait for one lock only so many do. The others are refused
// at once, or served if their lock is free.
func TestWaitingRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		lock := acquire(t, locks, "k", joblock.TTL(10*time.Second))
		use := (&handoff.Guard{Locks: locks, MaxWaiting: 2}).Middleware(func(r *http.Request) (handoff.Claim, error) {
			return handoff.Claim{Key: r.URL.Query().Get("key"), MaxWait: time.Minute}, nil
		})
		h := use(accept)
		ask := func(key string) *httptest.ResponseRecorder {
			return serveRequest(h, httptest.NewRequest(http.MethodPost, "/?key="+key, nil))
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if w := ask("k"); w.Code != http.StatusAccepted {
					t.Errorf("a request that waited is answered %d", w.Code)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		wantRefusal(t, ask("k"), http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrHeld), "10")
		if w := ask("free"); w.Code != http.StatusAccepted {
			t.Errorf("a lock that is free: status %d", w.Code)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("they waited for %s", d)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		lock = acquire(t, locks, "k")
		time.AfterFunc(time.Second, func() { _ = lock.Release(context.Background()) })
		if w := ask("k"); w.Code != http.StatusAccepted { // the places are free again
			t.Errorf("afterwards: status %d", w.Code)
		}
	})
}

func TestNoRequestWaitsIfNoneMay(t *testing.T) {
	for _, n := range []int{-1, -1000} {
		locks := newMemLocker(t)
		acquire(t, locks, "k")
		h := (&handoff.Guard{Locks: locks, MaxWaiting: n}).Middleware(fixed(handoff.Claim{Key: "k", MaxWait: time.Hour}))(accept)
		wantRefusal(t, serve(h), http.StatusTooManyRequests, joblock.CodeOf(joblock.ErrHeld), someSeconds)
	}
}
