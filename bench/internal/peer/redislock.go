package peer

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockPause is the backoff in redislock's own examples.
const redislockPause = 100 * time.Millisecond

type redislockPeer struct {
	rdb  *redis.Client
	lib  *redislock.Client
	ttl  time.Duration
	opts *redislock.Options
}

func openRedislock(o Options) *redislockPeer {
	rdb := goRedis(o)
	return &redislockPeer{rdb, redislock.New(rdb), o.TTL,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(redislockPause)}}
}

func (p *redislockPeer) Acquire(ctx context.Context, key string) (Held, error) {
	lock, err := p.lib.Obtain(ctx, key, p.ttl, p.opts)
	if err != nil {
		return nil, err
	}
	return (*redislockHeld)(lock), nil
}

func (p *redislockPeer) Close() error { return p.rdb.Close() }

type redislockHeld redislock.Lock

func (h *redislockHeld) Release(ctx context.Context) error { return (*redislock.Lock)(h).Release(ctx) }

func (h *redislockHeld) Refresh(ctx context.Context, ttl time.Duration) error {
	return (*redislock.Lock)(h).Refresh(ctx, ttl, nil)
}
