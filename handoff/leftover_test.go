package handoff_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// An enqueue that the handler has left running gives the lock back to its handle when
// it fails. Nobody is left to release that, so it must not be renewed.
func TestEnqueueThatFailsAfterTheResponseKeepsNoLock(t *testing.T) {
	for name, parkFor := range map[string]time.Duration{"parked": 0, "being parked": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slowPark{Store: newStore(), takes: parkFor}
				locks := newLocker(t, s)
				var log logBuffer
				failed := make(chan struct{})
				serve(handoff.Middleware(locks, fixed(handoff.Claim{Key: "k"}), handoff.Logger(log.logger()))(http.HandlerFunc(
					func(w http.ResponseWriter, r *http.Request) {
						lock, _ := joblock.FromContext(r.Context())
						go func() {
							defer close(failed)
							ctx := context.WithoutCancel(r.Context())
							if _, err := lock.Park(ctx, joblock.ParkOptions{Job: "default/1"}); err != nil {
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
				time.Sleep(joblock.DefaultTTL + time.Second)
				wantState(t, locks, "k", joblock.StateFree)
				if text := log.String(); text != "" {
					t.Errorf("log is %s", text)
				}
			})
		})
	}
}

// slowPark is a Store whose Park takes some time.
type slowPark struct {
	joblock.Store
	takes time.Duration
}

func (s *slowPark) Park(ctx context.Context, req joblock.ParkRequest) (joblock.Reply, error) {
	time.Sleep(s.takes)
	return s.Store.Park(ctx, req)
}

// A lock that was on its way to a job when the request had held it for MaxHold comes
// back if there is no job. The bound counts for it then as before.
func TestLockThatComesBackAfterMaxHoldIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newMemLocker(t)
		serve(handoff.Middleware(locks, fixed(handoff.Claim{Key: "k"}), silent())(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				lock, _ := joblock.FromContext(r.Context())
				if _, err := lock.Park(r.Context(), joblock.ParkOptions{Job: "default/1"}); err != nil {
					t.Error(err)
				}
				time.Sleep(handoff.DefaultMaxHold + time.Second)
				if err := lock.Reclaim(r.Context()); err != nil {
					t.Error(err)
				}
				select {
				case <-r.Context().Done():
				case <-time.After(time.Hour):
					t.Error("an hour later the handler has not been told")
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
		serve(handoff.Middleware(newMemLocker(t), fixed(handoff.Claim{Key: "k"}), silent())(http.HandlerFunc(
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
		h := handoff.Middleware(newMemLocker(t), fixed(handoff.Claim{Key: "k", TTL: 16 * time.Second}), silent())(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				lock, _ := joblock.FromContext(r.Context())
				lock.StopRenewing()
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
