package joblock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

// die takes a place in the queue as a process does that is never heard of again.
func (k *kit) die(key string, ttl, patience time.Duration) {
	k.Helper()
	r, err := k.mem.Acquire(context.Background(), driver.AcquireRequest{
		Key: key, Owner: "dead", Nonce: "dead", TTL: ttl, Retain: time.Hour, Holder: "dead",
		Inbox: "unheard", Patience: patience,
	})
	if err != nil || r.Outcome != driver.OutcomeHeld {
		k.Fatalf("Acquire: %+v, %v", r, err)
	}
}

func TestDeadWaiterIsSkippedWhenItsPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		holder := k.acquire("key")
		k.die("key", joblock.DefaultTTL, 3*joblock.DefaultPoll)
		w := k.wait(k.locks, "key")
		time.Sleep(3*joblock.DefaultPoll + time.Millisecond)
		wantNil(t, "Release", holder.Release(t.Context()))
		w.granted(0)
	})
}

// The store knows that a grant to a dead process has no receiver: the connections of the process are closed. If its
// machine has died, or is cut off, the connections seem open.
func TestLockGrantedToADeadWaiterMovesOn(t *testing.T) {
	for name, c := range map[string]struct {
		heard bool
		ttl   time.Duration
		last  time.Duration
	}{
		"with its place":                       {false, joblock.DefaultTTL, 3*joblock.DefaultPoll - time.Second},
		"with its place, after a long lease":   {false, time.Hour, 3*joblock.DefaultPoll - time.Second},
		"with its lease, if that is shorter":   {false, 5 * time.Second, 5 * time.Second},
		"with its lease, if it may have heard": {true, joblock.DefaultTTL, joblock.DefaultTTL},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				synctest.Test(t, func(t *testing.T) {
					testkit.Seed(t, seed)
					k := newKit(t, nil)
					holder := k.acquire("key")
					if c.heard {
						stop, err := k.mem.Subscribe(t.Context(), "unheard", func(driver.Push) {})
						wantNil(t, "Subscribe", err)
						defer stop()
					}
					k.die("key", c.ttl, 3*joblock.DefaultPoll)
					time.Sleep(time.Second)
					first, second := k.wait(k.peer(), "key"), k.wait(k.locks, "key")
					wantNil(t, "Release", holder.Release(t.Context()))
					if r := k.record("key"); r.Holder != "dead" {
						t.Fatalf("the holder is %q", r.Holder)
					}
					start := time.Now()
					lock := first.granted(c.last + onTime) // it has asked meanwhile, and knows when
					if d := time.Since(start); d < c.last {
						t.Errorf("granted after %s, before the end after %s", d, c.last)
					}
					if lock.Prior() != driver.EndedLapsed {
						t.Errorf("prior is %q, want lapsed", lock.Prior())
					}
					k.wantTrusted(lock, onTime)
					wantNil(t, "Release", lock.Release(t.Context()))
					second.granted(0)
				})
			}
		})
	}
}

// Dead waiters of whom the store knows cost those behind them one place together, however long their leases are.
func TestDeadWaitersOfWhomTheStoreKnowsCostOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		holder := k.acquire("key")
		for i := range 7 {
			r, err := k.mem.Acquire(t.Context(), driver.AcquireRequest{
				Key: "key", Owner: "dead", Nonce: fmt.Sprint("dead ", i), TTL: time.Hour, Retain: time.Hour, Holder: "dead",
				Inbox: "unheard", Patience: 3 * joblock.DefaultPoll,
			})
			if err != nil || r.Outcome != driver.OutcomeHeld {
				t.Fatalf("Acquire: %+v, %v", r, err)
			}
			time.Sleep(joblock.DefaultPoll / 8)
		}
		last := time.Now()
		w := k.wait(k.peer(), "key")
		wantNil(t, "Release", holder.Release(t.Context()))
		w.granted(time.Until(last.Add(3*joblock.DefaultPoll + joblock.DefaultPoll/4 + onTime)))
	})
}

// deafStore is a store whose pushes do not come: the inboxes of its waiters have no subscriber.
type deafStore struct{ driver.Store }

func (s deafStore) Subscribe(context.Context, string, func(driver.Push)) (func(), error) {
	return func() {}, nil
}

