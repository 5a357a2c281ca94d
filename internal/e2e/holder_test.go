//go:build servers

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// renew renews a lock until there is an answer. A renewal has a second for it and is not
// sent again: a busy machine may exceed that, and after a restart the first connections
// are dead ones.
func renew(t *testing.T, lock *joblock.Lock) (err error) {
	t.Helper()
	await(t, "an answer", func() bool { err = lock.Renew(t.Context()); return !errors.Is(err, joblock.ErrUnavailable) })
	return err
}

// What befalls a holder and is over within its lease costs it nothing. Its renewals
// are made by hand: those of the Locker, which are repeated within the lease, are shown
// in virtual time in package joblock.
func TestHolderSurvives(t *testing.T) {
	scripts := redistest.Named("evalsha", "eval")
	for name, c := range map[string]struct {
		befall     func(ctx context.Context, server *redistest.Server, proxy *redistest.Proxy, rdb *redis.Client) error
		unanswered int // how many renewals are, at the least
	}{
		"its connections are killed": {func(ctx context.Context, _ *redistest.Server, _ *redistest.Proxy, rdb *redis.Client) error {
			killed, err := rdb.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Result()
			if err == nil && killed == 0 {
				err = errors.New("no connection was killed")
			}
			return err
		}, 0},
		"replies to renewals are lost": {func(_ context.Context, _ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) error {
			proxy.Times(3, scripts, redistest.DropReply())
			return nil
		}, 3},
		"renewals do not arrive": {func(_ context.Context, _ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) error {
			proxy.Times(3, scripts, redistest.DropRequest())
			return nil
		}, 3},
		"a renewal is never answered": {func(_ context.Context, _ *redistest.Server, proxy *redistest.Proxy, _ *redis.Client) error {
			proxy.Once(scripts, redistest.Swallow())
			return nil
		}, 1},
		"the scripts are forgotten": {func(ctx context.Context, _ *redistest.Server, _ *redistest.Proxy, rdb *redis.Client) error {
			return rdb.ScriptFlush(ctx).Err()
		}, 0},
		"a restart with persistence": {func(_ context.Context, server *redistest.Server, _ *redistest.Proxy, _ *redis.Client) error {
			server.Kill()
			server.Restart()
			return nil
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			proxy := redistest.NewProxy(t, server.Addr())
			locks := newLocks(t, proxy.Addr(), &joblock.Config{TTL: time.Hour})
			lock, err := locks.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := lock.Context(t.Context())
			defer stop()
			if err := renew(t, lock); err != nil { // there is a connection to lose
				t.Fatal(err)
			}
			if err := c.befall(t.Context(), server, proxy, server.Client(t)); err != nil {
				t.Fatal(err)
			}
			unanswered := 0
			await(t, "a renewal", func() bool {
				err := lock.Renew(t.Context())
				if err != nil && !errors.Is(err, joblock.ErrUnavailable) {
					t.Errorf("renew: %v", err)
				}
				if err != nil {
					unanswered++
				}
				return err == nil || t.Failed()
			})
			if unanswered < c.unanswered {
				t.Errorf("%d renewals were without an answer, want %d", unanswered, c.unanswered)
			}
			if err := lock.Err(); err != nil || ctx.Err() != nil {
				t.Errorf("lost: %v, %v", err, context.Cause(ctx))
			}
			if _, err := locks.TryAcquire(t.Context(), "k"); !errors.Is(err, joblock.ErrHeld) {
				t.Errorf("the other: %v, want ErrHeld", err)
			}
			if err := lock.Release(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
}

// The record is gone or another's, although the server has answered all the time: the
// holder learns that from its next renewal, does not restore the record, and cannot touch
// that of the next owner, whose fence is larger.
func TestRecordIsGone(t *testing.T) {
	for name, befall := range map[string]func(t *testing.T, server *redistest.Server, rdb *redis.Client) error{
		"deleted": func(t *testing.T, _ *redistest.Server, rdb *redis.Client) error {
			return rdb.Del(t.Context(), "joblock:k").Err()
		},
		"flushed": func(t *testing.T, _ *redistest.Server, rdb *redis.Client) error {
			return rdb.FlushAll(t.Context()).Err()
		},
		"evicted": func(t *testing.T, _ *redistest.Server, rdb *redis.Client) error {
			if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err(); err != nil {
				return err
			}
			if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				return err
			}
			err := rdb.Set(t.Context(), "cache", strings.Repeat("x", 1<<10), 0).Err() // refused, after everything was evicted
			if err == nil {
				return errors.New("the server is not full")
			}
			return rdb.ConfigSet(t.Context(), "maxmemory", "0").Err()
		},
		"restarted empty": func(_ *testing.T, server *redistest.Server, _ *redis.Client) error {
			server.Kill()
			server.Restart()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client(t)
			// The first renewal by itself is 20 minutes away.
			locks := newLocks(t, server.Addr(), &joblock.Config{TTL: time.Hour})
			lock, err := locks.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := lock.Context(t.Context())
			defer stop()
			if err := befall(t, server, rdb); err != nil {
				t.Fatal(err)
			}
			if err := renew(t, lock); !errors.Is(err, joblock.ErrLost) {
				t.Fatalf("renew: %v, want ErrLost", err)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), joblock.ErrLost) {
				t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
			}
			if n, err := rdb.Exists(t.Context(), "joblock:k").Result(); err != nil || n != 0 {
				t.Errorf("%d records, %v: the renewal has made a new one", n, err)
			}
			next, err := locks.Acquire(t.Context(), "k", joblock.MaxWait(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if next.Fence() <= lock.Fence() {
				t.Errorf("fence %d after %d", next.Fence(), lock.Fence())
			}
			if err := lock.Release(t.Context()); !errors.Is(err, joblock.ErrLost) {
				t.Errorf("release: %v, want ErrLost", err)
			}
			if err := renew(t, next); err != nil {
				t.Errorf("the next after that: %v", err)
			}
		})
	}
}
