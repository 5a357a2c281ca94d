package peer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// closeTimeout bounds Close: a hanging one is an error, not a longer benchmark.
const closeTimeout = 10 * time.Second

type ours struct {
	rdb    *redis.Client
	locks  *joblock.Locker
	places *places // nil if they are not asked for
}

func openJoblock(o Options) (*ours, error) {
	p := &ours{rdb: goRedis(o)}
	var store driver.Store = redisstore.New(p.rdb, nil)
	if o.Places {
		p.places = newPlaces(store)
		store = p.places
	}
	var err error
	p.locks, err = joblock.New(store, &joblock.Config{
		TTL:    o.TTL,
		Logger: slog.New(slog.DiscardHandler), // Close tells of locks that are still held
	})
	if err != nil {
		return nil, errors.Join(err, p.rdb.Close())
	}
	return p, nil
}

func (p *ours) Acquire(ctx context.Context, key string) (Held, error) {
	lock, err := p.locks.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	held := (*ourHeld)(lock)
	if p.places != nil {
		return placed{held, p.places.take(door.IdentityOf(lock).Owner)}, nil
	}
	return held, nil
}

func (p *ours) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(p.locks.Close(ctx), p.rdb.Close())
}

// ourHeld is a Lock by another name: a struct around it would be an allocation.
type ourHeld joblock.Lock

func (h *ourHeld) Release(ctx context.Context) error { return (*joblock.Lock)(h).Release(ctx) }
func (h *ourHeld) Lost() bool                        { return (*joblock.Lock)(h).Err() != nil }
