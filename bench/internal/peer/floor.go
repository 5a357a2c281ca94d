package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// floorPause is the pause between two looks of a waiter.
const floorPause = 10 * time.Millisecond

var compareAndDelete = redis.NewScript(
	`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

// floor is the least that a safe lock needs: SET NX PX and a compare-and-delete.
type floor struct {
	rdb *redis.Client
	ttl time.Duration
}

func openFloor(o Options) *floor { return &floor{goRedis(o), o.TTL} }

func (f *floor) Acquire(ctx context.Context, key string) (Held, error) {
	value := rand.Text()
	for {
		err := f.rdb.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: f.ttl}).Err()
		if err == nil {
			return &floorHeld{f.rdb, key, value}, nil
		}
		if !errors.Is(err, redis.Nil) {
			return nil, err
		}
		t := time.NewTimer(floorPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

func (f *floor) Close() error { return f.rdb.Close() }

type floorHeld struct {
	rdb        *redis.Client
	key, value string
}

func (h *floorHeld) Release(ctx context.Context) error {
	return compareAndDelete.Run(ctx, h.rdb, []string{h.key}, h.value).Err()
}
