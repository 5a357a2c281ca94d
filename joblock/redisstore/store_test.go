package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestBadConfigurationIsRefused(t *testing.T) {
	app := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer app.Close()
	many := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer many.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, c := range map[string]struct {
		rdb    redis.UniversalClient
		prefix string
	}{
		"nil":                 {nil, ""},
		"nil client":          {(*redis.Client)(nil), ""},
		"nil cluster client":  {(*redis.ClusterClient)(nil), ""},
		"nil ring":            {(*redis.Ring)(nil), ""},
		"long prefix":         {app, strings.Repeat("p", maxPrefixBytes+1)},
		"control character":   {app, "lock\n"},
		"not UTF-8":           {app, "\xff"},
		"invisible character": {app, "lock\u200b:"},
		"brace in a cluster":  {many, "a{b"},
		"brace in a ring":     {ring, "a}b"},
	} {
		if s, err := New(c.rdb, &Config{Prefix: c.prefix}); s != nil || !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: New returned %v, %v, want nil and ErrInvalid", name, s, err)
		}
	}
}

func TestPrefixes(t *testing.T) {
	m := redistest.MiniServer(t)
	redistest.Ran(t, redistest.MiniBackend())
	app := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { app.Close() })
	ctx := context.Background()
	for prefix, want := range map[string]string{
		"":                                  "joblock:k",
		"a b/é*{tag}:":                      "a b/é*{tag}:k",
		strings.Repeat("p", maxPrefixBytes): strings.Repeat("p", maxPrefixBytes) + "k",
	} {
		s := must(newStore(app, &Config{Prefix: prefix}))
		r, err := s.Acquire(ctx, driver.AcquireRequest{Key: "k", Owner: "o", Nonce: "n", TTL: long, Retain: long})
		wantOutcome(t, "acquire with "+prefix, r, err, driver.OutcomeOK)
		if !m.Exists(want) {
			t.Errorf("with prefix %q the record is not at %q, but among %v", prefix, want, m.Keys())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestEmptyBatchesSendNothing(t *testing.T) {
	app := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { app.Close() })
	k := newKit(t, app)
	ctx := context.Background()
	rs, err := k.Renew(ctx, nil)
	wantOutcomes(t, "renew", rs, err, 0, driver.OutcomeOK)
	rs, err = k.Release(ctx, nil)
	wantOutcomes(t, "release", rs, err, 0, driver.OutcomeOK)
	rs, err = k.Reserve(ctx, nil)
	wantOutcomes(t, "reserve", rs, err, 0, driver.OutcomeOK)
	if err := removeFrom(ctx, k.store, nil); err != nil {
		t.Errorf("settle: %v", err)
	}
	if recs, err := k.Inspect(ctx, driver.InspectRequest{}); err != nil || len(recs) != 0 {
		t.Errorf("inspect: %v, %v", recs, err)
	}
}
