//go:build servers

package redisstore

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

func init() { backends["miniredis"] = newMiniKit }

func newMiniKit(t testing.TB) *kit {
	redistest.Ran(t, redistest.MiniBackend())
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
	t.Cleanup(func() { rdb.Close() })
	return newKit(t, rdb)
}

// newOwnKit returns a kit on a redis-server of its own, for tests of what belongs to the whole server.
func newOwnKit(t testing.TB) *kit {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	return newKit(t, srv.Client(t))
}
