package joblock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// process is a Locker that can be made to be never heard of again.
type process struct {
	*joblock.Locker
	store *faultstore.Store
}

func (k *kit) process() process {
	k.Helper()
	store := faultstore.New(k.mem)
	p := process{k.open(store, &joblock.Config{CallTimeout: 10 * time.Second}), store}
	k.Cleanup(func() { store.Clear() })
	return p
}

// die cuts the process off; what it has goes on to exist in the store.
func (p process) die() {
	p.store.Set(faultstore.Fault{}, faultstore.Acquire, faultstore.Renew, faultstore.Release, faultstore.Inspect, faultstore.Push)
}

func TestDeadHoldersPermitGoesToTheFirstInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		p := k.process()
		_, err := p.TryAcquire(t.Context(), "key", joblock.Limit(2))
		wantNil(t, "TryAcquire", err)
		k.acquire("key", joblock.Limit(2))
		first, second := k.wait(k.locks, "key", joblock.Limit(2)), k.wait(k.peer(), "key", joblock.Limit(2))
		time.Sleep(time.Hour)
		p.die()
		lock := first.granted(joblock.DefaultTTL + onTime)
		if lock.Prior() != joblock.EndedLapsed {
			t.Errorf("prior is %q, want lapsed", lock.Prior())
		}
		if second.over() {
			t.Error("the second in line got a permit too")
		}
	})
}

// Whoever dies in line, those behind go on: at once, after the lease of the gate or,
// where it was granted a permit as it died, after that permit's lease.
func TestDeathInLine(t *testing.T) {
	for name, c := range map[string]struct {
		before int // waiters ahead of the one that dies
		within time.Duration
	}{
		"at the gate": {0, 5*time.Second + onTime},
		"behind it":   {1, 5*time.Second + 5*time.Second + onTime},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				synctest.Test(t, func(t *testing.T) {
					testkit.Seed(t, seed)
					const limit = 3
					k := newKit(t, nil)
					held := k.permits("key", limit)
					var ahead []*waiting
					for range c.before {
						ahead = append(ahead, k.wait(k.locks, "key", joblock.Limit(limit)))
					}
					p := k.process()
					dead := k.wait(p.Locker, "key", joblock.Limit(limit))
					next := k.wait(k.peer(), "key", joblock.Limit(limit))
					time.Sleep(time.Minute)
					p.die()
					time.Sleep(3 * joblock.DefaultPoll) // its places are no longer kept
					for i, w := range ahead {
						wantNil(t, "Release", held[i].Release(t.Context()))
						w.granted(onTime)
					}
					wantNil(t, "Release", held[limit-1].Release(t.Context()))
					next.granted(c.within)
					dead.failed(time.Minute)
					k.wantLimit("key", limit, limit, 0)
				})
			}
		})
	}
}

// The permits that come free in the moment in which the head of the line dies are
// its for one lease.
func TestPermitGrantedToTheDeadHeadOfTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 1)
		p := k.process()
		dead := k.wait(p.Locker, "key", joblock.Limit(1))
		next := k.wait(k.peer(), "key", joblock.Limit(1))
		p.die()
		wantNil(t, "Release", held[0].Release(t.Context()))
		start := time.Now()
		next.granted(joblock.DefaultTTL + onTime)
		if d := time.Since(start); d < joblock.DefaultTTL {
			t.Errorf("granted after %s, while the lease of the dead stood", d)
		}
		dead.failed(time.Minute)
	})
}

// A gate whose holder died, with places in its queue that nobody keeps, is in nobody's
// way.
func TestDeadLineDoesNotBlockTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 2)
		p := k.process()
		dead := []*waiting{k.wait(p.Locker, "key", joblock.Limit(2)), k.wait(p.Locker, "key", joblock.Limit(2))}
		p.die()
		time.Sleep(time.Minute)
		k.wantState("key%#gate", joblock.StateFree)
		if n := k.record("key%#gate").Waiters; n == 0 {
			t.Fatal("nobody has left a place behind: this proves nothing")
		}
		wantNil(t, "Release", held[0].Release(t.Context()))
		k.acquire("key", joblock.Limit(2))
		k.wantLimit("key", 2, 2, 0)
		for _, w := range dead {
			w.failed(time.Minute)
		}
	})
}

