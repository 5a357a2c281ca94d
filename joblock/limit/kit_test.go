package limit_test

import (
	"context"
	"testing"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

var wantErr, wantNotErr, wantNil = testkit.WantErr, testkit.WantNotErr, testkit.WantNil

type kit struct{ *lockkit.Kit }

func newKit(t *testing.T, cfg *joblock.Config) *kit {
	t.Helper()
	return &kit{lockkit.New(t, cfg)}
}

// take takes one of n permits of key.
func (k *kit) take(n int, key string, opts ...joblock.AcquireOption) *joblock.Lock {
	k.Helper()
	lock, err := limit.New(k.Locks, n).TryAcquire(context.Background(), key, opts...)
	wantNil(k, "TryAcquire", err)
	return lock
}

func (k *kit) park(lock *joblock.Lock, opts ...joblock.ParkOption) joblock.Token {
	k.Helper()
	token, err := lock.Park(context.Background(), opts...)
	wantNil(k, "Park", err)
	return token
}
