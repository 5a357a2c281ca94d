package joblock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

func TestTryAcquireHeldSaysWhoAndHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.acquire("key", joblock.Holder("web-1"), joblock.TTL(20*time.Second))
		lock, err := k.peer().TryAcquire(t.Context(), "key")
		if lock != nil {
			t.Fatal("got a lock that is held")
		}
		wantErr(t, err, joblock.ErrHeld)
		wantNotErr(t, err, joblock.ErrTimeout, joblock.ErrUnavailable)
		if joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrHeld) || !joblock.Retryable(err) {
			t.Errorf("code %q, retryable %v", joblock.CodeOf(err), joblock.Retryable(err))
		}
		var e *joblock.Error
		if !errors.As(err, &e) || e.Holder != "web-1" || e.Key != "key" ||
			e.Remaining < 20*time.Second || e.Remaining > 20*time.Second+time.Millisecond {
			t.Errorf("error is %+v, want the holder, the key and 20s", e)
		}
	})
}

// A lock that the caller got no answer about must neither count as "held by another"
// nor block the key for a TTL.
func TestUnknownOutcomeIsUnavailableAndCleanedUp(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{
		"refused":          faultstore.Refuse,
		"reply dropped":    faultstore.Drop,
		"hangs":            faultstore.Hang,
		"applied, hanging": faultstore.HangApplied,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				k.store.Set(faultstore.Fault{Mode: mode, Times: 1}, faultstore.Acquire)
				// The clean-up meets a store that is still away for a while.
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 3}, faultstore.Release)
				lock, err := k.locks.TryAcquire(t.Context(), "key", joblock.Owner("me"))
				if lock != nil {
					t.Fatal("got a lock without an answer")
				}
				wantErr(t, err, joblock.ErrUnavailable)
				wantNotErr(t, err, joblock.ErrHeld)
				if !joblock.Retryable(err) {
					t.Error("not retryable")
				}
				k.wantFreeWithin("key", 2*time.Second) // far below the TTL of 30 s
			})
		})
	}
}

func TestStrayAcquireIsCleanedUpWhenItArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Stray, Times: 1, Delay: time.Second}, faultstore.Acquire)
		_, err := k.locks.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrUnavailable)
		time.Sleep(time.Second)
		synctest.Wait()
		k.wantFreeWithin("key", 2*time.Second)
	})
}

// A grant that arrives after its trust deadline is given back, not handed out.
func TestGrantThatComesAfterItsOwnLeaseIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: 3 * time.Second, CallTimeout: 10 * time.Second})
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 2900 * time.Millisecond}, faultstore.Acquire)
		lock, err := k.locks.TryAcquire(t.Context(), "key")
		if lock != nil {
			t.Errorf("got a lock, Err %v", lock.Err())
		}
		wantErr(t, err, joblock.ErrUnavailable)
		synctest.Wait()
		k.wantState("key", joblock.StateFree)

		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 2900 * time.Millisecond}, faultstore.Acquire)
		lock, err = k.locks.Acquire(t.Context(), "key")
		wantNil(t, "Acquire, which tries again", err)
		wantNil(t, "Err", lock.Err())
		if trust, lease := time.Until(lock.ExpiresAt()), k.record("key").Lease; trust > lease {
			t.Errorf("trusted for %s, the lease is %s", trust, lease)
		}
	})
}

// The first attempt was long on its way: it is granted behind the back of later
// ones. Its lease is older than any of them, so none may trust it.
func TestGrantOfAnAttemptThatStrayedIsNotTrusted(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			testkit.Seed(t, seed)
			k := newKit(t, &joblock.Config{TTL: 4 * time.Second, Margin: time.Millisecond, Poll: 20 * time.Second})
			holder, err := k.peer().TryAcquire(t.Context(), "key")
			wantNil(t, "TryAcquire", err)
			time.AfterFunc(5*time.Second-time.Millisecond, func() { _ = holder.Release(context.Background()) })
			k.store.Set(faultstore.Fault{Mode: faultstore.Stray, Times: 1, Delay: 5 * time.Second}, faultstore.Acquire)
			lock, err := k.locks.Acquire(t.Context(), "key")
			wantNil(t, "Acquire", err)
			if trust, lease := time.Until(lock.ExpiresAt()), k.record("key").Lease; trust > lease {
				t.Errorf("trusted for %s, the lease is %s", trust, lease)
			}
		})
	}
}

