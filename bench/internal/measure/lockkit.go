package measure

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// lockKit is a Locker on a wire, for measurements of joblock alone.
type lockKit struct {
	wire  rig.Wire
	rdb   *redis.Client
	locks *joblock.Locker
	held  int // locks that a list shows
}

func (b *Bench) newLockKit() (*lockKit, error) {
	k := new(lockKit)
	k.rdb = redis.NewClient(&redis.Options{Addr: b.Server.Addr(), Dialer: k.wire.Dial})
	var err error
	k.locks, err = joblock.New(redisstore.New(k.rdb, nil), &joblock.Config{TTL: leaseTTL, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, errors.Join(err, k.rdb.Close())
	}
	return k, nil
}

func (k *lockKit) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(k.locks.Close(ctx), k.rdb.Close())
}
