package handoff_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// An enqueue that the handler has left running gives the lock back to its handle when
// it fails. No caller is left to release that, so it must not be renewed.
func TestEnqueueThatFailsAfterTheResponseKeepsNoLock(t *testing.T) {
	for name, parkFor := range map[string]time.Duration{"parked": 0, "being parked": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				if parkFor > 0 {
					s.Set(faultstore.Fault{Mode: faultstore.Late, Delay: parkFor}, faultstore.Park)
				}
				locks := newLocker(t, s)
				var log testkit.Log
				failed := make(chan struct{})
				serve((&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
					func(w http.ResponseWriter, r *http.Request) {
						lock, _ := joblock.FromContext(r.Context())
						go func() {
							defer close(failed)
							ctx := context.WithoutCancel(r.Context())
							if _, err := lock.Park(ctx, joblock.ForJob("default/1")); err != nil {
								t.Error(err)
							}
							time.Sleep(2 * time.Second)
							if err := lock.Reclaim(ctx); err != nil {
								t.Error(err)
							}
						}()
						synctest.Wait()
					})))
				<-failed
				time.Sleep(30*time.Second + time.Second)
				wantState(t, locks, "k", joblock.StateFree)
				if text := log.String(); text != "" {
					t.Errorf("log is %s", text)
				}
			})
		})
	}
}

// A lock that was on its way to a job when the request had held it for MaxHold comes
// back if there is no job. The bound counts for it then as before.
func TestLockThatComesBackAfterMaxHoldIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		serve((&handoff.Guard{Locks: locks, Logger: silent}).Middleware(fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				lock, _ := joblock.FromContext(r.Context())
				if _, err := lock.Park(r.Context(), joblock.ForJob("default/1")); err != nil {
					t.Error(err)
				}
				time.Sleep(defaultMaxHold + time.Second)
				if err := lock.Reclaim(r.Context()); err != nil {
					t.Error(err)
				}
				select {
				case <-r.Context().Done():
				case <-time.After(time.Hour):
					t.Error("an hour later the handler's context has not ended")
				}
				if err := lock.Err(); !errors.Is(err, joblock.ErrLost) {
					t.Errorf("the lock is %v, want ErrLost", err)
				}
			})))
	})
}

// What is renewed no more is too late to be kept.
func TestKeepAfterMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve((&handoff.Guard{Locks: newMemLocker(t), Logger: silent}).Middleware(fixed(handoff.Claim{Key: "k"}))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				lock, _ := joblock.FromContext(r.Context())
				kept := handoff.Keep(r.Context(), lock)
				time.Sleep(time.Hour)
				if err := lock.Err(); kept && err != nil {
					t.Errorf("Keep says that the lock was kept, and it is %v", err)
				}
			})))
	})
}

// In a process that was stopped the deadline may pass before any timer has had its turn.
// The request's context tells the truth all the same.
func TestContextOfTheRequestLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := (&handoff.Guard{Locks: newMemLocker(t), Logger: silent}).Middleware(fixed(handoff.Claim{Key: "k", TTL: 16 * time.Second}))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				lock, _ := joblock.FromContext(r.Context())
				(*core.Lock)(lock).StopRenewing()
				// A lock counts as lost an eighth of its margin before the deadline. This
				// goroutine and that which would end the context wake up together.
				time.Sleep(time.Until(lock.ExpiresAt()) - 100*time.Millisecond)
				if r.Context().Err() == nil {
					t.Error("the lock's time is over, and the context has not ended")
				}
			}))
		for range 50 {
			serve(h)
		}
	})
}

// A store that is silent keeps the answer back for the time of one call, however many
// locks the request has.
func TestSilentStoreHoldsTheResponseUpOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		locks := newLocker(t, s)
		claim := handoff.Claim{Key: "a", Keys: []string{"b", "c", "d"}, TTL: time.Hour}
		start := time.Now()
		serve((&handoff.Guard{Locks: locks, Logger: silent}).Middleware(fixed(claim))(http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) {
				s.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Release)
			})))
		if d, most := time.Since(start), 6*time.Second; d > most {
			t.Errorf("the answer took %s, want at most %s", d, most)
		}
		wantState(t, locks, "d", joblock.StateHeld)
		s.Clear()
		time.Sleep(time.Minute) // the release under way has no answer, and is repeated
		for _, key := range claim.Keys {
			wantState(t, locks, key, joblock.StateFree)
		}
	})
}

// Two middlewares around each other that take one lock would refuse every request, as if
// another caller had it. That is logged.
func TestMiddlewaresThatTakeOneLockTwice(t *testing.T) {
	locks := newMemLocker(t)
	var log testkit.Log
	use := (&handoff.Guard{Locks: locks, Logger: log.JSON()}).Middleware(fixed(handoff.Claim{Key: "k", MaxWait: time.Hour}))
	wantRefusal(t, serve(use(use(accept))), http.StatusInternalServerError, claimFailed, "")
	wantOneEntry(t, &log, "ERROR", "the request has this lock already")
	wantState(t, locks, "k", joblock.StateFree)

	// What the outer one has given back can be taken again, and another store's key is
	// another key.
	serve(use(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		other := handoff.Middleware(newMemLocker(t), fixed(handoff.Claim{Key: "k"}))
		if w := serveRequest(other(accept), r); w.Code != http.StatusAccepted {
			t.Errorf("the key of another store: status %d", w.Code)
		}
		lock, _ := joblock.FromContext(r.Context())
		if err := lock.Release(r.Context()); err != nil {
			t.Error(err)
		}
		if w := serveRequest(use(accept), r); w.Code != http.StatusAccepted {
			t.Errorf("after the release: status %d", w.Code)
		}
	})))
}

// Headers that the handler has set for the answer it could not give are not of the
// refusal: a Content-Length would cut it off.
func TestRefusalHasItsOwnHeaders(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Length": "5", "Content-Encoding": "gzip", "Cache-Control": "public, max-age=3600", "Etag": `"x"`, "Last-Modified": "x",
			"X-Request-Id": "7",
		} {
			w.Header().Set(name, value)
		}
		handoff.Refuse(w, r, joblock.ErrHeld)
	}))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b body
	if err := json.NewDecoder(resp.Body).Decode(&b); err != nil || b.Code != joblock.CodeOf(joblock.ErrHeld) {
		t.Errorf("body is %+v: %v", b, err)
	}
	for _, name := range []string{"Content-Encoding", "Cache-Control", "Etag", "Last-Modified"} {
		if value := resp.Header.Get(name); value != "" {
			t.Errorf("%s is %q, want none", name, value)
		}
	}
	if resp.Header.Get("X-Request-Id") != "7" {
		t.Error("other headers are gone")
	}
}