// But if somebody in that queue is alive the next permit is theirs.
func TestTryAcquireServesALivingLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 2)
		p, next := k.process(), k.process()
		dead := k.wait(p.Locker, "key", joblock.Limit(2))
		w := k.wait(next.Locker, "key", joblock.Limit(2))
		p.die()
		time.Sleep(4 * time.Second)
		next.die()
		time.Sleep(1100 * time.Millisecond)                                // the gate's lease is 5 s
		k.wantState("key%#gate", joblock.StateFree)                        // next could not ask yet, but is about to
		_, err := k.locks.TryAcquire(t.Context(), "key", joblock.Limit(4)) // two are free
		wantErr(t, err, joblock.ErrHeld)
		if gate := k.record("key%#gate"); gate.State != joblock.StateHeld || gate.Waiters != 0 {
			t.Errorf("the gate is %s with %d waiters, want it given to the one who waited", gate.State, gate.Waiters)
		}
		next.store.Clear()
		time.Sleep(3 * joblock.DefaultPoll) // the places of the dead are no longer kept
		wantNil(t, "Release", held[0].Release(t.Context()))
		w.granted(onTime)
		dead.failed(time.Minute)
	})
}

// A waiter that gives up, at the gate or behind it, leaves nothing behind, and the
// next one has its place at once.
func TestWaiterThatGivesUp(t *testing.T) {
	for name, i := range map[string]int{"at the gate": 0, "behind it": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 3
				k := newKit(t, nil)
				held := k.permits("key", limit)
				var ws []*waiting
				for range 3 {
					ws = append(ws, k.wait(k.peer(), "key", joblock.Limit(limit)))
				}
				gone := errors.New("the client has gone")
				ws[i].cancel(gone)
				err := ws[i].failed(0)
				wantErr(t, err, gone)
				wantNotErr(t, err, joblock.ErrTimeout)
				k.wantLimit("key", limit, limit, 2)
				wantNil(t, "Release", held[1].Release(t.Context()))
				wantNil(t, "Release", held[2].Release(t.Context()))
				for j, w := range ws {
					if j != i {
						w.granted(0)
					}
				}
				k.wantLimit("key", limit, limit, 0)
				k.wantNoPlaces("key", limit)
			})
		})
	}
}

// A waiter that gives up in the moment in which it is granted a permit has it, or
// has given it back.
func TestGrantAndCancellationTogether(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			const limit = 4
			k := newKit(t, nil)
			held := k.permits("key", limit)
			w := k.wait(k.locks, "key", joblock.Limit(limit))
			var wg sync.WaitGroup
			wg.Go(func() { wantNil(t, "Release", held[0].Release(context.Background())) })
			wg.Go(func() { w.cancel(nil) })
			wg.Wait()
			<-w.done
			taken := limit - 1
			if w.lock != nil {
				taken++
			}
			k.wantLimit("key", limit, taken, 0)
			k.wantNoPlaces("key", limit)
		})
	}
}

// When the Locker of the one at the gate is closed, the next has the gate at once.
func TestCloseAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 2)
		p := k.process()
		w := k.wait(p.Locker, "key", joblock.Limit(2))
		next := k.wait(k.peer(), "key", joblock.Limit(2))
		wantNil(t, "Close", p.Close(t.Context()))
		wantErr(t, w.failed(0), joblock.ErrClosed)
		wantNil(t, "Release", held[0].Release(t.Context()))
		next.granted(0)
		k.wantLimit("key", 2, 2, 0)
	})
}

