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

func TestBadConfigurationIsReportedByEveryCall(t *testing.T) {
	app := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer app.Close()
	many := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer many.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, s := range map[string]*Store{
		"nil":                 New(nil, nil),
		"nil client":          New((*redis.Client)(nil), nil),
		"nil cluster client":  New((*redis.ClusterClient)(nil), nil),
		"long prefix":         New(app, &Config{Prefix: strings.Repeat("p", maxPrefixBytes+1)}),
		"control character":   New(app, &Config{Prefix: "lock\n"}),
		"not UTF-8":           New(app, &Config{Prefix: "\xff"}),
		"invisible character": New(app, &Config{Prefix: "lock\u200b:"}),
		"brace in a cluster":  New(many, &Config{Prefix: "a{b"}),
		"brace in a ring":     New(ring, &Config{Prefix: "a}b"}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			errs := map[string]error{"Validate": s.Validate()}
			_, errs["Acquire"] = s.Acquire(ctx, driver.AcquireRequest{})
			_, errs["Take"] = s.Take(ctx, make([]driver.TakeRequest, 1))
			_, errs["Resume"] = s.Resume(ctx, make([]driver.ResumeRequest, 1))
			_, errs["Park"] = s.Park(ctx, make([]driver.ParkRequest, 1))
			_, errs["Park for a job"] = s.Park(ctx, []driver.ParkRequest{{Job: "q/1"}})
			_, errs["Renew"] = s.Renew(ctx, nil)
			_, errs["Release"] = s.Release(ctx, make([]driver.ReleaseRequest, 1))
			_, errs["Reserve"] = s.Reserve(ctx, make([]driver.ReserveRequest, 1))
			_, errs["Due"] = s.Due(ctx, driver.DueRequest{})
			errs["Settle"] = s.Settle(ctx, nil)
			_, errs["Inspect"] = s.Inspect(ctx, driver.InspectRequest{})
			_, errs["List"] = s.List(ctx, driver.ListRequest{})
			for call, err := range errs {
				if !errors.Is(err, joblock.ErrInvalid) {
					t.Errorf("%s gave %v, want ErrInvalid", call, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
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
		s := New(app, &Config{Prefix: prefix})
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
	if err := removeFrom(ctx, k.Store, nil); err != nil {
		t.Errorf("settle: %v", err)
	}
	if recs, err := k.Inspect(ctx, driver.InspectRequest{}); err != nil || len(recs) != 0 {
		t.Errorf("inspect: %v, %v", recs, err)
	}
}