// The trust deadline of a grant that is found counts from when it was made, up to
// the millisecond by which the store rounds up.
func TestGrantFoundByARepeatedAttemptIsTrustedFromTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{TTL: 10 * time.Second, Margin: 100 * time.Millisecond})
		sent := time.Now()
		k.store.Set(faultstore.Fault{Mode: faultstore.HangApplied, Times: 1}, faultstore.Acquire)
		lock, err := k.locks.Acquire(t.Context(), "key", joblock.NoRenew())
		// The hanging call used up the patience of a CallTimeout only once it had
		// returned, so there is time for a second attempt.
		wantNil(t, "Acquire", err)
		d := lock.ExpiresAt().Sub(sent)
		if d < 9900*time.Millisecond || d > 9901*time.Millisecond {
			t.Errorf("trusted until %s after the first attempt, want 9.9s", d)
		}
		if lease := k.record("key").Lease; time.Until(lock.ExpiresAt()) > lease-100*time.Millisecond {
			t.Errorf("trusted for %s, the lease is %s", time.Until(lock.ExpiresAt()), lease)
		}
	})
}

// A call whose answer was lost asks again, and gets the same answer as it would have got.
func TestGrantFoundByARepeatedAttemptSaysWhatWasBefore(t *testing.T) {
	for want, end := range map[driver.Ended]func(*kit, *joblock.Lock) error{
		driver.EndedReleased: func(k *kit, lock *joblock.Lock) error { return lock.Release(k.Context()) },
		driver.EndedForced: func(k *kit, _ *joblock.Lock) error {
			return k.locks.ForceRelease(k.Context(), "key", joblock.Reason("stuck"))
		},
		driver.EndedLapsed: func(_ *kit, lock *joblock.Lock) error {
			lock.StopRenewing()
			time.Sleep(joblock.DefaultTTL + time.Second)
			return nil
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				before := k.acquire("key")
				wantNil(t, "memo.Write", memo.Write(t.Context(), before, []byte("page 7")))
				wantNil(t, "the end before", end(k, before))
				k.store.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, faultstore.Acquire)
				lock, err := k.locks.Acquire(t.Context(), "key", memo.WithGrant())
				wantNil(t, "Acquire", err)
				if lock.Prior() != want || string(memo.Of(lock)) != "page 7" {
					t.Errorf("prior %q, memo %q; want %s, page 7", lock.Prior(), memo.Of(lock), want)
				}
			})
		})
	}
}

func TestAcquireGetsTheLockSoonAfterItsRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		first := k.acquire("key")
		start := time.Now()
		time.AfterFunc(10*time.Second, func() { _ = first.Release(context.Background()) })
		second, err := k.peer().Acquire(t.Context(), "key")
		wantNil(t, "Acquire", err)
		if d := time.Since(start); d < 10*time.Second || d > 10*time.Second+joblock.DefaultPoll {
			t.Errorf("waited %s, want 10s and at most one poll", d)
		}
		if second.Fence() <= first.Fence() || second.Prior() != driver.EndedReleased {
			t.Errorf("fence %d after %d, prior %s", second.Fence(), first.Fence(), second.Prior())
		}
	})
}

func TestAcquireGetsACrashedHoldersLockWhenItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{Poll: time.Hour})
		k.acquire("key", joblock.NoRenew())
		start := time.Now()
		lock, err := k.peer().Acquire(t.Context(), "key")
		wantNil(t, "Acquire", err)
		if d := time.Since(start); d < joblock.DefaultTTL || d > joblock.DefaultTTL+joblock.DefaultPoll {
			t.Errorf("waited %s, want the TTL", d)
		}
		if lock.Prior() != driver.EndedLapsed {
			t.Errorf("prior is %q, want lapsed", lock.Prior())
		}
	})
}

