package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
)

// newLocker returns a Locker on a Store on rdb, closed with the test.
func newLocker(t testing.TB, rdb redis.UniversalClient, cfg *joblock.Config) *joblock.Locker {
	t.Helper()
	return newLockerOn(t, must(newStore(rdb, nil)), cfg)
}

func newLockerOn(t testing.TB, s *store, cfg *joblock.Config) *joblock.Locker {
	t.Helper()
	locks, err := joblock.New(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locks.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return locks
}

// renew renews a lock. A renewal has a second for its answer and is not sent again, which
// a busy machine may exceed.
func renew(lock *joblock.Lock) (err error) {
	for {
		if err = lock.Renew(context.Background()); !errors.Is(err, joblock.ErrUnavailable) {
			return err
		}
	}
}

// wantUnavailable wants an error that is ErrUnavailable, worth a retry, names the cause
// and is no answer about the lock.
func wantUnavailable(t testing.TB, what string, err error, cause string) {
	t.Helper()
	if !errors.Is(err, joblock.ErrUnavailable) || !joblock.Retryable(err) || !strings.Contains(err.Error(), cause) {
		t.Errorf("%s: %v; want ErrUnavailable that names %s", what, err, cause)
	}
}
