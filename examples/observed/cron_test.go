package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server/metrics"
)

// A program of one's own has cron jobs, no lock server, and /metrics of all cron jobs of its scope: docs/monitoring.md.
func TestMetricsOfCronJobs(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := joblock.New(store, &joblock.Config{Holder: "app1", Logger: slog.New(slog.DiscardHandler)})
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	ctx, stop := context.WithCancel(t.Context())
	mux := http.NewServeMux()
	rollup := func(context.Context) error { return nil }

	cron, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
	check(err)
	check(cron.Func("rollup", "@every 1s", rollup))
	m, err := metrics.New(metrics.Config{Locks: locks, Store: store, CronScopes: []string{"shop"}})
	check(err)
	mux.Handle("GET /metrics", m.Handler()) // at an address that only Prometheus reaches: there are no tokens

	web := httptest.NewServer(mux)
	ended := make(chan error, 1)
	go func() {
		ended <- cron.Run(ctx) // until ctx ends
	}()
	until(t, "the job is on record", func() bool { // a scrape before that would be answered for 30 s
		nodes, err := admin.Of(cron).Nodes(ctx)
		check(err)
		entries, err := admin.Of(cron).Entries(ctx)
		check(err)
		return len(nodes) == 1 && len(entries) == 1 && !entries[0].Next.IsZero()
	})
	until(t, "a scrape has the jobs of the scope", func() bool {
		text := get(t, web.URL+"/metrics")
		return strings.Contains(text, `joblock_cron_next_timestamp_seconds{job="rollup",scope="shop"} `) &&
			strings.Contains(text, `joblock_cron_nodes{scope="shop"} 1`)
	})
	stop()
	check(<-ended)
	web.Close()
	http.DefaultClient.CloseIdleConnections()
	ctx = context.WithoutCancel(ctx)

	check(m.Close(ctx)) // before the Locker
	check(locks.Close(ctx))
}