func TestAcquireBounds(t *testing.T) {
	cause := errors.New("the client hung up")
	deadline := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 7*time.Second)
	}
	cancelled := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(7*time.Second, func() { cancel(cause) })
		return ctx, func() { cancel(nil) }
	}
	plain := func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
	for _, c := range []struct {
		name    string
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		opts    []joblock.AcquireOption
		is, not []error
		took    time.Duration
	}{
		{"MaxWait", plain, []joblock.AcquireOption{joblock.MaxWait(7 * time.Second)},
			[]error{joblock.ErrTimeout}, []error{joblock.ErrHeld}, 7 * time.Second},
		{"MaxWait of zero", plain, []joblock.AcquireOption{joblock.MaxWait(0)},
			[]error{joblock.ErrHeld}, []error{joblock.ErrTimeout}, 0},
		{"deadline", deadline, nil,
			[]error{joblock.ErrTimeout, context.DeadlineExceeded}, []error{joblock.ErrHeld, joblock.ErrUnavailable}, 7 * time.Second},
		{"cancelled", cancelled, nil,
			[]error{cause}, []error{joblock.ErrHeld, joblock.ErrTimeout, joblock.ErrUnavailable}, 7 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				holder := k.acquire("key", joblock.Holder("web-1"))
				ctx, cancel := c.ctx(t.Context())
				defer cancel()
				start := time.Now()
				lock, err := k.locks.Acquire(ctx, "key", c.opts...)
				if lock != nil {
					t.Error("got the lock")
				}
				wantErr(t, err, c.is...)
				wantNotErr(t, err, c.not...)
				if d := time.Since(start); d != c.took {
					t.Errorf("took %s, want %s", d, c.took)
				}
				var e *joblock.Error
				if errors.As(err, &e) && e.Holder != "web-1" {
					t.Errorf("holder %q is missing in the error", e.Holder)
				}
				wantNil(t, "Release", holder.Release(t.Context()))
				time.Sleep(time.Minute)
				k.wantState("key", joblock.StateFree) // the wait has left nothing behind
			})
		})
	}
}

func TestAcquireKeepsContextCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := k.locks.Acquire(ctx, "key")
		wantErr(t, err, context.Canceled)
		_, err = k.locks.TryAcquire(ctx, "key")
		wantErr(t, err, context.Canceled)
		if n := k.store.Calls(""); n != 0 {
			t.Errorf("%d calls with a context that was over", n)
		}
	})
}

func TestAcquireCancelledInTheMiddleOfACallIsCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		cause := errors.New("the client hung up")
		ctx, cancel := context.WithCancelCause(t.Context())
		k.store.Set(faultstore.Fault{Mode: faultstore.HangApplied, Times: 1}, faultstore.Acquire)
		time.AfterFunc(time.Second, func() { cancel(cause) })
		_, err := k.locks.Acquire(ctx, "key")
		wantErr(t, err, joblock.ErrUnavailable, cause)
		k.wantFreeWithin("key", time.Second)
	})
}

func TestAcquireRidesOutAShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		time.AfterFunc(joblock.DefaultCallTimeout-time.Second, func() { k.store.Clear() })
		lock, err := k.locks.Acquire(t.Context(), "key")
		wantNil(t, "Acquire", err)
		wantNil(t, "Release", lock.Release(t.Context()))
	})
}

// Each outage is measured by itself: one wait rides out many short ones.
func TestAcquireRidesOutManyShortOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, &joblock.Config{Poll: 100 * time.Millisecond})
		holder, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		w := k.wait(k.locks, "key")
		for range 3 {
			time.Sleep(time.Minute)
			k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
			time.Sleep(joblock.DefaultCallTimeout - time.Second)
			k.store.Clear()
			if w.over() {
				t.Fatal("the wait ended in a short outage")
			}
		}
		time.Sleep(time.Minute)
		wantNil(t, "Release", holder.Release(t.Context()))
		wantNil(t, "Release", w.granted(onTime).Release(t.Context()))
	})
}

