package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/promobserver"
	lockserver "github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/metrics"
)

// keyGroups are the values of --metrics-groups.
var keyGroups = map[string]func(key string) string{"none": nil, "first-part": promobserver.FirstPart}

// journalPatience bounds the closing of the journal.
const journalPatience = 3 * time.Second

// telling has what reports on the locks: the metrics and the journal.
type telling struct {
	registry *prometheus.Registry
	observer event.Observer // of the Locker
}

// tell makes the metrics and the journal for the Locker that is opened next, so that the journal is closed after the
// Locker.
func (o *serveOptions) tell(all *serving, at address, logger *slog.Logger) (*telling, error) {
	t := &telling{registry: prometheus.NewRegistry()}
	t.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cfg := &promobserver.Config{KeyGroup: keyGroups[o.metricsGroups]}
	var written event.Observer
	if o.journal {
		secure, err := o.server.tlsConfig(at)
		if err != nil {
			return nil, err
		}
		rdb := o.server.connect(at, secure, o.server.timeout)
		all.later("Redis of the journal", func(context.Context) error { return rdb.Close() })
		j, err := journal.New(rdb, &journal.Config{Prefix: o.server.prefix, Logger: logger})
		if err != nil {
			return nil, usage("the journal: %w", err)
		}
		all.later("journal", func(ctx context.Context) error {
			// If Redis does not answer, the last events are lost, but that must not make the shutdown fail.
			ctx, cancel := context.WithTimeout(ctx, journalPatience)
			defer cancel()
			if err := j.Close(ctx); err != nil {
				logger.Warn("serve: journal is missing the latest events", "err", err)
			}
			return nil
		})
		cfg.JournalDropped, written = j.Dropped, j.Observe
	}
	counted, err := promobserver.New(t.registry, cfg)
	if err != nil {
		return nil, &exitError{exitFault, err}
	}
	t.observer = event.Observers(counted, written)
	return t, nil
}

// measure gives the Server its metrics, which it serves at /metrics. They are closed before the Locker.
func (o *serveOptions) measure(all *serving, t *telling, cfg *lockserver.Config) error {
	m, err := metrics.New(metrics.Config{
		Locks: cfg.Locks, Store: cfg.Store, Databases: cfg.Databases, CronScopes: cfg.CronScopes, KeyGroup: keyGroups[o.metricsGroups],
		Registry: t.registry, Logger: cfg.Logger,
	})
	if err != nil {
		return usage("%w", err)
	}
	all.later("metrics", m.Close)
	cfg.Meter, cfg.Metrics = m, m.Handler()
	return nil
}

// listenMetrics serves the metrics at --metrics-listen without authentication, so beyond this machine only with
// --insecure.
func (o *serveOptions) listenMetrics(all *serving, m http.Handler, logger *slog.Logger) error {
	if o.metricsListen == "" {
		return nil
	}
	host, _, _ := net.SplitHostPort(o.metricsListen) // checked
	if !ofThisMachine(host) && !o.listen.Insecure {
		return usage("--metrics-listen is %s, which is not a loopback address, and asks for no token: use a loopback address, or scrape /metrics at --listen, or set --insecure if others cannot reach it", o.metricsListen)
	}
	l, err := net.Listen("tcp", o.metricsListen)
	if err != nil {
		return &exitError{exitFault, fmt.Errorf("--metrics-listen: %w", err)}
	}
	hs := lockserver.HTTPServer(o.metricsOnly(m, ofThisMachine(host)))
	hs.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelWarn)
	served := make(chan error, 1)
	go func() {
		err := hs.Serve(l)
		if !errors.Is(err, http.ErrServerClosed) {
			logger.Error("serve: serving the metrics failed", "address", l.Addr().String(), "err", err)
		}
		served <- err
	}()
	all.later("--metrics-listen", func(ctx context.Context) error {
		err := hs.Shutdown(ctx)
		if err != nil {
			_ = hs.Close()
		}
		<-served
		return err
	})
	logger.Info("serve: serving metrics", "address", l.Addr().String(), "path", "/metrics")
	return nil
}

// metricsOnly serves /metrics and nothing else. With local, which is for a loopback address, it refuses requests whose
// Host is not a known name. Otherwise a web site could point its own name at the loopback address (DNS rebinding), and
// read the metrics in a browser on this machine.
func (o *serveOptions) metricsOnly(m http.Handler, local bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		name := strings.ToLower(r.Host)
		if bare, _, err := net.SplitHostPort(name); err == nil {
			name = bare
		}
		name = strings.Trim(name, "[]")
		switch {
		case local && name != "" && !ofThisMachine(name) && !slices.Contains(o.hosts, name) && !slices.Contains(o.hosts, "*"):
			http.Error(w, "unknown host name; see --host", http.StatusMisdirectedRequest)
		case r.URL.Path != "/metrics":
			http.Error(w, "there is only /metrics here", http.StatusNotFound)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the method must be GET or HEAD", http.StatusMethodNotAllowed)
		default:
			m.ServeHTTP(w, r)
		}
	})
}

// ofThisMachine reports whether a host is reachable only from this machine. A name other than localhost may resolve to
// anything.
func ofThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
