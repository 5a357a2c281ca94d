package peer

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncPeer struct {
	rdb  *redis.Client
	lib  *redsync.Redsync
	opts []redsync.Option
}

func openRedsync(o Options) *redsyncPeer {
	rdb := goRedis(o)
	return &redsyncPeer{rdb, redsync.New(goredis.NewPool(rdb)), []redsync.Option{
		redsync.WithExpiry(o.TTL),
		// Its default of 32 tries would end a long wait; the pauses are its own.
		redsync.WithTries(math.MaxInt),
	}}
}

func (p *redsyncPeer) Acquire(ctx context.Context, key string) (Held, error) {
	m := p.lib.NewMutex(key, p.opts...)
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return (*redsyncHeld)(m), nil
}

func (p *redsyncPeer) Close() error { return p.rdb.Close() }

type redsyncHeld redsync.Mutex

var errNotHeld = errors.New("redsync: not held any more")

func (h *redsyncHeld) Release(ctx context.Context) error {
	return okOr((*redsync.Mutex)(h).UnlockContext(ctx))
}

// Refresh extends by the expiry that the mutex was made with, which is ttl.
func (h *redsyncHeld) Refresh(ctx context.Context, _ time.Duration) error {
	return okOr((*redsync.Mutex)(h).ExtendContext(ctx))
}

func okOr(ok bool, err error) error {
	if err == nil && !ok {
		return errNotHeld
	}
	return err
}
