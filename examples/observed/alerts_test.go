package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/monitoring"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/fallback"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/promobserver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/metrics"
	"github.com/joblock/toolkit/worker"
)

// shortened makes the rules fit for a test: ranges of 15 s, hardly any "for", and bounds of seconds where the rules have
// minutes and more. Nothing else of the rules is changed.
func shortened() string {
	text := string(monitoring.Alerts)
	text = regexp.MustCompile(`(?m)^\s+keep_firing_for: .*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`for: \d+m`).ReplaceAllString(text, "for: 1s")
	text = regexp.MustCompile(`\[\d+m\]`).ReplaceAllString(text, "[15s]")
	text = regexp.MustCompile(`offset \d+m`).ReplaceAllString(text, "offset 15s")
	return strings.NewReplacer(
		`{state="held"}) > 3600`, `{state="held"}) > 5`, // JoblockHeldTooLong
		"_timestamp_seconds) > 180", "_timestamp_seconds) > 25", // JoblockKeeperSilent: the keeper tells itself every ten seconds
		"overdue_timestamp_seconds) > 60", "overdue_timestamp_seconds) > 3", // JoblockCronLate
		"overlaps_timestamp_seconds) > 600", "overlaps_timestamp_seconds) > 3", // JoblockCronStuck
		"paused_timestamp_seconds) > 86400", "paused_timestamp_seconds) > 3", // JoblockCronPausedLong
		"disagree_timestamp_seconds) > 900", "disagree_timestamp_seconds) > 3", // JoblockCronNodesDisagree
		"> time() - 600", "> time() - 10", // JoblockSnapshotStale: a busy machine is late by seconds
	).Replace(text)
}

// A world is a real redis-server with a process, a collector and a lock server, which a real Prometheus scrapes.
type world struct {
	*testing.T
	redis  *redistest.Server
	away   *redistest.Proxy // between the process and Redis
	blind  *redistest.Proxy // between the collector and the lock server, and Redis
	unseen *redistest.Proxy // between the lock server and its record of actions

	locks    *joblock.Locker // of the process
	others   *joblock.Locker // of a process that is not scraped
	observer event.Observer
	api      string // the URL of the lock server
	group    sync.WaitGroup
	ctx      context.Context // ends with the test

	prom string // the URL of Prometheus

	journal  *journal.Journal // nil but for JoblockJournalDropping
	accounts server.Authorizer
}

func newWorld(t *testing.T, change func(*world)) *world {
	t.Helper()
	w := &world{T: t, redis: redistest.Start(t), accounts: server.Anyone()}
	w.away, w.blind, w.unseen = redistest.NewProxy(t, w.redis.Addr()), redistest.NewProxy(t, w.redis.Addr()), redistest.NewProxy(t, w.redis.Addr())
	ctx, stop := context.WithCancel(context.Background())
	w.ctx = ctx
	t.Cleanup(func() { stop(); w.group.Wait() })
	if change != nil {
		change(w)
	}
	registry := prometheus.NewRegistry()
	var err error
	w.observer, err = promobserver.New(registry, &promobserver.Config{KeyGroup: promobserver.FirstPart, JournalDropped: func() int64 {
		if w.journal == nil {
			return 0
		}
		return w.journal.Dropped()
	}})
	w.nil(err)
	w.locks, w.others = w.locker(w.away.Addr(), w.observer), w.locker(w.redis.Addr(), nil)
	process := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	rdb := w.client(w.blind.Addr())
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		w.Fatal(err)
	}
	locks, err := joblock.New(store, &joblock.Config{Logger: quiet, CallTimeout: 500 * time.Millisecond})
	w.nil(err)
	inspector := []server.Database{{Name: "jobs", Inspector: asynq.NewInspectorFromRedisClient(w.client(w.redis.Addr()))}}
	m, err := metrics.New(metrics.Config{Locks: locks, Store: store, Databases: inspector, KeyGroup: promobserver.FirstPart, Every: time.Second, CheckEvery: time.Second, Share: 1, Logger: quiet})
	w.nil(err)
	s, err := server.New(server.Config{
		Locks: locks, Authorize: w.accounts, Store: store, Databases: inspector, Redis: w.client(w.unseen.Addr()), Meter: m, Logger: quiet, CronScopes: []string{scope},
	})
	w.nil(err)
	api := httptest.NewServer(s)
	w.api = api.URL
	cluster := httptest.NewServer(m.Handler())
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_ = s.Close(bounded)
		api.CloseClientConnections()
		for _, hs := range []*httptest.Server{api, cluster, process} {
			hs.Close()
		}
		_ = m.Close(bounded)
		_ = locks.Close(bounded)
	})
	w.prometheus(process.Listener.Addr().String(), cluster.Listener.Addr().String())
	return w
}

func (w *world) nil(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) client(addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: 500 * time.Millisecond, ReadTimeout: 500 * time.Millisecond})
	w.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (w *world) locker(addr string, o event.Observer) *joblock.Locker {
	store, err := redisstore.New(w.client(addr), nil)
	w.nil(err)
	locks, err := joblock.New(store, &joblock.Config{
		Observer: o, Logger: quiet, CallTimeout: 500 * time.Millisecond, JobGrace: 100 * time.Millisecond,
	})
	w.nil(err)
	w.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_ = locks.Close(bounded)
	})
	return locks
}

// again calls f four times a second until the test ends.
func (w *world) again(f func(n int)) {
	w.group.Go(func() {
		for n := 0; w.ctx.Err() == nil; n++ {
			f(n)
			_ = takes(w.ctx, 250*time.Millisecond)
		}
	})
}

func (w *world) lock(locks *joblock.Locker, key string, opts ...joblock.AcquireOption) *joblock.Lock {
	w.Helper()
	lock, err := locks.TryAcquire(w.ctx, key, opts...)
	w.nil(err)
	return lock
}

// park hands keys over to jobs that exist, and are due in an hour.
func (w *world) park(keys ...string) {
	w.Helper()
	client := asynq.NewClientFromRedisClient(w.client(w.redis.Addr()))
	for _, key := range keys {
		_, err := client.Enqueue(asynq.NewTask("export", nil), asynq.TaskID(key), asynq.ProcessIn(time.Hour))
		w.nil(err)
		_, err = w.lock(w.others, key).Park(w.ctx, joblock.ForJob("default/"+key), joblock.Reserve(time.Hour))
		w.nil(err)
	}
}

// keeper runs a keeper on the locks at one address, with the jobs at another.
func (w *world) keeper(locksAt, jobsAt string, cfg worker.Config) {
	w.Helper()
	cfg.Keeper.Interval, cfg.Logger = time.Second, quiet
	wk, err := worker.New(w.locker(locksAt, nil), asynq.NewInspectorFromRedisClient(w.client(jobsAt)), &cfg)
	w.nil(err)
	w.group.Go(func() { _ = wk.RunKeeper(w.ctx) })
}

// node runs a cron node until the returned function is called.
func (w *world) node(f func(context.Context) error) (stop func()) {
	w.Helper()
	return w.nodeWith("@every 1s", f)
}

func (w *world) nodeWith(spec string, f func(context.Context) error) (stop func()) {
	w.Helper()
	s, err := scheduler.New(w.others, &scheduler.Config{Scope: scope, Node: "node", Logger: quiet, Sync: time.Second})
	w.nil(err)
	w.nil(s.Func("rollup", spec, f))
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan struct{})
	w.group.Go(func() { defer close(ended); _ = s.Run(ctx) })
	return func() { cancel(); <-ended }
}

func (w *world) post(path, body string, headers ...string) int {
	req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.api+path, strings.NewReader(body))
	w.nil(err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// prometheus starts Debian's Prometheus with the shortened rules.
func (w *world) prometheus(process, cluster string) {
	w.Helper()
	dir := w.TempDir()
	w.nil(os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(shortened()), 0o600))
	w.nil(os.WriteFile(filepath.Join(dir, "prometheus.yml"), fmt.Appendf(nil, `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
