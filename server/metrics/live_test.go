package metrics

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/worker"
)

// On a real server, with a keeper at work and a cron job, a scrape has every metric that there is.
func TestLiveScrapeHasEveryMetric(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	rdb := srv.Client(t)
	quiet := slog.New(slog.DiscardHandler)
	store := testkit.Must(redisstore.New(rdb, nil))
	locks, err := joblock.New(store, &joblock.Config{Holder: "jobs1", Logger: quiet})
	testkit.WantNil(t, "New", err)
	m, err := New(Config{Locks: locks, Store: store, Every: time.Second, CheckEvery: time.Second, Logger: quiet, Share: 1})
	testkit.WantNil(t, "metrics.New", err)
	api, err := server.New(server.Config{Locks: locks, Redis: rdb, Meter: m, Metrics: m.Handler(), Authorize: server.Anyone(), Logger: quiet})
	testkit.WantNil(t, "server.New", err)
	ctx, cancel := context.WithCancel(t.Context())
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: srv.Addr()})
	w, err := worker.New(locks, inspector, &worker.Config{Logger: quiet})
	testkit.WantNil(t, "worker.New", err)
	cron, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Node: "n1", Logger: quiet})
	testkit.WantNil(t, "scheduler.New", err)
	testkit.WantNil(t, "Func", cron.Func("report", "@every 1s", func(context.Context) error { return nil }))
	ended := make(chan error, 2)
	go func() { ended <- w.RunKeeper(ctx) }()
	go func() { ended <- cron.Run(ctx) }()
	_, err = locks.TryAcquire(ctx, "export:1")
	testkit.WantNil(t, "TryAcquire", err)
	record, err := (*core.Locker)(locks).TryAcquire(ctx, keyspace.Outboxes, core.Options{OwnKey: true, Memo: true})
	testkit.WantNil(t, "TryAcquire", err)
	testkit.WantNil(t, "WriteMemo", record.WriteMemo(ctx, workerstats.Relays{"outbox": {At: time.Now()}}.Encode()))

	// Without a freed lock, an overdue tick, a pause or nodes that disagree their metrics are absent.
	absent := []string{metric.KeeperFreed.Name, metric.CronOverdue.Name, metric.CronPausedSince.Name, metric.CronDisagree.Name, metric.CronOverlaps.Name}
	missing := func() (names []string) {
		r := httptest.NewRecorder()
		api.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil)) // Anyone is for known names
		text, _ := io.ReadAll(r.Body)
		for _, m := range slices.Concat(metric.Cluster, metric.Server) {
			series := regexp.MustCompile(`(?m)^` + m.Prometheus() + `(_count)?[{ ]`)
			if !series.Match(text) && !slices.Contains(absent, m.Name) {
				names = append(names, m.Prometheus())
			}
		}
		return names
	}
	var left []string
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(200 * time.Millisecond) {
		if left = missing(); len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("the scrape lacks %s", strings.Join(left, ", "))
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	bounded, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	testkit.WantNil(t, "Close", errors.Join(api.Close(bounded), w.Close(bounded), m.Close(bounded), locks.Close(bounded), inspector.Close()))
}
