//go:build servers

package e2e

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// awaitWaiters waits until the queue of key has n places.
func awaitWaiters(t *testing.T, locks *joblock.Locker, key string, n int) {
	t.Helper()
	await(t, "the waiters", func() bool {
		st, err := testkit.One(locks.Status(t.Context(), key))
		if err != nil {
			t.Fatal(err)
		}
		return st.Waiters == n
	})
}

// acquireSoon is an Acquire with a guard against hanging. The log has the time that the grant took.
func acquireSoon(t *testing.T, locks *joblock.Locker, key string) *joblock.Lock {
	t.Helper()
	start := time.Now()
	lock, err := locks.Acquire(t.Context(), key, joblock.MaxWait(60*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("granted after %v", time.Since(start))
	return lock
}

// Four processes with eight waiters each hand the lock over a few hundred times: in
// the order in which places were taken, and never to two.
func TestQueueAcrossProcessesIsInOrder(t *testing.T) {
	t.Parallel()
	const procs, waiters, rounds = 4, 8, 10
	server := redistest.Start(t)
	plan := queuePlan{Addr: server.Addr(), Key: "k", Waiters: waiters, Rounds: rounds, Config: neverDue}
	// A process that starts late would find the others done: the test holds the lock until all are in line.
	locks := newLocks(t, server.Addr(), &plan.Config)
	first := acquireSoon(t, locks, plan.Key)
	var ps []*proc
	for range procs {
		ps = append(ps, startQueue(t, plan))
	}
	awaitWaiters(t, locks, plan.Key, procs*waiters)
	start := time.Now()
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		p.finish(t)
	}
	t.Logf("%d hand-overs in %v", procs*waiters*rounds, time.Since(start))
	all := entries(t, server.Client(t))
	if len(all) != procs*waiters*rounds {
		t.Errorf("%d entries, want %d", len(all), procs*waiters*rounds)
	}
	waited, last := 0, int64(0)
	for i, e := range all {
		if e.Joined == 0 {
			continue
		}
		waited++
		if e.Joined < last {
			t.Errorf("entry %d was overtaken: it had joined %dµs before the one that came first", i, last-e.Joined)
		}
		last = e.Joined
	}
	if waited < len(all)/2 {
		t.Errorf("only %d of %d had to wait: this proves nothing", waited, len(all))
	}
}

// A process dies that holds the lock: the lock moves on within a TTL and a poll. A process dies that is first in line,
// or all of whose threads are in line: the lock moves on when their places end, however long their TTL is.
func TestLockMovesOnWhenAProcessIsKilled(t *testing.T) {
	t.Run("the holder", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		locks := newLocks(t, server.Addr(), &waitConfig)
		holder := startQueue(t, queuePlan{Addr: server.Addr(), Key: "k", Waiters: 1, Rounds: 1, Hold: -1, Config: waitConfig})
		fence := holder.got(t)
		time.AfterFunc(500*time.Millisecond, holder.kill)
		lock := acquireSoon(t, locks, "k")
		if lock.Fence() <= fence || lock.Prior() != driver.EndedLapsed {
			t.Errorf("fence %d after %d, prior %q", lock.Fence(), fence, lock.Prior())
		}
	})
	for name, n := range map[string]int{"the first waiter": 1, "all waiters but the last": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			locks := newLocks(t, server.Addr(), &waitConfig)
			holder := acquireSoon(t, newLocks(t, server.Addr(), &neverDue), "k") // not lost before the release
			config := waitConfig
			config.TTL = time.Hour
			dead := startQueue(t, queuePlan{Addr: server.Addr(), Key: "k", Waiters: n, Rounds: 1, Hold: -1, Config: config})
			awaitWaiters(t, locks, "k", n)
			inboxes := func() int {
				channels, err := server.Client(t).PubSubChannels(t.Context(), "joblock:inbox:*").Result()
				if err != nil {
					t.Fatal(err)
				}
				return len(channels)
			}
			got := make(chan *joblock.Lock, 1)
			go func() {
				lock, err := locks.Acquire(t.Context(), "k", joblock.MaxWait(60*time.Second), joblock.TTL(time.Hour))
				if err != nil {
					t.Error(err)
				}
				got <- lock
			}()
			awaitWaiters(t, locks, "k", n+1)
			before := inboxes()
			dead.kill()
			await(t, "the server to see the death", func() bool { return inboxes() < before })
			if err := holder.Release(t.Context()); err != nil {
				t.Error(err)
			}
			start := time.Now()
			lock := <-got
			t.Logf("granted %v after the release", time.Since(start))
			if lock.Err() != nil || lock.Fence() <= holder.Fence() {
				t.Errorf("fence %d after %d, %v", lock.Fence(), holder.Fence(), lock.Err())
			}
			if left := entries(t, server.Client(t)); len(left) != 0 {
				t.Errorf("the dead got the lock: %v", left)
			}
		})
	}
}