- job_name: process
  static_configs: [{targets: [%q]}]
- job_name: cluster
  static_configs: [{targets: [%q]}]
`, process, cluster), 0o600))
	for try := 1; !w.started(dir); try++ { // another process may take the port first
		if try == 5 {
			w.Fatal("Prometheus does not start")
		}
	}
}

// started starts Prometheus on a port that is free just now, and waits until it has scraped both. The result is false if
// Prometheus has ended before.
func (w *world) started(dir string) bool {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.nil(err)
	addr := l.Addr().String()
	w.nil(l.Close())
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr, "--log.level=error")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	w.nil(cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	w.prom = "http://" + addr
	over := false
	until(w.T, "Prometheus has scraped both", func() bool {
		select {
		case <-ended:
			over = true
			w.Logf("Prometheus has ended: %s", &out)
			return true
		default:
		}
		var up struct {
			Data struct{ Result []any }
		}
		return w.ask("/api/v1/query?query=up==1", &up) && len(up.Data.Result) == 2
	})
	return !over
}

func (w *world) ask(path string, into any) bool {
	impatient := http.Client{Timeout: 5 * time.Second} // before Prometheus has the port, another process may have it
	resp, err := impatient.Get(w.prom + path)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into) == nil
}

// firing returns the names of the alerts that fire.
func (w *world) firing() (names []string) {
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	if w.ask("/api/v1/alerts", &answer) {
		for _, a := range answer.Data.Alerts {
			if a.State == "firing" {
				names = append(names, a.Labels["alertname"])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// causes says how each alert is made to fire for real.
var causes = []struct {
	alert  string
	change func(*world) // before anything is open
	calm   func(*world) // what is there before the cause, when the alert must not fire
	make   func(*world)
}{
	{"JoblockLockLost", nil, func(w *world) { w.lock(w.locks, "export:1", joblock.TTL(2*time.Second)) }, func(w *world) { w.away.BlackHole() }},
	{"JoblockRenewalsUnanswered", nil, func(w *world) { w.lock(w.locks, "export:1", joblock.TTL(9*time.Second)) }, func(w *world) { w.away.BlackHole() }},
	{"JoblockRenewalsLate", nil, nil, func(w *world) {
		w.again(func(n int) { // each answered some 16 s after it was due, with the default lease
			if n%40 == 0 {
				w.away.Heal()
				_, _ = w.locks.TryAcquire(w.ctx, "export:"+strconv.Itoa(n))
				w.away.Always(redistest.Any, redistest.Fail("LOADING the server is busy"))
				_ = takes(w.ctx, 26*time.Second)
				w.away.Heal()
				_ = takes(w.ctx, 2*time.Second)
			}
		})
	}},
	{"JoblockStoreUnavailable", nil, nil, func(w *world) {
		var locks []*joblock.Lock
		for n := range 40 {
			locks = append(locks, w.lock(w.locks, "export:"+strconv.Itoa(n)))
		}
		w.away.Refuse()
		w.again(func(n int) {
			if n < len(locks) {
				_ = locks[n].Release(w.ctx)
			}
		})
	}},
	{"JoblockWaitTimeouts", nil, func(w *world) { w.lock(w.others, "export:1") }, func(w *world) {
		w.again(func(int) { _, _ = w.locks.Acquire(w.ctx, "export:1", joblock.MaxWait(100*time.Millisecond)) })
	}},
	{"JoblockLineTooLong", nil, func(w *world) { w.lock(w.others, "export:1") }, func(w *world) {
		for range 101 {
			w.group.Go(func() { _, _ = w.locks.Acquire(w.ctx, "export:1") })
		}
	}},
	{"JoblockHeldTooLong", nil, nil, func(w *world) { w.lock(w.locks, "export:1") }},
	{"JoblockOrphaned", nil, func(w *world) { w.park("export:1") }, func(w *world) {
		token, err := w.lock(w.others, "export:2", joblock.TTL(time.Second)).Park(w.ctx, joblock.ForJob("default/export:1"), joblock.Reserve(time.Hour))
		w.nil(err)
		lock, err := w.others.Resume(w.ctx, token, joblock.ForJob("default/export:1"), joblock.Reserve(time.Hour))
		w.nil(err)
		(*core.Lock)(lock).StopRenewing() // as if its process had died
	}},
	{"JoblockKeeperAbsent", nil, nil, func(w *world) { w.park("export:1") }},
	{"JoblockKeeperBlind", nil, func(w *world) {
		w.park("export:1", "export:2")
		w.keeper(w.redis.Addr(), w.unseen.Addr(), worker.Config{})
	}, func(w *world) { w.unseen.Refuse() }},
	{"JoblockKeeperSilent", nil, func(w *world) {
		w.park("export:1")
		w.keeper(w.away.Addr(), w.redis.Addr(), worker.Config{})
	}, func(w *world) { // the keeper renews its place, and cannot read the index
		index := func(c redistest.Command) bool { return len(c.Args) > 3 && c.Args[3] == keyspace.DefaultPrefix }
		w.away.Always(index, redistest.Fail("ERR no"))
	}},
	{"JoblockIndexLag", nil, func(w *world) { w.park("export:1") }, func(w *world) {
		keys := make([]string, 400)
		for i := range keys {
			keys[i] = "many:" + strconv.Itoa(i)
		}
		w.park(keys...)
		w.keeper(w.redis.Addr(), w.redis.Addr(), worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 0.001}})
	}},
	{"JoblockForced", nil, func(w *world) { w.lock(w.others, "export:1") }, func(w *world) { w.nil(w.locks.ForceRelease(w.ctx, "export:1", joblock.Reason("it hangs"))) }},
	{"JoblockCleanupFailed", nil, nil, func(w *world) {
		lock := w.lock(w.locks, "export:1", joblock.TTL(time.Second))
		w.away.Refuse()
		_ = lock.Release(w.ctx)
	}},
	{"JoblockFellBack", nil, nil, func(w *world) {
		w.away.Refuse()
		f, err := fallback.New(w.locks, &fallback.Config{Away: fallback.Proceed})
		w.nil(err)
		w.nil(f.Do(w.ctx, "export:1", func(context.Context) error { return nil }))
		w.nil(f.Close(w.ctx))
	}},
	{"JoblockCronMissed", nil, nil, func(w *world) {
		never := func(context.Context) error { return nil }
		stop := w.node(never)
		w.ran("done")
		stop()
		w.nil(takes(w.ctx, 5*time.Second))
		w.node(never)
	}},
	{"JoblockCronFailed", nil, nil, func(w *world) {
		failed := false
		w.node(func(context.Context) error { // the first runs are done, so that there is a count of 0
			if !failed {
				failed = w.seen("done")
				return nil
			}
			return errors.New(`relation "sales" does not exist`)
		})
	}},
	{"JoblockCronLate", nil, nil, func(w *world) {
		stop := w.node(func(context.Context) error { return nil })
		w.ran("done")
		stop()
	}},
	{"JoblockCronStale", nil, nil, func(w *world) {
		stop := w.node(func(context.Context) error { return nil })
		w.ran("done")
		stop()
		w.node(func(context.Context) error { return errors.New("no") })
	}},
	{"JoblockCronStuck", nil, nil, func(w *world) {
		first := true
		w.node(func(ctx context.Context) error { // the first run is done, the next one does not end
			if first {
				first = false
				return nil
			}
			<-ctx.Done()
			return nil
		})
	}},
	{"JoblockCronPausedLong", nil, nil, func(w *world) {
		w.node(func(context.Context) error { return nil })
		w.ran("done")
		a, err := admin.New(w.others, scope, "ann")
		w.nil(err)
		w.nil(a.Pause(w.ctx, "rollup", "the texts are not translated yet"))
	}},
	{"JoblockCronNodesDisagree", nil, nil, func(w *world) {
		well := func(context.Context) error { return nil }
		w.node(well)
		w.ran("done")
		w.nodeWith("@every 2s", well) // and the first node stays
	}},
	{"JoblockCheckFault", nil, nil, func(w *world) { // the doctor finds that Redis may throw locks away
		w.nil(w.client(w.redis.Addr()).ConfigSet(w.ctx, "maxmemory-policy", "allkeys-lru").Err())
		w.nil(w.client(w.redis.Addr()).ConfigSet(w.ctx, "maxmemory", "100mb").Err())
	}},
	{"JoblockCollectFailing", nil, nil, func(w *world) { w.blind.Refuse() }},
	{"JoblockSnapshotStale", nil, nil, func(w *world) { w.blind.Refuse() }},
	{"JoblockJournalDropping", func(w *world) {
		j, err := journal.New(w.client(w.unseen.Addr()), &journal.Config{All: true, Buffer: 16, Timeout: 100 * time.Millisecond, Logger: quiet})
		w.nil(err)
		w.Cleanup(func() {
			bounded, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = j.Close(bounded)
		})
		w.journal = j
	}, nil, func(w *world) {
		w.unseen.Refuse()
		w.again(func(n int) {
			w.journal.Observe(event.Event{Kind: event.Forced, Key: "export:1", Reason: strconv.Itoa(n)})
		})
	}},
	{"JoblockActionNotRecorded", nil, nil, func(w *world) {
		lock := w.lock(w.others, "export:1")
		w.unseen.Refuse()
		w.again(func(int) {
			w.post("/v1/force-release", `{"key": "export:1", "reason": "it hangs"}`, "If-Match", strconv.Quote(strconv.FormatInt(lock.Fence(), 10)))
		})
	}},
	{"JoblockApiAuthFailures", func(w *world) {
		file := filepath.Join(w.TempDir(), "accounts.json")
		_, digest, err := server.NewAccountToken("reader")
		w.nil(err)
		w.nil(os.WriteFile(file, []byte(`{"accounts": [{"id": "reader", "sha256": "`+digest+`", "scopes": ["read"]}]}`), 0o600))
		accounts, err := server.OpenAccounts(file, slog.New(slog.DiscardHandler))
		w.nil(err)
		w.accounts = accounts
	}, nil, func(w *world) {
		w.again(func(int) { w.post("/v1/locks/export:1/acquire", `{}`) })
	}},
	{"JoblockApiErrors", nil, nil, func(w *world) {
		w.blind.Refuse()
		w.again(func(int) { w.post("/v1/locks/export:1/acquire", `{}`) })
	}},
}

// seen reports whether Prometheus knows of a run of rollup with a result.
func (w *world) seen(result string) bool {
	var answer struct {
		Data struct{ Result []any }
	}
	return w.ask(`/api/v1/query?query=max_over_time(joblock_cron_runs_total{result="`+result+`"}[1m])>0`, &answer) && len(answer.Data.Result) > 0
}

// ran waits until Prometheus knows of such a run.
func (w *world) ran(result string) {
	w.Helper()
	until(w.T, "a run is "+result, func() bool { return w.seen(result) })
}

// Every alert fires in a real Prometheus when its cause is made for real, and not before. What fires along is logged. It
// takes minutes: make alerts.
func TestEveryAlertFires(t *testing.T) {
	if os.Getenv("JOBLOCK_ALERTS") == "" {
		t.Skip("JOBLOCK_ALERTS is not set: make alerts")
	}
	rules := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(monitoring.Alerts), -1)
	if len(rules) != len(causes) {
		t.Errorf("%d alerts, and causes of %d", len(rules), len(causes))
	}
	for _, c := range causes {
		t.Run(c.alert, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.change)
			if c.calm != nil {
				c.calm(w)
			}
			w.nil(takes(w.ctx, 4*time.Second)) // some scrapes and evaluations
			if before := w.firing(); slices.Contains(before, c.alert) {
				t.Fatalf("it fires before its cause, with %q", before)
			}
			began := time.Now()
			c.make(w)
			until(t, c.alert+" fires", func() bool { return slices.Contains(w.firing(), c.alert) })
			t.Logf("FIRED %s after %s; firing then: %s", c.alert, time.Since(began).Round(time.Second), strings.Join(w.firing(), ", "))
		})
	}
}
