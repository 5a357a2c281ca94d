package limit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

func TestDeadHoldersPermitGoesToTheFirstInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		p := k.Process()
		_, err := limit.New(p.Locker, 2).TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		k.take(2, "key")
		first, second := k.Wait(limit.New(k.Locks, 2), "key"), k.Wait(limit.New(k.Peer(), 2), "key")
		time.Sleep(time.Hour)
		p.Die()
		lock := first.Granted(lockkit.TTL + lockkit.OnTime)
		if lock.Prior() != driver.EndedLapsed {
			t.Errorf("prior is %q, want lapsed", lock.Prior())
		}
		if second.Over() {
			t.Error("the second in line got a permit too")
		}
	})
}

// When a waiter dies, those behind it go on: at once, after the lease of the gate or,
// if the waiter was granted a permit as it died, after the lease of that permit.
func TestDeathInLine(t *testing.T) {
	for name, c := range map[string]struct {
		before int // waiters ahead of the one that dies
		within time.Duration
	}{
		"at the gate": {0, 5*time.Second + lockkit.OnTime},
		"behind it":   {1, 5*time.Second + 5*time.Second + lockkit.OnTime},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				synctest.Test(t, func(t *testing.T) {
					testkit.Seed(t, seed)
					const most = 3
					k := newKit(t, nil)
					held := k.permits("key", most)
					var ahead []*lockkit.Waiting
					for range c.before {
						ahead = append(ahead, k.Wait(limit.New(k.Locks, most), "key"))
					}
					p := k.Process()
					dead := k.Wait(limit.New(p.Locker, most), "key")
					next := k.Wait(limit.New(k.Peer(), most), "key")
					time.Sleep(time.Minute)
					p.Die()
					time.Sleep(3 * lockkit.Poll) // its places are no longer kept
					for i, w := range ahead {
						wantNil(t, "Release", held[i].Release(t.Context()))
						w.Granted(lockkit.OnTime)
					}
					wantNil(t, "Release", held[most-1].Release(t.Context()))
					next.Granted(c.within)
					dead.Failed(time.Minute)
					k.wantLimit("key", most, most, 0)
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
		p := k.Process()
		dead := k.Wait(limit.New(p.Locker, 1), "key")
		next := k.Wait(limit.New(k.Peer(), 1), "key")
		p.Die()
		wantNil(t, "Release", held[0].Release(t.Context()))
		start := time.Now()
		next.Granted(lockkit.TTL + lockkit.OnTime)
		if d := time.Since(start); d < lockkit.TTL {
			t.Errorf("granted after %s, while the lease of the dead stood", d)
		}
		dead.Failed(time.Minute)
	})
}

// A gate whose holder died, with abandoned places in its queue, blocks no caller.
func TestDeadLineDoesNotBlockTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 2)
		p := k.Process()
		dead := []*lockkit.Waiting{k.Wait(limit.New(p.Locker, 2), "key"), k.Wait(limit.New(p.Locker, 2), "key")}
		p.Die()
		time.Sleep(time.Minute)
		k.WantState("key%#gate", joblock.StateFree)
		if n := k.Record("key%#gate").Waiters; n == 0 {
			t.Fatal("no waiter left a place behind: this proves nothing")
		}
		wantNil(t, "Release", held[0].Release(t.Context()))
		k.take(2, "key")
		k.wantLimit("key", 2, 2, 0)
		for _, w := range dead {
			w.Failed(time.Minute)
		}
	})
}

// But if a waiter in that queue is alive, it gets the next permit.
func TestTryAcquireServesALivingLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 2)
		p, next := k.Process(), k.Process()
		dead := k.Wait(limit.New(p.Locker, 2), "key")
		w := k.Wait(limit.New(next.Locker, 2), "key")
		p.Die()
		time.Sleep(4 * time.Second)
		next.Die()
		time.Sleep(1100 * time.Millisecond)                            // the gate's lease is 5 s
		k.WantState("key%#gate", joblock.StateFree)                    // next could not ask yet, but is about to
		_, err := limit.New(k.Locks, 4).TryAcquire(t.Context(), "key") // two are free
		wantErr(t, err, joblock.ErrHeld)
		if gate := k.Record("key%#gate"); gate.State != joblock.StateHeld || gate.Waiters != 0 {
			t.Errorf("the gate is %s with %d waiters, want it given to the one who waited", gate.State, gate.Waiters)
		}
		next.Store.Clear()
		time.Sleep(3 * lockkit.Poll) // the places of the dead are no longer kept
		wantNil(t, "Release", held[0].Release(t.Context()))
		w.Granted(lockkit.OnTime)
		dead.Failed(time.Minute)
	})
}

