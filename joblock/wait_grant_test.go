package joblock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

// postman is a Store whose pushes to waiters are delivered as the test says.
type postman struct {
	driver.Store

	mu      sync.Mutex
	deliver func(driver.Push)     // to the Locker of this Store
	kept    []driver.Push         // while keep is set
	keep    bool                  // pushes are kept, until handOut
	round   func(p driver.Push)   // if set, delivers in place of deliver
	last    driver.AcquireRequest // that was sent
	away    time.Time             // until when the store does not answer an Acquire
}

func (s *postman) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	if inbox == driver.ForcedInbox {
		return s.Store.Subscribe(ctx, inbox, deliver)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliver = deliver
	return s.Store.Subscribe(ctx, inbox, func(p driver.Push) {
		s.mu.Lock()
		keep, round := s.keep, s.round
		if keep {
			s.kept = append(s.kept, p)
		}
		s.mu.Unlock()
		switch {
		case keep:
		case round != nil:
			round(p)
		default:
			deliver(p)
		}
	})
}

func (s *postman) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.mu.Lock()
	s.last = req
	away := time.Now().Before(s.away)
	s.mu.Unlock()
	if away {
		return driver.Reply{}, faultstore.Err
	}
	return s.Store.Acquire(ctx, req)
}

func (s *postman) hold(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = on
}

// handOut delivers the pushes that were kept, and returns them.
func (s *postman) handOut() []driver.Push {
	s.mu.Lock()
	pushes := s.kept
	s.kept = nil
	s.mu.Unlock()
	for _, p := range pushes {
		s.deliver(p)
	}
	return pushes
}

// posted opens a Locker whose pushes a postman delivers.
func (k *kit) posted(cfg *joblock.Config) (*joblock.Locker, *postman) {
	k.Helper()
	post := &postman{Store: k.store}
	return k.open(post, cfg), post
}

// asks counts the calls of Acquire that f causes.
func (k *kit) asks(f func()) int {
	before := k.store.Calls(faultstore.Acquire)
	f()
	synctest.Wait()
	return k.store.Calls(faultstore.Acquire) - before
}

// The push of an expired grant arrives right after the store has answered the waiter that another holds the lock.
func TestPushOfAnExpiredGrantIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks, post := k.posted(nil)
		holder := k.acquire("key")
		w := k.wait(locks, "key")
		next := k.wait(k.peer(), "key")
		post.hold(true)
		wantNil(t, "Release", holder.Release(t.Context()))
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key", joblock.Reason("stuck")))
		lock := next.granted(onTime)
		asked := k.store.Calls(faultstore.Acquire)
		for k.store.Calls(faultstore.Acquire) == asked { // w hears who has the lock
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		post.hold(false)
		if pushes := post.handOut(); len(pushes) != 1 || pushes[0].Grant == nil || pushes[0].Grant.Fence >= lock.Fence() {
			t.Fatalf("pushes %+v, want the grant that was forced away", pushes)
		}
		if w.over() {
			t.Fatalf("two have the lock: %v, %v; error %v", lock, w.lock, w.err)
		}
		wantNil(t, "Renew", lock.Renew(t.Context()))
		wantNil(t, "Release", lock.Release(t.Context()))
		k.wantTrusted(w.granted(time.Second), sinceAsked)
	})
}

// A waiter cannot tell how old a late push is. It asks if the lease could be mostly over.
func TestLatePushIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		late time.Duration
		asks int
	}{
		"before the first renewal": {joblock.DefaultTTL/3 - time.Millisecond, 0},
		"at the first renewal":     {joblock.DefaultTTL / 3, 1},
		"late in the lease":        {joblock.DefaultTTL * 3 / 4, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				locks, post := k.posted(&joblock.Config{CallTimeout: time.Hour})
				holder := k.acquire("key")
				w := k.wait(locks, "key")
				post.hold(true)
				wantNil(t, "Release", holder.Release(t.Context()))
				k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire) // no poll finds the grant
				time.Sleep(c.late)
				synctest.Wait()
				k.store.Clear()
				fence := k.record("key").Fence
				if n := k.asks(func() { post.handOut() }); n != c.asks {
					t.Errorf("the waiter has asked %d times, want %d", n, c.asks)
				}
				lock := w.granted(0)
				if lock.Fence() != fence {
					t.Errorf("fence %d, want %d", lock.Fence(), fence)
				}
				k.wantTrusted(lock, onTime)
				time.Sleep(time.Minute)
				wantNil(t, "Err", lock.Err()) // renewed in time
			})
		})
	}
}

func TestPushThatCameTwiceGivesOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks, post := k.posted(nil)
		holder := k.acquire("key")
		w := k.wait(locks, "key")
		post.hold(true)
		wantNil(t, "Release", holder.Release(t.Context()))
		pushes := append(post.handOut(), post.handOut()...)
		for range 3 {
			post.deliver(pushes[0])
		}
		lock := w.granted(0)
		post.hold(false)
		again := k.wait(locks, "key") // by the same Locker
		post.deliver(pushes[0])
		if again.over() {
			t.Fatalf("two have the lock: %v, %v", lock, again.lock)
		}
		wantNil(t, "Release", lock.Release(t.Context()))
		mine := again.granted(0)
		post.deliver(pushes[0])
		time.Sleep(time.Minute)
		wantNil(t, "Err", mine.Err())
	})
}

// The grant is made and pushed while the answer to the waiter's question is on its way.
func TestPushThatOvertakesARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		warm := k.acquire("warm")
		other := k.wait(k.locks, "warm") // the subscription is there: the first call joins
		wantNil(t, "Release", warm.Release(t.Context()))
		other.granted(0)

		holder, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		k.store.Set(faultstore.Fault{Mode: faultstore.Slow, Times: 1, Delay: time.Second}, faultstore.Acquire)
		sent := time.Now()
		w := k.wait(k.locks, "key")
		time.Sleep(900 * time.Millisecond)
		wantNil(t, "Release", holder.Release(context.Background()))
		if n := k.asks(func() { w.granted(100 * time.Millisecond) }); n != 0 {
			t.Errorf("the waiter has asked %d times more", n)
		}
		// The question was sent before the grant, and its answer came after.
		if d := w.lock.ExpiresAt().Sub(sent); d > joblock.DefaultTTL-time.Second {
			t.Errorf("trusted until %s after the question", d)
		}
		k.wantTrusted(w.lock, time.Second)
	})
}

// What the store cannot have granted is not believed, whatever else is wrong.
func TestPushWithAFenceThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks, post := k.posted(nil)
		holder := k.acquire("key")
		w := k.wait(locks, "key")
		for _, fence := range []int64{holder.Fence(), holder.Fence() - 1, 0, -1, driver.MaxFence + 1, 1<<63 - 1, -1 << 63} {
			post.deliver(driver.Push{Nonce: post.last.Nonce, Grant: &driver.Grant{Fence: fence}})
			if w.over() {
				t.Fatalf("fence %d: two have the lock: %v, %v; error %v", fence, holder, w.lock, w.err)
			}
			time.Sleep(2 * time.Second) // pushes are ignored for a while after one that brought nothing
		}
		post.deliver(driver.Push{Nonce: "", Grant: &driver.Grant{Fence: holder.Fence() + 1}})
		post.deliver(driver.Push{Nonce: "another", Grant: &driver.Grant{Fence: holder.Fence() + 1}})
		if w.over() {
			t.Fatalf("two have the lock: %v, %v", holder, w.lock)
		}
		wantNil(t, "Release", holder.Release(t.Context()))
		w.granted(0)
	})
}

