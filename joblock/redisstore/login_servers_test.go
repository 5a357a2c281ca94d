//go:build servers

package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// newStranger returns a Locker on a Store on rdb, which no server lets in. What a call
// without an answer has left is not known to the end, so that closing it, which is done
// with the test, may be ErrUnavailable, or take longer than it is given.
func newStranger(t testing.TB, rdb redis.UniversalClient, cfg *joblock.Config) *joblock.Locker {
	t.Helper()
	locks, err := joblock.New(must(newStore(rdb, nil)), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := locks.Close(ctx)
		if err != nil && !errors.Is(err, joblock.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
	})
	return locks
}

// setPassword sets the password that the server wants.
func setPassword(t testing.TB, srv *redistest.Server, old, password string) {
	t.Helper()
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr(), Password: old})
	defer admin.Close()
	if err := admin.ConfigSet(t.Context(), "requirepass", password).Err(); err != nil {
		t.Fatal(err)
	}
}

// A password that is wrong or missing is reported as what it is by the first call; the
// server is not stormed with attempts to log in, and a wait does not last forever.
func TestWrongPassword(t *testing.T) {
	for name, c := range map[string]struct{ password, cause string }{
		"wrong": {"wrong", "WRONGPASS"}, "none": {"", "NOAUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			redistest.Ran(t, srv.Backend())
			setPassword(t, srv, "", "right")
			proxy := redistest.NewProxy(t, srv.Addr())
			seen := proxy.Always(redistest.Any, redistest.Pass())
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), Password: c.password})
			t.Cleanup(func() { rdb.Close() })
			locks := newStranger(t, rdb, &joblock.Config{TTL: time.Second})
			_, err := locks.TryAcquire(t.Context(), "k")
			wantUnavailable(t, "TryAcquire", err, c.cause)
			_, err = locks.Acquire(t.Context(), "k", joblock.MaxWait(time.Hour))
			wantUnavailable(t, "Acquire", err, c.cause)
			// A storm would be thousands; what there is comes from the pauses between
			// attempts, which only grow.
			if n := seen.Hits(); n == 0 || n > 200 {
				t.Errorf("%d commands", n)
			}
		})
	}
}

// The password is changed, and connections are closed, while a caller holds a lock: the
// loss is signalled, and once the old password is back, the key can be taken again.
func TestPasswordChangedUnderAHolder(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	setPassword(t, srv, "", "old")
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Password: "old"})
	t.Cleanup(func() { rdb.Close() })
	locks := newLocker(t, rdb, &joblock.Config{TTL: time.Second})
	lock, err := locks.Acquire(t.Context(), "k", joblock.MaxWait(time.Minute)) // a grant may come too late
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := lock.Context(t.Context())
	defer stop()
	setPassword(t, srv, "old", "new")
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr(), Password: "new"})
	defer admin.Close()
	if err := admin.ClientKillByFilter(t.Context(), "TYPE", "normal").Err(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, joblock.ErrLost) {
		t.Errorf("cause %v, want ErrLost", cause)
	}
	_, err = locks.TryAcquire(t.Context(), "k")
	wantUnavailable(t, "TryAcquire", err, "WRONGPASS")
	setPassword(t, srv, "new", "old")
	next, err := locks.Acquire(t.Context(), "k", joblock.MaxWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if next.Fence() <= lock.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lock.Fence())
	}
}