// A waiter that gives up, at the gate or behind it, leaves nothing behind, and the
// next one has its place at once.
func TestWaiterThatGivesUp(t *testing.T) {
	for name, i := range map[string]int{"at the gate": 0, "behind it": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const most = 3
				k := newKit(t, nil)
				held := k.permits("key", most)
				var ws []*lockkit.Waiting
				for range 3 {
					ws = append(ws, k.Wait(limit.New(k.Peer(), most), "key"))
				}
				gone := errors.New("the client has gone")
				ws[i].Cancel(gone)
				err := ws[i].Failed(0)
				wantErr(t, err, gone)
				wantNotErr(t, err, joblock.ErrTimeout)
				k.wantLimit("key", most, most, 2)
				wantNil(t, "Release", held[1].Release(t.Context()))
				wantNil(t, "Release", held[2].Release(t.Context()))
				for j, w := range ws {
					if j != i {
						w.Granted(0)
					}
				}
				k.wantLimit("key", most, most, 0)
				k.wantNoPlaces("key", most)
			})
		})
	}
}

// A waiter that gives up in the moment in which it is granted a permit has it, or
// has given it back.
func TestGrantAndCancellationTogether(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			const most = 4
			k := newKit(t, nil)
			held := k.permits("key", most)
			w := k.Wait(limit.New(k.Locks, most), "key")
			var wg sync.WaitGroup
			wg.Go(func() { wantNil(t, "Release", held[0].Release(context.Background())) })
			wg.Go(func() { w.Cancel(nil) })
			wg.Wait()
			<-w.Done
			taken := most - 1
			if w.Lock != nil {
				taken++
			}
			k.wantLimit("key", most, taken, 0)
			k.wantNoPlaces("key", most)
		})
	}
}

// When the Locker of the one at the gate is closed, the next has the gate at once.
func TestCloseAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		held := k.permits("key", 2)
		p := k.Process()
		w := k.Wait(limit.New(p.Locker, 2), "key")
		next := k.Wait(limit.New(k.Peer(), 2), "key")
		wantNil(t, "Close", p.Close(t.Context()))
		wantErr(t, w.Failed(0), joblock.ErrClosed)
		wantNil(t, "Release", held[0].Release(t.Context()))
		next.Granted(0)
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
				peer := k.Peer()
				var others joblock.Locks
				for range 2 {
					lock, err := limit.New(peer, 2).TryAcquire(t.Context(), "key")
					wantNil(t, "TryAcquire", err)
					others = append(others, lock)
				}
				if c.from == "line" {
					k.Wait(limit.New(peer, 2), "key", joblock.MaxWait(time.Hour))
				}
				if c.from == "start" {
					k.Store.Set(faultstore.Fault{Mode: c.mode}, all...)
				}
				w := k.Wait(limit.New(k.Locks, 2), "key", c.opts...)
				k.Store.Set(faultstore.Fault{Mode: c.mode}, all...)
				err := w.Failed(time.Minute)
				wantErr(t, err, joblock.ErrUnavailable)
				wantNotErr(t, err, joblock.ErrTimeout)

				k.Store.Clear()
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
		k.Store.Set(faultstore.Fault{}, faultstore.Inspect, faultstore.Acquire)
		w := k.Wait(limit.New(k.Locks, 2), "key")
		time.Sleep(time.Second)
		k.Store.Clear()
		w.Granted(2 * time.Second)
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

// A permit on a node of a cluster that is down, so that its state is unknown, ends the
// wait.
func TestOnePermitOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.permits("key", 3)
		w := k.Wait(limit.New(k.Open(&lame{k.Mem, "key%#2"}, nil), 3), "key")
		wantErr(t, w.Failed(time.Minute), joblock.ErrUnavailable)
		k.wantLimit("key", 3, 3, 0)
		k.wantNoPlaces("key", 3)
	})
}

// A bound on how long locks are held is none on how long is waited at the gate.
func TestLongWaitAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.permits("key", 2)
		locks := k.Open(k.Mem, &joblock.Config{MaxRenew: time.Minute})
		k.Wait(limit.New(locks, 2), "key", joblock.Holder("me"), joblock.MaxWait(2*time.Hour))
		before := k.Record("key%#gate")
		time.Sleep(time.Hour)
		after := k.Record("key%#gate")
		if after.State != joblock.StateHeld || after.Fence != before.Fence || after.Holder != "me" {
			t.Errorf("the gate is %s by %q with fence %d, was taken with %d", after.State, after.Holder, after.Fence, before.Fence)
		}
	})
}

// A timeout tells of those who are in the way at its end, not at its beginning.
func TestTimeoutSaysWhenTheWaitEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		early := k.take(2, "key", joblock.Holder("early"), joblock.TTL(5*time.Second))
		k.take(2, "key", joblock.Holder("late"))
		w := k.Wait(limit.New(k.Locks, 2), "key", joblock.MaxWait(30*time.Second))
		k.park(early)
		err := w.Failed(time.Minute)
		wantErr(t, err, joblock.ErrTimeout)
		var e *joblock.Error
		if errors.As(err, &e); e.Holder != "late" || e.Remaining > lockkit.TTL+lockkit.OnTime {
			t.Errorf("%+v, want late", e)
		}
	})
}
