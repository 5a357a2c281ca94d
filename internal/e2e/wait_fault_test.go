//go:build servers

package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// inLine is n waiters of one Locker, each of which stays inside for a moment.
type inLine struct {
	wg sync.WaitGroup
}

func lineUp(t *testing.T, rdb *redis.Client, locks *joblock.Locker, key string, n int) *inLine {
	t.Helper()
	var q inLine
	for range n {
		q.wg.Go(func() {
			lock, err := locks.Acquire(t.Context(), key, joblock.MaxWait(60*time.Second), joblock.TTL(time.Hour)) // none is lost
			if err != nil {
				t.Error(err)
				return
			}
			if err := enter(context.Background(), rdb, lock.Fence(), 0, 10*time.Millisecond, 0); err != nil {
				t.Error(err)
			}
			if err := lock.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return &q
}

// done waits for all, and checks that they were inside one at a time.
func (q *inLine) done(t *testing.T, rdb *redis.Client, n int) {
	t.Helper()
	start := time.Now()
	q.wg.Wait()
	t.Logf("%d were done after %v; TTL %v, poll %v", n, time.Since(start), waitConfig.TTL, waitConfig.Poll)
	if all := entries(t, rdb); len(all) != n {
		t.Errorf("%d entries, want %d", len(all), n)
	}
}

// What befalls the waiters between the time they have lined up and the release.
func TestWaitersSurvive(t *testing.T) {
	const n = 8
	for name, befall := range map[string]func(t *testing.T, server *redistest.Server, proxy *redistest.Proxy, rdb *redis.Client){
		"nothing": func(*testing.T, *redistest.Server, *redistest.Proxy, *redis.Client) {},
		"the subscription is killed": func(t *testing.T, _ *redistest.Server, _ *redistest.Proxy, rdb *redis.Client) {
			if killed, err := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Result(); err != nil || killed == 0 {
				t.Errorf("killed %d, %v", killed, err)
			}
		},
		"the subscription falls silent": func(t *testing.T, _ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) {
			silent := proxy.Once(redistest.Named("PING"), redistest.Swallow()) // only subscriptions send it
			await(t, "a ping", func() bool { return silent.Hits() > 0 })
		},
		"every connection is cut": func(_ *testing.T, _ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) { proxy.Cut() },
		"the scripts are forgotten": func(t *testing.T, _ *redistest.Server, _ *redistest.Proxy, rdb *redis.Client) {
			if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Error(err)
			}
		},
		"a restart with persistence": func(_ *testing.T, server *redistest.Server, _ *redistest.Proxy, _ *redis.Client) {
			server.Restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			proxy, rdb := redistest.NewProxy(t, server.Addr()), server.Client(t)
			locks := newLocks(t, proxy.Addr(), &waitConfig)
			holders := newLocks(t, server.Addr(), &joblock.Config{TTL: 20 * time.Second})
			holder, err := holders.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			q := lineUp(t, rdb, locks, "k", n)
			awaitWaiters(t, holders, "k", n)
			befall(t, server, proxy, rdb)
			if err := holder.Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
			q.done(t, rdb, n)
			st, err := testkit.One(holders.Status(t.Context(), "k"))
			if err != nil || st.Locked() || st.Waiters != 0 {
				t.Errorf("%+v, %v are left", st, err)
			}
		})
	}
}

// The server forgets everything, the queue included: the waiters line up again.
func TestWaitersSurviveTheLossOfAllData(t *testing.T) {
	t.Parallel()
	const n = 8
	server := redistest.Start(t)
	rdb := server.Client(t)
	locks := newLocks(t, server.Addr(), &waitConfig)
	if _, err := locks.TryAcquire(t.Context(), "k", joblock.NoRenew(), joblock.TTL(20*time.Second)); err != nil {
		t.Fatal(err)
	}
	q := lineUp(t, rdb, locks, "k", n)
	awaitWaiters(t, locks, "k", n)
	server.Restart()
	q.done(t, rdb, n)
}

// A waiter that gives up leaves no trace that costs others: the places before and behind
// the one that stays are gone.
func TestPlacesThatWereLeftAreGone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	locks := newLocks(t, server.Addr(), &waitConfig)
	holder, err := locks.TryAcquire(t.Context(), "k", joblock.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	// crowd has 50 wait until there is a reason for them to give up: that their time is over, or leave.
	crowd := func(want error, opts ...joblock.AcquireOption) (leave, wait func()) {
		var wg sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		for range 50 {
			wg.Go(func() {
				if _, err := locks.Acquire(ctx, "k", opts...); !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			})
		}
		return leave, wg.Wait
	}
	leave, wait := crowd(joblock.ErrTimeout, joblock.MaxWait(time.Second))
	wait()
	leave()
	awaitWaiters(t, locks, "k", 0)
	leaveBefore, waitBefore := crowd(context.Canceled)
	awaitWaiters(t, locks, "k", 50)
	q := lineUp(t, rdb, locks, "k", 1)
	awaitWaiters(t, locks, "k", 51)
	leaveBehind, waitBehind := crowd(context.Canceled)
	awaitWaiters(t, locks, "k", 101)
	leaveBefore()
	leaveBehind()
	waitBefore()
	waitBehind()
	awaitWaiters(t, locks, "k", 1)
	if err := holder.Release(t.Context()); err != nil {
		t.Error(err)
	}
	q.done(t, rdb, 1)
	fields, err := redistest.QueueFields(t.Context(), rdb, "joblock:k")
	if err != nil || len(fields) > 0 {
		t.Errorf("the fields %q are left, %v", fields, err)
	}
}

// A user who may not publish, which is what an ACL without channels means, can
// release all the same; the next in line finds its grant by asking.
func TestReleaseByAUserWhoMayNotPublish(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	mute := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "mute", Password: "any"})
	defer mute.Close()
	muted, err := joblock.New(testkit.Must(redisstore.New(mute, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer muted.Close(context.Background())
	holder, err := muted.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	locks := newLocks(t, server.Addr(), &waitConfig)
	q := lineUp(t, rdb, locks, "k", 3)
	awaitWaiters(t, locks, "k", 3)
	if err := holder.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	q.done(t, rdb, 3)
}
