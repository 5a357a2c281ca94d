package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/storemodel"
	"github.com/joblock/toolkit/joblock/storetest"
)

// TestConformanceOnRedis is the test of the scripts by all that storetest knows. The cases of an area run side by side,
// because most of the time they wait for short leases to run out.
func TestConformanceOnRedis(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	rdb := db.Client(t)
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		if strings.Count(t.Name(), "/") > 1 { // a case
			t.Parallel()
		}
		// Channels belong to the whole server, so the prefix has the number of the database.
		h := harness(t, rdb, fmt.Sprintf("test %d.%d:", db.Number(), n.Add(1)))
		h.Advance = time.Sleep
		h.Unit = 10 * time.Millisecond
		return h
	})
}

func TestModelOnMiniredis(t *testing.T) {
	t.Parallel()
	redistest.Ran(t, redistest.MiniBackend())
	storemodel.Run(t, miniHarness(t))
}

// miniHarness has a clock that is set by hand. Redis takes both the time of day
// and the expiry of keys from one clock, so both are moved.
func miniHarness(t *testing.T) *storetest.Harness { return miniHarnessOn(t, redistest.MiniServer(t)) }

func miniHarnessOn(t *testing.T, m *miniredis.Miniredis) *storetest.Harness {
	m.ClockTTL(false)
	now := time.UnixMicro(1_700_000_000_123_456)
	m.SetTime(now)
	// A line of a thousand jobs takes miniredis seconds where the race detector and other tests share its core.
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), ReadTimeout: long})
	t.Cleanup(func() { rdb.Close() })
	h := harness(t, rdb, keyspace.DefaultPrefix)
	h.Exact = true
	h.Unit = time.Second
	var mu sync.Mutex // some calls of a test run side by side, each after a tick
	h.Advance = func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
		m.SetTime(now)
		m.FastForward(d)
	}
	h.Step = h.Advance
	return h
}

// giveTime takes the short timeouts from the renewals of s, which are for a Locker that
// tries again: a batch of hundreds takes miniredis most of a second as it is.
func giveTime(t testing.TB, s *store, rdb redis.UniversalClient) {
	own := s.renew
	switch c := rdb.(type) {
	case *redis.Client:
		o := renewOptions(c.Options())
		o.DialTimeout, o.PoolTimeout, o.ReadTimeout, o.WriteTimeout = long, long, long, long
		s.renew = redis.NewClient(o)
	case *redis.ClusterClient:
		o := renewClusterOptions(c.Options())
		o.DialTimeout, o.PoolTimeout, o.ReadTimeout, o.WriteTimeout = long, long, long, long
		s.renew = redis.NewClusterClient(o)
	default:
		return
	}
	s.renewals = unmerged(s.renew, s.renew)
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
}

func harness(t testing.TB, rdb redis.UniversalClient, prefix string) *storetest.Harness {
	return harnessWith(t, rdb, &Config{Prefix: prefix})
}

func harnessWith(t testing.TB, rdb redis.UniversalClient, cfg *Config) *storetest.Harness {
	s := must(newStore(rdb, cfg))
	giveTime(t, s, rdb)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	ctx := context.Background()
	return &storetest.Harness{
		Store: s,
		Foreign: func(key string) {
			if err := rdb.Set(ctx, s.name(key), "not a lock", 0).Err(); err != nil {
				t.Fatal(err)
			}
		},
		ForeignIntact: func(key string) bool {
			v, err := rdb.Get(ctx, s.name(key)).Result()
			return err == nil && v == "not a lock"
		},
	}
}
