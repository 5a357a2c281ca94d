package metrics

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/server"
)

// Config configures New. Locks is required. The zero value of any other field means its default.
type Config struct {
	// Locks is the Locker whose store is read. Close the Metrics before Locks.
	Locks *joblock.Locker

	// Store, unless nil, is the store of Locks, made by redisstore.New. With it the doctor checks the servers, too.
	Store driver.Store

	// Databases are the asynq databases whose tasks have locks. The doctor compares their queues with the queues of jobs
	// that have locks.
	Databases []server.Database

	// CronScopes are the scopes of cron jobs that have metrics: scheduler.Config.Scope. Default: all scopes that any
	// scheduler has had, although server.Config defaults to none. At most 500 cron jobs have series of their own; the
	// remaining ones of a scope share the label job="_OTHER".
	CronScopes []string

	// KeyGroup returns the label joblock_key_group for a key, as in promobserver.Config. The first 200 groups of a walk
	// have a label of their own, and all others share "_OTHER". Default: the label is empty.
	KeyGroup func(key string) string

	// Every is the age up to which a scrape uses the results of the latest look at the store, from one second to an hour.
	// Default 30 s.
	Every time.Duration

	// CheckEvery is Every for the doctor. Default 2 min.
	CheckEvery time.Duration

	// Share bounds how much of the time a walk over all locks occupies one server with its calls, from 0.001 to 1. Default
	// 0.05. See joblock.ListOptions.
	Share float64

	// Registry gets all metrics. Default: a new one, which also has the metrics of the Go runtime and the process.
	Registry *prometheus.Registry

	// Logger logs when looks start to fail. Default slog.Default().
	Logger *slog.Logger
}

// patience is how long a scrape waits for a look that is under way. Prometheus waits for 10 s by default.
const patience = 3 * time.Second

// Metrics collects metrics. Make a Metrics with New. A Metrics is a server.Meter.
type Metrics struct {
	registry *prometheus.Registry
	meter    *meter
	cluster  *cluster
}

// New returns a Metrics, and sends nothing. Errors: joblock.ErrInvalid for a field that is missing or out of bounds, and a
// prometheus.AlreadyRegisteredError if Config.Registry has such a Metrics already.
func New(cfg Config) (*Metrics, error) {
	cfg.Every, cfg.CheckEvery = cmp.Or(cfg.Every, 30*time.Second), cmp.Or(cfg.CheckEvery, 2*time.Minute)
	cfg.Share = cmp.Or(cfg.Share, 0.05)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"Every", cfg.Every}, {"CheckEvery", cfg.CheckEvery}} {
		if d.d < time.Second || d.d > time.Hour {
			return nil, fmt.Errorf("metrics: Config.%s is %s, must be from 1s to 1h: %w", d.name, d.d, joblock.ErrInvalid)
		}
	}
	if !(cfg.Share >= 0.001 && cfg.Share <= 1) {
		return nil, fmt.Errorf("metrics: Config.Share is %v, must be from 0.001 to 1: %w", cfg.Share, joblock.ErrInvalid)
	}
	desk, err := cfg.desk()
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	m := &Metrics{registry: cfg.Registry, meter: newMeter(), cluster: newCluster(cfg, desk)}
	all := []prometheus.Collector{m.meter, m.cluster}
	if m.registry == nil {
		m.registry = prometheus.NewRegistry()
		all = append(all, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	for i, c := range all {
		if err := m.registry.Register(c); err != nil {
			for _, done := range all[:i] {
				m.registry.Unregister(done)
			}
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return m, nil
}

func (cfg *Config) desk() (*ops.Desk, error) {
	d := ops.Config{Locks: cfg.Locks, Scopes: cfg.CronScopes}
	if cfg.Store != nil {
		d.Check = func(ctx context.Context) (redisstore.Report, error) { return redisstore.Check(ctx, cfg.Store) }
	}
	for _, db := range cfg.Databases {
		of := ops.Database{Name: db.Name}
		if db.Inspector != nil {
			of.Asynq = db.Inspector
		}
		d.Databases = append(d.Databases, of)
	}
	return ops.New(d)
}

var _ server.Meter = (*Metrics)(nil)

// Request implements server.Meter.
func (m *Metrics) Request(r server.MeteredRequest) { m.meter.request(r) }

// Waiting implements server.Meter.
func (m *Metrics) Waiting(w server.MeteredWait) { m.meter.waiting(w) }

// Action implements server.Meter.
func (m *Metrics) Action(a server.MeteredAction) { m.meter.action(a) }

// Registry returns the registry of the metrics. A program can register its own metrics there.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler serves the metrics of the Registry, in the formats of Prometheus, to at most four scrapes at a time.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Close ends the looks that are under way. It returns when they have ended, or with the cause of ctx if ctx ends first.
// After Close, a scrape has no metrics of the cluster.
func (m *Metrics) Close(ctx context.Context) error { return m.cluster.close(ctx) }
