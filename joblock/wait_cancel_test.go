package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
)

// A waiter is cancelled at every moment of its wait, with a store in which every
// call takes its time, before or after it is applied. Whatever it returns, the
// next in line has the lock soon, and the waiter leaves nothing behind.
func TestWaiterCancelledAtAnyMomentLeavesNothingBehind(t *testing.T) {
	const step = 10 * time.Millisecond
	for name, set := range map[string]func(*faultstore.Store){
		"prompt": func(*faultstore.Store) {},
		"slow answers": func(s *faultstore.Store) {
			s.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: step}, faultstore.Acquire, faultstore.Release, faultstore.Listen)
		},
		"slow requests": func(s *faultstore.Store) {
			s.Set(faultstore.Fault{Mode: faultstore.Late, Delay: step}, faultstore.Acquire, faultstore.Release, faultstore.Listen)
		},
		"first answer lost": func(s *faultstore.Store) {
			s.Set(faultstore.Fault{Mode: faultstore.HangApplied, Times: 1}, faultstore.Acquire)
		},
		"answers lost": func(s *faultstore.Store) {
			s.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 2}, faultstore.Acquire, faultstore.Release)
		},
		"stray requests": func(s *faultstore.Store) {
			s.Set(faultstore.Fault{Mode: faultstore.Stray, Delay: step, Times: 2}, faultstore.Acquire)
		},
		"no subscription": func(s *faultstore.Store) {
			s.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Listen)
		},
		"pushes lost": func(s *faultstore.Store) { s.Set(faultstore.Fault{}, faultstore.Push) },
	} {
		t.Run(name, func(t *testing.T) {
			for at := time.Duration(0); at <= 60*time.Millisecond; at += time.Millisecond {
				synctest.Test(t, func(t *testing.T) {
					k := newKit(t, nil)
					warm := at%2 == 0 // half of them have their subscription already
					if warm {
						lock := k.acquire("warm")
						w := k.wait(k.locks, "warm")
						w.cancel(nil)
						<-w.done
						wantNil(t, "Release", lock.Release(t.Context()))
						synctest.Wait()
					}
					peer := k.peer()
					holder, err := peer.TryAcquire(t.Context(), "key")
					wantNil(t, "TryAcquire", err)
					set(k.store)
					gone := errors.New("gone")
					w := k.wait(k.locks, "key")
					next := k.wait(peer, "key")
					time.AfterFunc(at, func() { w.cancel(gone) })
					time.Sleep(30 * time.Millisecond)
					wantNil(t, "Release", holder.Release(t.Context()))
					<-w.done
					late := time.Duration(0)
					switch {
					case w.err == nil:
						time.Sleep(50 * time.Millisecond)
						wantNil(t, "Err", w.lock.Err())
						k.store.Clear()
						wantNil(t, "Release", w.lock.Release(t.Context()))
					case errors.Is(w.err, gone):
						if w.took > at+step {
							t.Errorf("cancelled after %s, returned after %s", at, w.took)
						}
						late = 2 * joblock.DefaultPoll // its own pushes may be lost
						if name != "pushes lost" {
							late = 200 * time.Millisecond
						}
					default:
						t.Errorf("cancelled after %s: %v", at, w.err)
					}
					lock := next.granted(late + onTime)
					time.Sleep(2 * joblock.DefaultCallTimeout)
					wantNil(t, "Err of the next", lock.Err())
					k.wantWaiters("key", 0)
					wantNil(t, "Release", lock.Release(t.Context()))
					k.wantState("key", joblock.StateFree)
				})
			}
		})
	}
}

// The grant and the cancellation come at the same instant, in whatever order.
func TestWaiterCancelledInTheInstantOfItsGrant(t *testing.T) {
	got := 0
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, nil)
			holder := k.acquire("key")
			w, next := k.wait(k.locks, "key"), k.wait(k.peer(), "key")
			go w.cancel(nil)
			go func() { _ = holder.Release(context.Background()) }()
			<-w.done
			if w.err == nil {
				got++
				wantNil(t, "Release", w.lock.Release(t.Context()))
			} else {
				wantErr(t, w.err, context.Canceled)
			}
			next.granted(onTime)
			k.wantWaiters("key", 0)
		})
	}
	t.Logf("%d of 300 got the lock", got)
}

func TestWaiterThatGivesUpLeavesAtOnceWhateverEndsIt(t *testing.T) {
	for name, end := range map[string]func(k *kit, w *waiting){
		"cancelled": func(_ *kit, w *waiting) { w.cancel(nil) },
		"MaxWait":   func(*kit, *waiting) {},
		"Close":     func(k *kit, _ *waiting) { wantNil(k, "Close", k.locks.Close(k.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				peer := k.peer()
				holder, err := peer.TryAcquire(t.Context(), "key")
				wantNil(t, "TryAcquire", err)
				w := k.wait(k.locks, "key", joblock.MaxWait(7*time.Second))
				next := k.wait(peer, "key")
				k.wantWaiters("key", 2)
				before := goroutines()
				time.Sleep(7*time.Second - time.Millisecond)
				end(k, w)
				want := map[string]error{"cancelled": context.Canceled, "MaxWait": joblock.ErrTimeout, "Close": joblock.ErrClosed}[name]
				wantErr(t, w.failed(time.Millisecond), want)
				time.Sleep(100 * time.Millisecond)
				k.wantWaiters("key", 1)
				if n := goroutines(); n >= before {
					t.Errorf("%d goroutines, %d while it waited", n, before)
				}
				wantNil(t, "Release", holder.Release(t.Context()))
				next.granted(0)
			})
		})
	}
}

