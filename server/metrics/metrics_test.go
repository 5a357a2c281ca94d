package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server"
)

func firstPart(key string) string {
	first, _, _ := strings.Cut(key, ":")
	return first
}

// stage is a Metrics on a store in memory, in virtual time.
type stage struct {
	*testing.T
	locks *joblock.Locker
	store *faultstore.Store
	m     *Metrics
}

func staged(t *testing.T, f func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, store: faultstore.New(memstore.New(&memstore.Config{Silent: true}))}
		var err error
		s.locks, err = joblock.New(s.store, &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "New", err)
		s.m, err = New(Config{Locks: s.locks, KeyGroup: firstPart, Registry: prometheus.NewPedanticRegistry(), Logger: slog.New(slog.DiscardHandler), Share: 1, CheckEvery: time.Second})
		testkit.WantNil(t, "metrics.New", err)
		f(t, s)
		testkit.WantNil(t, "Close", s.m.Close(context.Background()))
		testkit.WantNil(t, "Close", s.locks.Close(context.Background()))
	})
}

// lines returns the lines of a scrape, without comments.
func (s *stage) lines() []string {
	s.Helper()
	w := httptest.NewRecorder()
	s.m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		s.Fatalf("%d: %s", w.Code, w.Body)
	}
	text, _ := io.ReadAll(w.Body)
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return l == "" || l[0] == '#' })
}

// wants checks that the scrape has these lines, none that begins with one of those after "no ", and one
// that begins with each of those after "~".
func (s *stage) wants(lines ...string) {
	s.Helper()
	got := s.lines()
	for _, want := range lines {
		if begin, ok := strings.CutPrefix(want, "no "); ok {
			if i := slices.IndexFunc(got, func(l string) bool { return strings.HasPrefix(l, begin) }); i >= 0 {
				s.Errorf("the scrape has %s", got[i])
			}
			continue
		}
		begin, about := strings.CutPrefix(want, "~")
		if about && slices.ContainsFunc(got, func(l string) bool { return strings.HasPrefix(l, begin) }) {
			continue
		}
		if want = begin; !slices.Contains(got, want) {
			name, _, _ := strings.Cut(want, "{")
			name, _, _ = strings.Cut(name, " ")
			s.Errorf("the scrape lacks %s; it has\n%s", want, strings.Join(slices.DeleteFunc(slices.Clone(got), func(l string) bool { return !strings.HasPrefix(l, name) }), "\n"))
		}
	}
}

func TestMetricsOfLocks(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.wants(
			`joblock_locks{joblock_key_group="",state="held"} 0`, `joblock_waiters{joblock_key_group=""} 0`, "no joblock_oldest",
			"joblock_snapshot_timestamp_seconds 9.466848e+08",
		)
		began := time.Now()
		for i := range 3 {
			lock, err := s.locks.TryAcquire(ctx, fmt.Sprint("export:", i))
			testkit.WantNil(t, "TryAcquire", err)
			if i == 2 {
				time.Sleep(time.Minute)
				_, err = lock.Park(ctx, joblock.ForJob("q/1"))
				testkit.WantNil(t, "Park", err)
			}
		}
		_, err := s.locks.TryAcquire(ctx, "rollup")
		testkit.WantNil(t, "TryAcquire", err)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{}, 10)
		wait := func(take func() error) {
			go func() {
				_ = take()
				ended <- struct{}{}
			}()
			synctest.Wait()
			time.Sleep(time.Second)
		}
		for range 2 {
			wait(func() error { _, err := s.locks.Acquire(ctx, "export:0"); return err })
		}
		wait(func() error { _, err := s.locks.Acquire(ctx, "export:1"); return err })
		permits := limit.New(s.locks, 1)
		_, err = permits.TryAcquire(ctx, "geo:api")
		testkit.WantNil(t, "TryAcquire", err)
		for range 2 {
			wait(func() error { _, err := permits.Acquire(ctx, "geo:api"); return err })
		}
		time.Sleep(30 * time.Second)
		s.wants(
			`joblock_locks{joblock_key_group="export",state="held"} 2`, `joblock_locks{joblock_key_group="export",state="parked"} 1`,
			`joblock_locks{joblock_key_group="export",state="orphaned"} 0`, `joblock_locks{joblock_key_group="rollup",state="held"} 1`,
			`joblock_locks{joblock_key_group="geo",state="held"} 1`,
			`joblock_job_locks{joblock_key_group="export",state="held"} 0`, `joblock_job_locks{joblock_key_group="export",state="parked"} 1`,
			`joblock_waiters{joblock_key_group="export"} 3`, `joblock_longest_line{joblock_key_group="export"} 2`,
			`joblock_waiters{joblock_key_group="geo"} 2`, `joblock_longest_line{joblock_key_group="geo"} 2`, `joblock_waiters{joblock_key_group="rollup"} 0`,
			fmt.Sprintf(`joblock_oldest_acquired_timestamp_seconds{joblock_key_group="export",state="held"} %v`, float64(began.Unix())),
			fmt.Sprintf(`joblock_oldest_acquired_timestamp_seconds{joblock_key_group="export",state="parked"} %v`, float64(began.Add(time.Minute).Unix())),
			`no joblock_oldest_acquired_timestamp_seconds{joblock_key_group="rollup",state="parked"}`,
			"joblock_keeper_working 0", "joblock_keeper_standby 0", `joblock_check_findings{severity="fault",subject="keeper"} 1`,
			`joblock_collect_errors_total{part="locks"} 0`,
		)
		cancel()
		for range 5 {
			<-ended
		}
	})
}