// A grant that comes when its waiter is going is given back.
func TestPushAtTheEndOfAWait(t *testing.T) {
	for _, end := range []string{"cancelled", "closed"} {
		for seed := range uint64(50) {
			synctest.Test(t, func(t *testing.T) {
				testkit.Seed(t, seed)
				k := newKit(t, nil)
				locks, post := k.posted(nil)
				holder := k.acquire("key")
				w := k.wait(locks, "key")
				post.hold(true)
				wantNil(t, "Release", holder.Release(t.Context()))
				ending := make(chan struct{})
				go func() { // at the same time as the push
					defer close(ending)
					if end == "cancelled" {
						w.cancel(context.Canceled)
					} else if err := locks.Close(context.Background()); err != nil {
						t.Errorf("Close: %v", err)
					}
				}()
				if seed%2 == 0 {
					synctest.Wait() // before the push
				}
				pushes := post.handOut()
				<-ending
				<-w.done
				switch {
				case w.err == nil && end == "cancelled":
					wantNil(t, "Release", w.lock.Release(t.Context()))
				case w.err == nil:
					wantErr(t, w.lock.Err(), joblock.ErrLost) // its lease runs out
					return
				case end == "cancelled":
					wantErr(t, w.err, context.Canceled)
				default:
					wantErr(t, w.err, joblock.ErrClosed)
				}
				k.wantFreeWithin("key", onTime)
				post.deliver(pushes[0])
				synctest.Wait()
				k.wantState("key", joblock.StateFree)
			})
		}
	}
}

// What a push does not carry costs a question.
func TestPushWithoutAllThatIsWanted(t *testing.T) {
	for name, c := range map[string]struct {
		opt  joblock.AcquireOption
		asks int
	}{
		"nothing more": {joblock.Retain(time.Minute), 0},
		"the memo":     {memo.WithGrant(), 1},
		"a full lease": {joblock.NoRenew(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				holder := k.acquire("key")
				wantNil(t, "memo.Write", memo.Write(t.Context(), holder, []byte("page 7")))
				w := k.wait(k.locks, "key", c.opt)
				time.Sleep(3 * time.Second)
				if n := k.asks(func() { wantNil(t, "Release", holder.Release(t.Context())) }); n != c.asks {
					t.Errorf("the waiter has asked %d times, want %d", n, c.asks)
				}
				lock := w.granted(0)
				if name == "the memo" && string(memo.Of(lock)) != "page 7" {
					t.Errorf("memo %q", memo.Of(lock))
				}
				if name == "a full lease" {
					k.wantTrusted(lock, onTime)
				}
			})
		})
	}
}

// Waiters of several processes, whose pushes are late, lost, repeated and out of order. Often they cannot ask for longer
// than a lease, so that their grants run out unseen. Some give up.
func TestCrowdWithABadPostman(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			testkit.Seed(t, seed)
			const lockers, waiters, turns, ttl = 3, 6, 20, 2 * time.Second
			k := newKit(t, nil)
			var (
				guarded section
				held    int
				mu      sync.Mutex // guards held and dice
				dice    = rand.New(rand.NewPCG(seed, 1))
				all     sync.WaitGroup
			)
			roll := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return dice.IntN(n)
			}
			for i := range lockers {
				locks, post := k.posted(&joblock.Config{TTL: ttl, CallTimeout: time.Minute, Holder: fmt.Sprint("locker ", i)})
				all.Go(func() {
					for range turns {
						time.Sleep(time.Duration(roll(int(3 * ttl))))
						post.mu.Lock()
						post.away = time.Now().Add(time.Duration(roll(int(3 * ttl))))
						post.mu.Unlock()
					}
				})
				post.round = func(p driver.Push) {
					for range roll(4) { // none: the push is lost
						switch late := time.Duration(roll(int(3 * ttl))); roll(3) {
						case 0:
							post.deliver(p)
						default:
							time.AfterFunc(late, func() { post.deliver(p) })
						}
					}
				}
				for range waiters {
					all.Go(func() {
						for range turns {
							ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+roll(int(20*time.Second))))
							lock, err := locks.Acquire(ctx, "key")
							cancel()
							if err != nil {
								continue
							}
							stay := time.Duration(roll(int(2 * ttl)))
							guarded.visit(lock.Fence(), stay)
							mu.Lock()
							held++
							mu.Unlock()
							if err := lock.Release(context.Background()); err != nil {
								t.Errorf("Release after %s: %v", stay, err)
							}
						}
					})
				}
			}
			all.Wait()
			guarded.check(t, held)
			if held < turns {
				t.Errorf("%d visits, want more", held)
			}
			k.wantFreeWithin("key", ttl+time.Second)
		})
	}
}