// However many give up at once or one after the other, none of their places is in
// the way for long: each would cost those behind it the time until it is left.
func TestManyThatGiveUpLeaveAtOnce(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const n = 950
			k := newKit(t, nil)
			peer := k.peer()
			holder, err := peer.TryAcquire(t.Context(), "key")
			wantNil(t, "TryAcquire", err)
			for range n {
				k.wait(k.locks, "key")
			}
			next := k.wait(peer, "key")
			// While one call is under way, more of those who leave come together.
			k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: time.Millisecond}, faultstore.Release)
			start := time.Now()
			wantNil(t, "Close", k.locks.Close(t.Context()))
			if d := time.Since(start); d > 100*time.Millisecond {
				t.Errorf("Close took %s", d)
			}
			k.wantWaiters("key", 1)
			if calls := k.store.Calls(faultstore.Release); calls > n/10 {
				t.Errorf("%d calls to leave %d places", calls, n)
			}
			wantNil(t, "Release", holder.Release(t.Context()))
			next.granted(0)
		})
	})
	t.Run("one after the other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, nil)
			_, err := k.peer().TryAcquire(t.Context(), "key")
			wantNil(t, "TryAcquire", err)
			for range 200 {
				w := k.wait(k.locks, "key", joblock.MaxWait(20*time.Millisecond))
				time.Sleep(50 * time.Millisecond)
				wantErr(t, w.failed(0), joblock.ErrTimeout)
				k.wantWaiters("key", 0)
			}
		})
	})
	t.Run("while one cannot be cleaned up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, nil)
			_, err := k.peer().TryAcquire(t.Context(), "key")
			wantNil(t, "TryAcquire", err)
			other := k.acquire("other")
			k.store.Set(faultstore.Fault{}, faultstore.Release)
			wantErr(t, other.Release(t.Context()), joblock.ErrUnavailable)
			time.Sleep(10 * time.Second) // its clean-up is tried once per second by now
			k.store.Clear()
			k.wait(k.locks, "key", joblock.MaxWait(20*time.Millisecond)).failed(time.Second)
			k.wantWaiters("key", 0)
		})
	})
}

func TestCloseIsBoundedByItsContextWhileWaitersHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		_, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		other := k.acquire("other")
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Release)
		wantErr(t, other.Release(t.Context()), joblock.ErrUnavailable)
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Delay: 10 * time.Second}, faultstore.Acquire)
		w := k.wait(k.locks, "key")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err = k.locks.Close(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		if err.Error() != "joblock: close: "+context.DeadlineExceeded.Error() {
			t.Errorf("%v, want one line, though waiters and a clean-up are left", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("Close took %s, its context lasted 1s", d)
		}
		wantErr(t, w.failed(time.Minute), joblock.ErrClosed)
	})
}

// several is an error that cannot be compared: a comparison with == panics.
type several []string

func (s several) Error() string { return "several" }

func TestCloseBearsAnyCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Release)
		wantErr(t, lock.Release(t.Context()), joblock.ErrUnavailable)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(several{"a", "b"})
		var cause several
		if err := k.locks.Close(ctx); !errors.As(err, &cause) {
			t.Errorf("%v, want the cause", err)
		}
	})
}

func TestAcquireAfterCloseDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		wantNil(t, "Close", k.locks.Close(t.Context()))
		_, err := k.locks.Acquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrClosed)
		if n := k.store.Calls(""); n != 0 {
			t.Errorf("%d calls after Close", n)
		}
	})
}

// Close comes while the first waiter still subscribes.
func TestCloseWhileSubscribing(t *testing.T) {
	for _, mode := range []faultstore.Mode{faultstore.Slow, faultstore.Late, faultstore.Hang} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				_, err := k.peer().TryAcquire(t.Context(), "key")
				wantNil(t, "TryAcquire", err)
				k.store.Set(faultstore.Fault{Mode: mode, Delay: time.Second}, faultstore.Listen)
				w := k.wait(k.locks, "key")
				time.Sleep(500 * time.Millisecond)
				start := time.Now()
				wantNil(t, "Close", k.locks.Close(t.Context()))
				if d := time.Since(start); d > joblock.DefaultCallTimeout {
					t.Errorf("Close took %s", d)
				}
				err = w.failed(0)
				if !errors.Is(err, joblock.ErrClosed) && !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("error %v", err)
				}
				k.wantWaiters("key", 0)
			})
		})
	}
}