// If the store cannot be read, the metrics are absent, and the failures are counted.
func TestMetricsWhileTheStoreIsAway(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.wants(`joblock_locks{joblock_key_group="",state="held"} 0`)
		s.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.List, faultstore.Inspect)
		time.Sleep(time.Minute)
		s.wants("no joblock_locks", "no joblock_waiters", "no joblock_snapshot", "no joblock_keeper", `joblock_collect_errors_total{part="locks"} 1`,
			`joblock_collect_errors_total{part="keeper"} 1`)
		s.store.Clear()
		time.Sleep(time.Minute)
		s.wants(`joblock_locks{joblock_key_group="",state="held"} 0`, "joblock_keeper_working 0", `joblock_collect_errors_total{part="locks"} 1`)
	})
}

// However many groups there are, the number of time series is bounded. A group that is no text does not fail the scrape.
func TestGroupsAreBounded(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.m.cluster.cfg.KeyGroup = func(key string) string { return key[:1] + "\xff" + key[1:] }
		for i := range mostGroups + 50 {
			_, err := s.locks.TryAcquire(t.Context(), fmt.Sprint("k", i))
			testkit.WantNil(t, "TryAcquire", err)
		}
		n := 0
		for _, l := range s.lines() {
			if strings.HasPrefix(l, "joblock_waiters{") {
				n++
			}
		}
		if n != mostGroups+1 {
			t.Errorf("%d groups, want %d", n, mostGroups+1)
		}
		s.wants(fmt.Sprintf(`joblock_locks{joblock_key_group=%q,state="held"} 50`, metric.Other))
	})
}

func TestMetricsOfCronJobs(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		sched, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: "n1", Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "scheduler.New", err)
		var fail atomic.Bool
		testkit.WantNil(t, "Func", sched.Func("report", "*/5 * * * *", func(ctx context.Context) error {
			time.Sleep(3 * time.Second)
			if fail.Load() {
				return errors.New("bad")
			}
			return nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		go func() { ran <- sched.Run(ctx) }()
		time.Sleep(time.Minute)
		const job = `{job="report",scope="shop"}`
		s.wants(
			`joblock_cron_nodes{scope="shop"} 1`, `joblock_cron_interval_seconds`+job+` 300`, "joblock_cron_paused"+job+" 0", "joblock_cron_waiting"+job+" 0",
			`joblock_cron_next_timestamp_seconds`+job+` 9.466851e+08`, `joblock_cron_runs_total{job="report",result="failed",scope="shop"} 0`,
			"no joblock_cron_overdue", "no joblock_cron_paused_timestamp", "no joblock_cron_last",
		)
		time.Sleep(5 * time.Minute)
		s.wants(
			`joblock_cron_runs_total{job="report",result="done",scope="shop"} 1`, "joblock_cron_last_run_duration_seconds"+job+" 3",
			"~joblock_cron_last_success_timestamp_seconds"+job+" 9.46685103", "joblock_cron_next_timestamp_seconds"+job+" 9.466854e+08",
		)
		fail.Store(true)
		time.Sleep(5 * time.Minute)
		testkit.WantNil(t, "Pause", admin.Of(sched).Pause(t.Context(), "report", "x"))
		since := time.Now().Unix()
		time.Sleep(time.Minute)
		s.wants(
			`joblock_cron_runs_total{job="report",result="failed",scope="shop"} 1`, "joblock_cron_paused"+job+" 1",
			fmt.Sprintf("joblock_cron_paused_timestamp_seconds%s %v", job, float64(since)),
			"~joblock_cron_last_success_timestamp_seconds"+job+" 9.46685103",
		)
		cancel()
		testkit.WantNil(t, "Run", <-ran)
		time.Sleep(time.Minute)
		s.wants(`joblock_cron_nodes{scope="shop"} 0`)
	})
}