func TestLimitWhileTheStoreIsAway(t *testing.T) {
	all := []string{faultstore.Acquire, faultstore.Inspect, faultstore.Renew, faultstore.Release}
	for name, c := range map[string]struct {
		mode faultstore.Mode
		opts []joblock.AcquireOption
		from string // the state in which the store goes
	}{
		"refuses":                    {faultstore.Refuse, nil, "start"},
		"hangs":                      {faultstore.Hang, nil, "start"},
		"hangs, MaxWait":             {faultstore.Hang, []joblock.AcquireOption{joblock.MaxWait(time.Second)}, "start"},
		"refuses while in line":      {faultstore.Refuse, nil, "line"},
		"refuses while at the gate":  {faultstore.Refuse, nil, "gate"},
		"loses replies at the gate":  {faultstore.Drop, nil, "gate"},
		"loses replies at the start": {faultstore.Drop, nil, "start"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				peer := k.peer()
				var others joblock.Locks
				for range 2 {
					lock, err := peer.TryAcquire(t.Context(), "key", joblock.Limit(2))
					wantNil(t, "TryAcquire", err)
					others = append(others, lock)
				}
				if c.from == "line" {
					k.wait(peer, "key", joblock.Limit(2), joblock.MaxWait(time.Hour))
				}
				if c.from == "start" {
					k.store.Set(faultstore.Fault{Mode: c.mode}, all...)
				}
				w := k.wait(k.locks, "key", append(c.opts, joblock.Limit(2))...)
				k.store.Set(faultstore.Fault{Mode: c.mode}, all...)
				err := w.failed(time.Minute)
				wantErr(t, err, joblock.ErrUnavailable)
				wantNotErr(t, err, joblock.ErrTimeout)

				k.store.Clear()
				time.Sleep(2 * time.Hour)
				wantNil(t, "Release", others.Release(t.Context()))
				k.wantLimit("key", 2, 0, 0)
			})
		})
	}
}

// A short outage is waited out.
func TestShortOutageInAWaitForAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{}, faultstore.Inspect, faultstore.Acquire)
		w := k.wait(k.locks, "key", joblock.Limit(2))
		time.Sleep(time.Second)
		k.store.Clear()
		w.granted(2 * time.Second)
		k.wantLimit("key", 2, 1, 0)
	})
}

// lame is a Store that never answers about one key.
type lame struct {
	driver.Store
	key string
}

func (s *lame) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if req.Key == s.key {
		return driver.Reply{}, faultstore.Err
	}
	return s.Store.Acquire(ctx, req)
}

// A permit that nobody can be asked about, on a node of a cluster that is down, ends
// the wait.
func TestOnePermitOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.permits("key", 3)
		w := k.wait(k.open(&lame{k.mem, "key%#2"}, nil), "key", joblock.Limit(3))
		wantErr(t, w.failed(time.Minute), joblock.ErrUnavailable)
		k.wantLimit("key", 3, 3, 0)
		k.wantNoPlaces("key", 3)
	})
}

// A bound on how long locks are held is none on how long is waited at the gate.
func TestLongWaitAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.permits("key", 2)
		locks := k.open(k.mem, &joblock.Config{MaxRenew: time.Minute})
		k.wait(locks, "key", joblock.Limit(2), joblock.Holder("me"), joblock.MaxWait(2*time.Hour))
		before := k.record("key%#gate")
		time.Sleep(time.Hour)
		after := k.record("key%#gate")
		if after.State != joblock.StateHeld || after.Fence != before.Fence || after.Holder != "me" {
			t.Errorf("the gate is %s by %q with fence %d, was taken with %d", after.State, after.Holder, after.Fence, before.Fence)
		}
	})
}

// A timeout tells of those who are in the way at its end, not at its beginning.
func TestTimeoutTellsOfTheEndOfTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		early := k.acquire("key", joblock.Limit(2), joblock.Holder("early"), joblock.TTL(5*time.Second))
		k.acquire("key", joblock.Limit(2), joblock.Holder("late"))
		w := k.wait(k.locks, "key", joblock.Limit(2), joblock.MaxWait(30*time.Second))
		k.park(early)
		err := w.failed(time.Minute)
		wantErr(t, err, joblock.ErrTimeout)
		var e *joblock.Error
		if errors.As(err, &e); e.Holder != "late" || e.Remaining > joblock.DefaultTTL+onTime {
			t.Errorf("%+v, want late", e)
		}
	})
}
