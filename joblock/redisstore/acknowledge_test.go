package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
)

func TestReplicasAreChecked(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, c := range map[string]struct {
		rdb redis.UniversalClient
		cfg Config
	}{
		"negative":    {rdb, Config{Replicas: -1}},
		"too many":    {rdb, Config{Replicas: maxReplicas + 1}},
		"too short":   {rdb, Config{Replicas: 1, ReplicaTimeout: time.Microsecond}},
		"too long":    {rdb, Config{Replicas: 1, ReplicaTimeout: maxReplicaTimeout + 1}},
		"with a ring": {ring, Config{Replicas: 1}},
	} {
		if s, err := New(c.rdb, &c.cfg); s != nil || !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: New returned %v, %v", name, s, err)
		}
	}
}
