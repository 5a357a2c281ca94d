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
	for name, s := range map[string]*Store{
		"negative":    New(rdb, &Config{Replicas: -1}),
		"too many":    New(rdb, &Config{Replicas: maxReplicas + 1}),
		"too short":   New(rdb, &Config{Replicas: 1, ReplicaTimeout: time.Microsecond}),
		"too long":    New(rdb, &Config{Replicas: 1, ReplicaTimeout: maxReplicaTimeout + 1}),
		"with a ring": New(ring, &Config{Replicas: 1}),
	} {
		if err := s.Validate(); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: Validate returned %v", name, err)
		}
		s.Close()
	}
}
