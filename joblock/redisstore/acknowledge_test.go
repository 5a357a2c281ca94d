package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
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

// On a server without replicas no grant counts. A refusal needs no replica.
func TestGrantWithoutAReplicaIsAnError(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	rdb := db.Client(t)
	ctx := context.Background()
	k := newKitWith(t, rdb, &Config{Replicas: 1, ReplicaTimeout: time.Millisecond})
	req := driver.AcquireRequest{Key: "free", Owner: "me", Nonce: k.nonce(), TTL: long, Retain: long}
	if r, err := k.Acquire(ctx, req); !errors.Is(err, errTooFew) {
		t.Errorf("acquire: %+v, %v, want %v", r, err, errTooFew)
	}
	newKit(t, rdb).acquire("held")
	req.Key, req.Nonce = "held", k.nonce()
	r, err := k.Acquire(ctx, req)
	wantOutcome(t, "acquire of a held key", r, err, driver.OutcomeHeld)
}