// A wait whose time is up in an outage says so, also if a call is under way just then: whether the key is still held is
// unknown. A single slow call is no outage: the answer before it says that the key is held.
func TestWaitThatEndsInTheMiddleOfACall(t *testing.T) {
	hungUp := errors.New("the client hung up")
	bounds := map[string]struct {
		ctx   func(context.Context, time.Duration) (context.Context, context.CancelFunc)
		opts  func(time.Duration) []joblock.AcquireOption
		cause error // also matched by the error; nil if none
	}{
		"MaxWait": {opts: func(d time.Duration) []joblock.AcquireOption { return []joblock.AcquireOption{joblock.MaxWait(d)} }},
		"deadline": {
			ctx: func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
				return context.WithDeadline(ctx, time.Now().Add(d))
			},
			cause: context.DeadlineExceeded,
		},
		"cancelled": {
			ctx: func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(d, func() { cancel(hungUp) })
				return ctx, func() { cancel(nil) }
			},
			cause: hungUp,
		},
	}
	for name, b := range bounds {
		for what, outage := range map[string]bool{"in an outage": true, "in one slow call": false} {
			t.Run(name+" "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKit(t, &joblock.Config{Poll: 100 * time.Millisecond})
					_, err := k.peer().TryAcquire(t.Context(), "key")
					wantNil(t, "TryAcquire", err)
					const wait = time.Minute
					ctx, opts := t.Context(), []joblock.AcquireOption(nil)
					if b.ctx != nil {
						var cancel context.CancelFunc
						ctx, cancel = b.ctx(ctx, wait)
						defer cancel()
					} else {
						opts = b.opts(wait)
					}
					if outage {
						time.AfterFunc(wait-2*time.Second, func() { k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire) })
					}
					time.AfterFunc(wait-time.Second, func() { k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Acquire) })
					start := time.Now()
					_, err = k.locks.Acquire(ctx, "key", opts...)
					if d := time.Since(start); d != wait {
						t.Errorf("took %s, want %s", d, wait)
					}
					switch {
					case outage || name == "cancelled": // a caller that goes away learns nothing
						wantErr(t, err, joblock.ErrUnavailable)
						wantNotErr(t, err, joblock.ErrTimeout, joblock.ErrHeld)
					default:
						wantErr(t, err, joblock.ErrTimeout)
						wantNotErr(t, err, joblock.ErrUnavailable, joblock.ErrHeld)
					}
					if b.cause != nil {
						wantErr(t, err, b.cause)
					}
				})
			})
		}
	}
}

func TestAcquireGivesUpOnALongOutage(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refusing": faultstore.Refuse, "hanging": faultstore.Hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				k.store.Set(faultstore.Fault{Mode: mode}, faultstore.Acquire)
				start := time.Now()
				_, err := k.locks.Acquire(t.Context(), "key", joblock.MaxWait(time.Hour))
				wantErr(t, err, joblock.ErrUnavailable)
				wantNotErr(t, err, joblock.ErrHeld, joblock.ErrTimeout, context.DeadlineExceeded) // the context has none
				if mode == faultstore.Hang && !strings.Contains(err.Error(), "no answer within Config.CallTimeout, 3s") {
					t.Errorf("%v names no bound", err)
				}
				if d := time.Since(start); d < joblock.DefaultCallTimeout || d > 3*joblock.DefaultCallTimeout {
					t.Errorf("gave up after %s", d)
				}
			})
		})
	}
}

func TestCloseEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		_, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		time.AfterFunc(10*time.Second, func() { _ = k.locks.Close(context.Background()) })
		start := time.Now()
		_, err = k.locks.Acquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrClosed)
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("the wait ended after %s, want 10s", d)
		}
	})
}

func TestGrantAnsweredAfterCloseIsNotHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: 2 * time.Second}, faultstore.Acquire)
		time.AfterFunc(time.Second, func() { _ = k.locks.Close(context.Background()) })
		lock, err := k.locks.TryAcquire(t.Context(), "key")
		if lock != nil {
			t.Error("got a lock that is not renewed")
		}
		wantErr(t, err, joblock.ErrClosed)
	})
}

func TestMemoIsHandedToTheNextOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		first := k.acquire("key")
		if first.Prior() != driver.EndedNone || memo.Of(first) != nil {
			t.Errorf("a new key has prior %q and memo %q", first.Prior(), memo.Of(first))
		}
		wantNil(t, "memo.Write", memo.Write(t.Context(), first, []byte("page 7")))
		if string(memo.Of(first)) != "page 7" {
			t.Errorf("memo is %q", memo.Of(first))
		}
		wantNil(t, "Release", first.Release(t.Context()))
		second, err := k.peer().TryAcquire(t.Context(), "key", memo.WithGrant())
		wantNil(t, "TryAcquire", err)
		if string(memo.Of(second)) != "page 7" || second.Prior() != driver.EndedReleased {
			t.Errorf("memo %q, prior %q", memo.Of(second), second.Prior())
		}
		wantErr(t, memo.Write(t.Context(), first, []byte("old")), joblock.ErrAlreadyReleased)
		wantNil(t, "Write(nil)", memo.Write(t.Context(), second, nil))
		if len(memo.Of(second)) != 0 || len(k.record("key").Memo) != 0 {
			t.Error("Write(nil) does not clear")
		}
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key", joblock.Reason("stuck")))
		if third := k.acquire("key"); third.Prior() != driver.EndedForced {
			t.Errorf("prior is %q, want forced", third.Prior())
		}
	})
}
