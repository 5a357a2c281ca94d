//go:build servers

package e2e

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// startReplicated starts a master and a replica that is in step with it.
func startReplicated(t *testing.T) (master, replica *redistest.Server) {
	t.Helper()
	master = redistest.Start(t)
	_, port, _ := net.SplitHostPort(master.Addr())
	replica = redistest.Start(t, "--replicaof", "127.0.0.1 "+port)
	rdb := replica.Client(t)
	await(t, "the replica", func() bool {
		info, err := rdb.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return master, replica
}

// replicaOf tells a server whose replica it is.
func replicaOf(t *testing.T, server *redistest.Server, host, port string) {
	t.Helper()
	if err := server.Client(t).Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
}

// cutOff has a replica hear nothing more; it stays one, with what it has.
func cutOff(t *testing.T, replica *redistest.Server) { replicaOf(t, replica, "127.0.0.1", "1") }

// promote makes a replica a master.
func promote(t *testing.T, replica *redistest.Server) { replicaOf(t, replica, "NO", "ONE") }

// follower returns a Locker that talks to the server at the address in to, whichever
// that is when a connection is made, as through Sentinel.
func follower(t *testing.T, to *atomic.Value, cfg *redisstore.Config, lcfg *joblock.Config) *joblock.Locker {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, to.Load().(string))
	}})
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, cfg)), lcfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := locks.Close(context.Background())
		if cfg != nil && errors.Is(err, joblock.ErrUnavailable) {
			err = nil // what a call without a replica's answer has left may be unknown to the end
		}
		if err := errors.Join(err, rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	return locks
}

// The master dies before its replica has heard of a lock. What that costs is one of the
// things that are not promised: the next owner is granted the key while the first still
// trusts its lease. The first learns that from its next renewal, and the fences tell them apart.
func TestPromotedReplicaIsStale(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	var to atomic.Value
	to.Store(master.Addr())
	cutOff(t, replica)
	locks := follower(t, &to, nil, &joblock.Config{TTL: time.Hour})
	lock, err := locks.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := lock.Context(t.Context())
	defer stop()
	master.Kill()
	promote(t, replica)
	to.Store(replica.Addr())

	next, err := newLocks(t, replica.Addr(), nil).TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatalf("the next: %v", err)
	}
	if next.Fence() <= lock.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lock.Fence())
	}
	if err := renew(t, lock); !errors.Is(err, joblock.ErrLost) {
		t.Fatalf("renew: %v, want ErrLost", err)
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), joblock.ErrLost) {
		t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
	}
	if err := renew(t, next); err != nil {
		t.Errorf("the next after that: %v", err)
	}
}

// The same with Config.Replicas: no caller got the answer that it had the lock, so none
// shares it.
func TestPromotedReplicaLacksOnlyWhatWasNotGranted(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	var to atomic.Value
	to.Store(master.Addr())
	cutOff(t, replica)
	locks := follower(t, &to, &redisstore.Config{Replicas: 1}, &joblock.Config{TTL: time.Second})
	if lock, err := locks.TryAcquire(t.Context(), "k"); !errors.Is(err, joblock.ErrUnavailable) {
		t.Fatalf("granted %v, %v, which no replica has; want ErrUnavailable", lock, err)
	}
	master.Kill()
	promote(t, replica)
	to.Store(replica.Addr())
	if _, err := newLocks(t, replica.Addr(), nil).TryAcquire(t.Context(), "k"); err != nil {
		t.Errorf("the next: %v", err)
	}
}

// The master does not die but is cut off, with clients that still reach it, and grants
// the key a second time. The fences differ. Once it is made a replica of the new master,
// its holder learns that: from the next renewal, or at the latest by the local clock.
func TestOldMasterLivesOn(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	cutOff(t, replica)
	promote(t, replica)
	there := newLocks(t, master.Addr(), &joblock.Config{TTL: time.Second})
	here := newLocks(t, replica.Addr(), &joblock.Config{TTL: time.Hour})
	zombie, err := there.Acquire(t.Context(), "k", joblock.MaxWait(time.Minute)) // a grant may come too late
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := zombie.Context(t.Context())
	defer stop()
	lock, err := here.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if lock.Fence() <= zombie.Fence() {
		t.Errorf("fence %d after %d", lock.Fence(), zombie.Fence())
	}
	_, port, _ := net.SplitHostPort(replica.Addr())
	replicaOf(t, master, "127.0.0.1", port)
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), joblock.ErrLost) {
		t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
	}
	if err := renew(t, lock); err != nil {
		t.Errorf("renew: %v", err)
	}
}
