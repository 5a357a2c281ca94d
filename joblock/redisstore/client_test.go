package redisstore

import (
	"context"
	"net"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/driver"
)

// A client made from cloned options must end up with the same options: that is
// what the -1 of the application surviving means.
func TestClonedOptionsInitialiseToTheSame(t *testing.T) {
	limiter := &countingLimiter{}
	for name, opt := range map[string]*redis.Options{
		"defaults": {Addr: "127.0.0.1:1"},
		"all off": {
			Addr: "127.0.0.1:1", MaxRetries: -1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
			ReadTimeout: -1, WriteTimeout: -1, ConnMaxIdleTime: -1, PoolTimeout: -1,
		},
		"no deadlines": {Addr: "127.0.0.1:1", ReadTimeout: -2, WriteTimeout: -2},
		"all set": {
			Addr: "127.0.0.1:1", ClientName: "app", DB: 3, Username: "u", Password: "p", Protocol: 2,
			MaxRetries: 7, MinRetryBackoff: 1, MaxRetryBackoff: 2, DialTimeout: 3, DialerRetries: 4,
			ReadTimeout: 5, WriteTimeout: 6, PoolFIFO: true, PoolSize: 8, PoolTimeout: 9,
			MaxActiveConns: 12, MaxIdleConns: 11, ConnMaxIdleTime: 13, ConnMaxLifetime: 14, Limiter: limiter,
		},
	} {
		t.Run(name, func(t *testing.T) {
			app := redis.NewClient(opt)
			defer app.Close()
			clone := redis.NewClient(opsOptions(app.Options()))
			defer clone.Close()
			diffOptions(t, *app.Options(), *clone.Options(), "ContextTimeoutEnabled", "PushNotificationProcessor",
				"DisableIdentity", "MaintNotificationsConfig", // go-redis creates its queues again
				"PipelinePoolSize")
			if !clone.Options().ContextTimeoutEnabled {
				t.Error("the clone does not obey deadlines")
			}
			if clone.Options().PushNotificationProcessor == app.Options().PushNotificationProcessor && app.Options().Protocol == 3 {
				t.Error("the clone shares the push processor")
			}
		})
	}
}

func TestClonedClusterOptionsInitialiseToTheSame(t *testing.T) {
	for name, opt := range map[string]*redis.ClusterOptions{
		"defaults": {Addrs: []string{"127.0.0.1:1"}},
		"all off": {
			Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, MaxRetries: -1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
			ReadTimeout: -1, WriteTimeout: -1, ConnMaxIdleTime: -1,
		},
		"no deadlines": {Addrs: []string{"127.0.0.1:1"}, ReadTimeout: -2, WriteTimeout: -2},
		"all set": {
			Addrs: []string{"127.0.0.1:1"}, Username: "u", Password: "p", Protocol: 2, MaxRedirects: 5,
			MaxRetries: 7, MinRetryBackoff: 1, MaxRetryBackoff: 2, DialTimeout: 3, DialerRetries: 4,
			ReadTimeout: 5, WriteTimeout: 6, PoolSize: 8, MaxIdleConns: 11,
		},
	} {
		t.Run(name, func(t *testing.T) {
			app := redis.NewClusterClient(opt)
			defer app.Close()
			clone := redis.NewClusterClient(opsClusterOptions(app.Options()))
			defer clone.Close()
			diffOptions(t, *app.Options(), *clone.Options(), "ContextTimeoutEnabled", "ClusterStateReloadInterval",
				"DisableIdentity", "DisableRoutingPolicies", "PipelinePoolSize")
			if got := clone.Options().ClusterStateReloadInterval; got != reloadInterval {
				t.Errorf("the clone looks at the cluster every %v, want %v", got, reloadInterval)
			}
		})
	}
	quick := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1"}, ClusterStateReloadInterval: time.Millisecond,
		RouteByLatency: true, RouteRandomly: true, ReadOnly: true, MinIdleConns: 3,
	})
	defer quick.Close()
	o := opsClusterOptions(quick.Options())
	if o.ClusterStateReloadInterval != time.Millisecond {
		t.Errorf("a shorter reload interval became %v", o.ClusterStateReloadInterval)
	}
	if o.ReadOnly || o.RouteByLatency || o.RouteRandomly || o.MinIdleConns != 0 {
		t.Error("the clone may read from replicas, or keeps idle connections")
	}
}

func TestRenewalClientFailsFast(t *testing.T) {
	app := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", MaxRetries: 9, PoolSize: 1, MaxActiveConns: 1,
		ReadTimeout: -1, WriteTimeout: time.Hour, Limiter: &countingLimiter{}, PipelineReadBufferSize: 1 << 16,
	})
	defer app.Close()
	c := redis.NewClient(renewOptions(app.Options()))
	defer c.Close()
	o := c.Options()
	if o.MaxRetries != 0 || o.PoolSize != renewPoolSize || o.MaxActiveConns != 0 || o.Limiter != nil || o.PipelineReadBufferSize != 0 {
		t.Errorf("renewal client has options %+v", o)
	}
	if got := renewOptions(&redis.Options{MinIdleConns: 5}).MinIdleConns; got != 0 {
		t.Errorf("renewal client keeps %d idle connections", got)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: -2})
	defer cluster.Close()
	cc := renewClusterOptions(cluster.Options())
	for name, d := range map[string]time.Duration{
		"dial": o.DialTimeout, "read": o.ReadTimeout, "write": o.WriteTimeout, "pool": o.PoolTimeout,
		"cluster dial": cc.DialTimeout, "cluster read": cc.ReadTimeout, "cluster write": cc.WriteTimeout,
	} {
		if d != renewTimeout {
			t.Errorf("%s timeout is %v, want %v", name, d, renewTimeout)
		}
	}
	if cc.MaxRedirects != 3 {
		t.Errorf("cluster renewals follow %d redirects, want 3", cc.MaxRedirects)
	}
}