// A waiter that lives and hears nothing finds its grant, and then has a whole lease.
func TestWaiterWithoutPushesTakesUpItsGrant(t *testing.T) {
	for name, opts := range map[string][]joblock.AcquireOption{
		"renewed":     {joblock.TTL(time.Minute)},
		"not renewed": {joblock.TTL(time.Minute), joblock.NoRenew()},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				synctest.Test(t, func(t *testing.T) {
					testkit.Seed(t, seed)
					k := newKit(t, nil)
					holder := k.acquire("key")
					w, next := k.wait(k.open(deafStore{k.store}, nil), "key", opts...), k.wait(k.peer(), "key")
					wantNil(t, "Release", holder.Release(t.Context()))
					if r := k.record("key"); r.Lease > 3*joblock.DefaultPoll+time.Millisecond {
						t.Errorf("the grant has no receiver, and its lease is %s", r.Lease)
					}
					lock := w.granted(joblock.DefaultPoll * 5 / 4)
					if r := k.record("key"); r.Lease < time.Minute {
						t.Errorf("the waiter knows of its grant, and has %s", r.Lease)
					}
					k.wantTrusted(lock, onTime)
					time.Sleep(40 * time.Second)
					wantNil(t, "Err", lock.Err())
					wantNil(t, "Release", lock.Release(t.Context()))
					next.granted(onTime)
				})
			}
		})
	}
}

// "At most a TTL after a crash" holds whichever waiters die with the holder, and however
// short the lease is.
func TestDeadHolderAndAllBeforeTheLastInLine(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, joblock.DefaultTTL, 2 * time.Minute} {
		for _, dead := range []int{1, 2, 7, 20} {
			t.Run(fmt.Sprintf("%s, %d", ttl, dead), func(t *testing.T) {
				for seed := range uint64(5) {
					synctest.Test(t, func(t *testing.T) {
						testkit.Seed(t, seed)
						k := newKit(t, nil)
						p := k.Process()
						k.crash("key", ttl)
						crashed := time.Now()
						var ws []*waiting
						for range dead {
							ws = append(ws, k.wait(p.Locker, "key", joblock.TTL(ttl)))
						}
						w := k.wait(k.peer(), "key", joblock.TTL(ttl))
						time.Sleep(ttl / 3) // a lease that is renewed has two thirds left
						p.Die()
						poll := min(joblock.DefaultPoll, ttl/6)
						late := poll / 4 // when it is among the first
						if dead > 7 {
							late = poll * 5 / 4
						}
						w.granted(time.Until(crashed.Add(ttl + late + onTime)))
						for _, w := range ws {
							w.failed(time.Hour)
						}
					})
				}
			})
		}
	}
}

// Waiters that die by themselves cost those behind them one lease together, not one each.
func TestDeadWaitersCostOneLease(t *testing.T) {
	for _, ttl := range []time.Duration{3 * time.Second, joblock.DefaultTTL} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				holder := k.acquire("key", joblock.TTL(ttl))
				p := k.Process()
				var ws []*waiting
				for range 7 {
					ws = append(ws, k.wait(p.Locker, "key", joblock.TTL(ttl)))
				}
				w := k.wait(k.peer(), "key", joblock.TTL(ttl))
				p.Die()
				wantNil(t, "Release", holder.Release(t.Context()))
				w.granted(ttl + min(joblock.DefaultPoll, ttl/6)/4 + onTime)
				for _, w := range ws {
					w.failed(time.Hour)
				}
			})
		})
	}
}

// Short leases have those at the head of the line look often, and not a whole crowd.
func TestCrowdWithShortLeasesDoesNotStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key", joblock.TTL(time.Second))
		var ws []*waiting
		const n = 1000
		for range n {
			ws = append(ws, k.wait(k.locks, "key", joblock.TTL(time.Second)))
		}
		time.Sleep(10 * time.Second) // so that each knows its place
		before := k.store.Calls(faultstore.Acquire)
		time.Sleep(10 * time.Second)
		if calls := (k.store.Calls(faultstore.Acquire) - before) / 10; calls > n {
			t.Errorf("%d waiters ask %d times a second", n, calls)
		}
		wantNil(t, "Release", lock.Release(t.Context()))
		for i, w := range ws[:20] {
			lock := w.granted(onTime)
			wantNil(t, fmt.Sprint("Release by ", i), lock.Release(t.Context()))
		}
	})
}