// What a server does is counted, by route and not by path.
func TestMetricsOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redistest.MiniClient(t, redistest.Mini(t))
		redistest.Ran(t, redistest.MiniBackend())
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "New", err)
		m, err := New(Config{Locks: locks, Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "metrics.New", err)
		who := server.Principal{ID: "ann", Scopes: server.ScopeAdmin, AllKeys: true, AllQueues: true}
		var denied error
		srv, err := server.New(server.Config{
			Locks: locks, Redis: rdb, Meter: m, Metrics: m.Handler(), Logger: slog.New(slog.DiscardHandler),
			Authorize: server.AuthorizeFunc(func(*http.Request) (server.Principal, error) { return who, denied }),
		})
		testkit.WantNil(t, "server.New", err)
		call := func(ctx context.Context, method, path, body string, header ...string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			srv.ServeHTTP(w, r)
			return w
		}
		ctx := t.Context()
		call(ctx, "POST", "/v1/locks/a%2Fb/acquire", `{"ttl_ms":60000}`)
		waiting, leave := context.WithCancel(ctx)
		over := make(chan struct{})
		go func() {
			call(waiting, "POST", "/v1/acquire", `{"key":"a/b","wait_ms":50000}`)
			over <- struct{}{}
		}()
		go func() {
			call(waiting, "GET", "/v1/events", "", "Accept", "text/event-stream")
			over <- struct{}{}
		}()
		time.Sleep(time.Second)
		call(ctx, "GET", "/no/such/path", "")
		call(ctx, "BREW", "/v1/locks", "")
		st, err := locks.Status(ctx, "a/b")
		testkit.WantNil(t, "Status", err)
		call(ctx, "POST", "/v1/force-release", `{"key":"a/b","reason":"x"}`, "If-Match", fmt.Sprintf("\"%d\"", st[0].Fence))
		time.Sleep(time.Second) // the turn of the one that waits: asked for its rights again, and answered
		synctest.Wait()
		denied = server.ErrUnauthorized
		call(ctx, "GET", "/v1/locks", "")
		denied, who.Prefixes, who.AllKeys = nil, []string{"a"}, false
		if w := call(ctx, "GET", "/metrics", ""); w.Code != http.StatusForbidden {
			t.Errorf("a caller with prefixes gets the metrics: %d", w.Code)
		}
		who.Prefixes, who.AllKeys = nil, true
		text := call(ctx, "GET", "/metrics", "").Body.String()
		for _, want := range []string{
			`joblock_http_requests_total{code="200",method="POST",route="/v1/locks/{key}/acquire"} 1`, "joblock_http_waits 0", "joblock_http_streams 1",
			`joblock_http_requests_total{code="404",method="GET",route="other"} 1`, `joblock_http_requests_total{code="405",method="other",route="/v1/locks"} 1`,
			`joblock_http_auth_failures_total{code="AUTH_REQUIRED"} 1`, `joblock_http_auth_failures_total{code="FORBIDDEN"} 1`,
			`joblock_actions_total{action="force release",outcome="done"} 1`, `joblock_actions_total{action="cron pause",outcome="not_recorded"} 0`,
			`joblock_http_request_duration_seconds_count{route="/v1/force-release"} 1`, "go_goroutines ", "joblock_build_info{",
		} {
			if !strings.Contains(text, "\n"+want) {
				t.Errorf("the scrape lacks %s:\n%s", want, text)
			}
		}
		leave()
		<-over
		<-over
		testkit.WantNil(t, "Close", srv.Close(ctx))
		testkit.WantNil(t, "Close", m.Close(ctx))
		testkit.WantNil(t, "Close", locks.Close(ctx))
	})
}

func TestNewRefuses(t *testing.T) {
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	testkit.WantNil(t, "New", err)
	defer locks.Close(context.Background())
	for want, cfg := range map[string]Config{
		"Every is 1ms": {Locks: locks, Every: time.Millisecond}, "CheckEvery is 2h0m0s": {Locks: locks, CheckEvery: 2 * time.Hour},
		"Share is 2": {Locks: locks, Share: 2}, "metrics: ": {},
	} {
		_, err := New(cfg)
		testkit.WantErr(t, err, joblock.ErrInvalid)
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	registry := prometheus.NewRegistry()
	for i := range 2 {
		m, err := New(Config{Locks: locks, Registry: registry})
		var twice prometheus.AlreadyRegisteredError
		if (err != nil) != (i == 1) || (m == nil) != (i == 1) || i == 1 && !errors.As(err, &twice) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