// Both clients of a Store have one pool, for calls and for pipelines, whatever the application has set for its own. This
// is the number of connections that docs/capacity.md counts with.
func TestPipelinesHaveNoPoolOfTheirOwn(t *testing.T) {
	for name, clone := range map[string]func(*redis.Options) redis.UniversalClient{
		"ops":   func(o *redis.Options) redis.UniversalClient { return redis.NewClient(opsOptions(o)) },
		"renew": func(o *redis.Options) redis.UniversalClient { return redis.NewClient(renewOptions(o)) },
		"ops of a cluster": func(o *redis.Options) redis.UniversalClient {
			app := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{o.Addr}, PipelinePoolSize: o.PipelinePoolSize, PipelineReadBufferSize: o.PipelineReadBufferSize})
			defer app.Close()
			return redis.NewClusterClient(opsClusterOptions(app.Options()))
		},
		"renew of a cluster": func(o *redis.Options) redis.UniversalClient {
			app := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{o.Addr}, PipelinePoolSize: o.PipelinePoolSize, PipelineReadBufferSize: o.PipelineReadBufferSize})
			defer app.Close()
			return redis.NewClusterClient(renewClusterOptions(app.Options()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{0, 5} {
				server := redistest.MiniServer(t)
				app := redis.NewClient(&redis.Options{Addr: server.Addr(), PipelinePoolSize: size, PipelineReadBufferSize: size << 10})
				defer app.Close()
				c := clone(app.Options())
				defer c.Close()
				testkit.WantNil(t, "SET", c.Set(t.Context(), "k", 1, 0).Err())
				before := server.TotalConnectionCount()
				_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
					p.Get(t.Context(), "k")
					p.Get(t.Context(), "k")
					return nil
				})
				testkit.WantNil(t, "two GET in a pipeline", err)
				if n := server.TotalConnectionCount() - before; n != 0 {
					t.Errorf("with PipelinePoolSize %d of the application a pipeline makes %d connections, want that of the SET", size, n)
				}
			}
		})
	}
}

// diffOptions compares all fields but functions, which Go cannot compare, and
// those that are meant to differ.
func diffOptions[T any](t *testing.T, want, got T, except ...string) {
	t.Helper()
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		f := w.Type().Field(i)
		if slices.Contains(except, f.Name) || f.Type.Kind() == reflect.Func || !f.IsExported() {
			continue
		}
		if !reflect.DeepEqual(w.Field(i).Interface(), g.Field(i).Interface()) {
			t.Errorf("%s was %v and is %v", f.Name, w.Field(i), g.Field(i))
		}
	}
}

type countingLimiter struct{}

func (*countingLimiter) Allow() error       { return nil }
func (*countingLimiter) ReportResult(error) {}

// The application's pool has one connection, and it is taken for good.
func TestExhaustedPoolOfTheApplicationCostsNothing(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	app := redis.NewClient(&redis.Options{Addr: db.Addr(), DB: db.Number(), PoolSize: 1, MaxActiveConns: 1})
	t.Cleanup(func() { app.Close() })
	ctx := context.Background()
	conn := app.Conn()
	t.Cleanup(func() { conn.Close() })
	if err := conn.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	k := newKit(t, app)
	term := k.acquire("a")
	// Now the pool for acquires is exhausted as well.
	taken := k.ops.(*redis.Client).Conn()
	t.Cleanup(func() { taken.Close() })
	if err := taken.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(term)})
	wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
}

func TestCallsEndWithTheirDeadline(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number(), ReadTimeout: -1}) // a call without a deadline would not end
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	term := k.acquire("a")
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if r, err := k.Acquire(ctx, driver.AcquireRequest{Key: "a", Owner: "o", Nonce: "n", TTL: long, Retain: long}); err == nil {
		t.Errorf("acquire from a black hole: %+v", r)
	}
	if rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(term)}); err == nil {
		t.Errorf("renew at a black hole: %+v", rs)
	}
}

func TestCloseClosesOnlyItsOwn(t *testing.T) {
	m := redistest.MiniServer(t)
	redistest.Ran(t, redistest.MiniBackend())
	ctx := context.Background()
	app := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { app.Close() })
	s := must(newStore(app, nil))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := app.Ping(ctx).Err(); err != nil {
		t.Errorf("the application's client after Close: %v", err)
	}
	if _, err := s.Acquire(ctx, driver.AcquireRequest{Key: "a", Owner: "o", Nonce: "n", TTL: long}); err == nil {
		t.Error("a closed store acquires")
	}

	// A client of another type is used as it is.
	wrapped := &wrapper{UniversalClient: app}
	s = must(newStore(wrapped, nil))
	r, err := s.Acquire(ctx, driver.AcquireRequest{Key: "a", Owner: "o", Nonce: "n", TTL: long, Retain: long})
	wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
	if wrapped.calls == 0 {
		t.Error("the wrapper was not used")
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := app.Ping(ctx).Err(); err != nil {
		t.Errorf("the wrapped client after Close: %v", err)
	}
}

type wrapper struct {
	redis.UniversalClient
	calls int
}

func (w *wrapper) Process(ctx context.Context, cmd redis.Cmder) error {
	w.calls++
	return w.UniversalClient.Process(ctx, cmd)
}

func TestNewDialsNothing(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		t.Error("a connection was opened")
		return nil, net.ErrClosed
	}
	app := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: dial})
	s, err := New(app, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	app.Close()
}