// When a holder dies the first in line asks just after its lease; the others do
// not even notice.
func TestDeadHoldersLockGoesToTheFirstWithoutAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.crash("key", joblock.DefaultTTL)
		start := time.Now()
		var ws []*waiting
		for range 50 {
			ws = append(ws, k.wait(k.locks, "key"))
		}
		// What the first learns with its last poll is up to date enough.
		time.Sleep(joblock.DefaultTTL - 10*time.Millisecond)
		before := k.store.Calls(faultstore.Acquire)
		lock := ws[0].granted(10*time.Millisecond + onTime)
		if d := time.Since(start); d < joblock.DefaultTTL || d > joblock.DefaultTTL+onTime {
			t.Errorf("granted after %s, want 30s", d)
		}
		time.Sleep(10 * time.Millisecond)
		// Polls that happen to fall here: 50 waiters make about 12 per second.
		if n := k.store.Calls(faultstore.Acquire) - before; n < 1 || n > 10 {
			t.Errorf("%d calls around the end of the lease", n)
		}
		k.wantTrusted(lock, onTime)
		for _, w := range ws {
			wantNil(t, "Release", w.granted(0).Release(t.Context()))
		}
	})
}

// A key whose lease has expired goes to the first waiter, even if another caller notices
// first.
func TestTryAcquireOfALapsedKeyServesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.crash("key", joblock.DefaultTTL)
		k.die("key", joblock.DefaultTTL, time.Minute)
		time.Sleep(joblock.DefaultTTL + time.Second)
		_, err := k.locks.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)
		if r := k.record("key"); r.Holder != "dead" || r.State != joblock.StateHeld {
			t.Errorf("the key is %s by %q, want the first waiter", r.State, r.Holder)
		}
	})
}

// The first waiter in line dies too: the next caller that asks serves the queue.
func TestDeadHolderAndDeadWaiter(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			k := newKit(t, nil)
			k.crash("key", joblock.DefaultTTL)
			time.Sleep(joblock.DefaultTTL - 3*joblock.DefaultPoll - time.Second)
			k.die("key", joblock.DefaultTTL, 3*joblock.DefaultPoll) // over before the lease
			w := k.wait(k.locks, "key")
			start := time.Now()
			w.granted(3*joblock.DefaultPoll + time.Second + joblock.DefaultPoll*5/4)
			if d := time.Since(start); d < 3*joblock.DefaultPoll+time.Second {
				t.Errorf("granted after %s, before the lease's end", d)
			}
		})
	}
}

func TestWaitingForAParkedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		w, second := k.wait(k.peer(), "key"), k.wait(k.locks, "key")
		token := k.park(lock, joblock.Reserve(time.Hour), joblock.ForJob("mail/7"))
		time.Sleep(30 * time.Minute)
		if w.over() {
			t.Fatalf("parking freed the key: %v, %v", w.lock, w.err)
		}
		k.wantWaiters("key", 2)
		job, err := k.locks.Resume(t.Context(), token, joblock.ForJob("mail/7"))
		wantNil(t, "Resume", err)
		time.Sleep(5 * time.Minute)
		if w.over() {
			t.Fatal("resuming freed the key")
		}
		wantNil(t, "Release", job.Release(t.Context()))
		got := w.granted(0)
		k.wantTrusted(got, sinceAsked)

		// A reservation that runs out frees the key for the next, who asks then.
		k.park(got, joblock.Reserve(time.Hour))
		parked := time.Now()
		second.granted(time.Hour + onTime)
		if d := time.Since(parked); d < time.Hour {
			t.Errorf("granted %s into the reservation", d)
		}
	})
}

func TestWaitingForAnOrphanedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token := k.park(k.acquire("key"), joblock.Reserve(time.Hour))
		_, err := k.locks.Resume(t.Context(), token, joblock.NoRenew())
		wantNil(t, "Resume", err)
		start := time.Now()
		w, second := k.wait(k.peer(), "key"), k.wait(k.peer(), "key")
		time.Sleep(joblock.DefaultTTL + time.Minute)
		k.wantState("key", joblock.StateOrphaned)
		if w.over() {
			t.Fatal("granted while the reservation stands")
		}
		lock := w.granted(time.Hour)
		if d := time.Since(start); d < time.Hour || d > time.Hour+onTime {
			t.Errorf("granted after %s, want 1h", d)
		}
		if lock.Prior() != driver.EndedLapsed {
			t.Errorf("prior is %q, want lapsed", lock.Prior())
		}
		// By the token, from anywhere.
		token = k.park(lock, joblock.Reserve(time.Hour))
		wantNil(t, "Release", k.locks.Release(t.Context(), token, joblock.IfIdle(), joblock.Reason("the job is gone")))
		second.granted(0)
	})
}

func TestForceReleaseHandsTheLockToTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		holder := k.acquire("key")
		wantNil(t, "memo.Write", memo.Write(t.Context(), holder, []byte("page 7")))
		first, second := k.wait(k.peer(), "key", memo.WithGrant()), k.wait(k.locks, "key")
		wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key", joblock.Reason("stuck")))
		lock := first.granted(0)
		if lock.Prior() != driver.EndedForced || string(memo.Of(lock)) != "page 7" {
			t.Errorf("prior %q, memo %q", lock.Prior(), memo.Of(lock))
		}
		if second.over() {
			t.Error("the second has it too")
		}
		wantErr(t, holder.Renew(t.Context()), joblock.ErrLost)
		time.Sleep(time.Minute)
		wantNil(t, "Err", lock.Err())
		wantNil(t, "Release", lock.Release(t.Context()))
		second.granted(0)
	})
}

func TestWaitRidesOutASubscriptionThatFailsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		holder := k.acquire("key")
		k.store.Set(faultstore.Fault{}, faultstore.Listen)
		w := k.wait(k.locks, "key")
		time.Sleep(joblock.DefaultCallTimeout - time.Second)
		k.store.Clear()
		time.Sleep(time.Second)
		k.wantWaiters("key", 1)
		wantNil(t, "Release", holder.Release(t.Context()))
		w.granted(0)
	})
}

func TestWaitWithoutASubscription(t *testing.T) {
	for name, mode := range map[string]faultstore.Mode{"refused": faultstore.Refuse, "hanging": faultstore.Hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				holder := k.acquire("key")
				k.store.Set(faultstore.Fault{Mode: mode}, faultstore.Listen)
				var ws []*waiting
				for i := range 50 {
					k.acquire(fmt.Sprint("other-", i))
					ws = append(ws, k.wait(k.locks, "key"), k.wait(k.locks, fmt.Sprint("other-", i)))
				}
				for _, w := range ws {
					wantErr(t, w.failed(3*joblock.DefaultCallTimeout), joblock.ErrUnavailable)
					if w.took < joblock.DefaultCallTimeout {
						t.Errorf("gave up after %s", w.took)
					}
				}
				// A key that becomes free meanwhile is had without one.
				w := k.wait(k.locks, "key")
				wantNil(t, "Release", holder.Release(t.Context()))
				wantNil(t, "Release", w.granted(joblock.DefaultCallTimeout+time.Second).Release(t.Context()))
				k.wantState("key", joblock.StateFree)
			})
		})
	}
}

// An outage in the middle of a wait costs the place only if it lasts.
func TestOutageWhileWaiting(t *testing.T) {
	for _, c := range []struct {
		name string
		mode faultstore.Mode
		away time.Duration
		err  error
	}{
		{"short", faultstore.Refuse, joblock.DefaultCallTimeout - time.Second, nil},
		{"short, answers lost", faultstore.Drop, joblock.DefaultCallTimeout - time.Second, nil},
		{"long", faultstore.Refuse, 5 * joblock.DefaultPoll, joblock.ErrUnavailable},
		{"long, hanging", faultstore.Hang, 5 * joblock.DefaultPoll, joblock.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				peer := k.peer()
				holder, err := peer.TryAcquire(t.Context(), "key")
				wantNil(t, "TryAcquire", err)
				w, next := k.wait(k.locks, "key"), k.wait(peer, "key")
				k.store.Set(faultstore.Fault{Mode: c.mode}, faultstore.Acquire, faultstore.Release)
				time.Sleep(c.away)
				k.store.Clear()
				if c.err != nil {
					wantErr(t, w.failed(0), c.err)
					time.Sleep(joblock.DefaultCallTimeout + 2*time.Second) // the clean-up, which may hang yet
					k.wantWaiters("key", 1)
					wantNil(t, "Release", holder.Release(t.Context()))
					next.granted(0)
					return
				}
				time.Sleep(2 * joblock.DefaultPoll)
				wantNil(t, "Release", holder.Release(t.Context()))
				w.granted(0)
			})
		})
	}
}
