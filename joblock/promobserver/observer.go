package promobserver

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

// Config configures New. The zero value of each field means its default.
type Config struct {
	// KeyGroup returns the value of the label joblock_key_group for a key. KeyGroup must return few different values,
	// because each value is a set of time series. If keys begin with their purpose, FirstPart is such a function.
	// KeyGroup must be safe for concurrent use. Default: the label is empty.
	KeyGroup func(key string) string

	// JournalDropped, if set, returns the value of joblock_journal_dropped_total. Set it to the method Dropped of the
	// process's journal.Journal. It is called at each scrape.
	JournalDropped func() int64
}

// FirstPart returns the first of the parts from which joblock.Key made key: "export" for "export:acct-7". For a key
// of one part, FirstPart returns key. Use FirstPart as a Config.KeyGroup.
func FirstPart(key string) string {
	first, _, _ := strings.Cut(key, ":")
	return first
}

// New registers the metrics and returns an Observer that counts events. A nil cfg means the defaults. Errors:
// joblock.ErrInvalid for a nil registerer, and a prometheus.AlreadyRegisteredError if registerer already has the
// metrics of such an Observer. Several Lockers of a process share one Observer. After an error nothing is registered.
func New(registerer prometheus.Registerer, cfg *Config) (event.Observer, error) {
	if registerer == nil {
		return nil, fmt.Errorf("promobserver: the Registerer is nil: %w", joblock.ErrInvalid)
	}
	var r recorder
	if cfg != nil {
		r.cfg = *cfg
	}
	r.events = prometheus.NewCounterVec(prometheus.CounterOpts(options(metric.Events)), metric.Events.PrometheusLabels())
	r.wait, r.hold, r.late = histogram(metric.WaitDuration), histogram(metric.HoldDuration), histogram(metric.RenewalLate)
	r.held = prometheus.NewGaugeVec(prometheus.GaugeOpts(options(metric.Held)), metric.Held.PrometheusLabels())
	all := []prometheus.Collector{r.events, r.wait, r.hold, r.late, r.held}
	if dropped := r.cfg.JournalDropped; dropped != nil {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts(options(metric.JournalDropped)), func() float64 { return float64(dropped()) }))
	}
	var errs []error
	for i, c := range all {
		if err := registerer.Register(c); err != nil {
			for _, done := range all[:i] {
				registerer.Unregister(done)
			}
			errs = append(errs, fmt.Errorf("promobserver: %w", err))
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.events.WithLabelValues(event.RenewalUnanswered.String(), "LOCK_UNAVAILABLE", "") // has no key
	r.meet("")
	return r.observe, nil
}

// meet creates, with value 0, the counters that alerts watch, when a group of keys is first seen.
func (r *recorder) meet(group string) {
	if !r.groups.First(group) {
		return
	}
	for _, rare := range metric.Rare {
		r.events.WithLabelValues(rare.Kind.String(), rare.Error, group)
	}
	r.late.WithLabelValues(group)
}

func options(m metric.Metric) prometheus.Opts {
	return prometheus.Opts{Name: m.Prometheus(), Help: m.Help}
}

func histogram(m metric.Metric) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Prometheus(), Help: m.Help, Buckets: m.Buckets}, m.PrometheusLabels())
}

type recorder struct {
	cfg              Config
	events           *prometheus.CounterVec
	wait, hold, late *prometheus.HistogramVec
	held             *prometheus.GaugeVec
	holdings         metric.Holdings
	groups           metric.Groups
}

func (r *recorder) observe(e event.Event) {
	kind, code, group := e.Kind.String(), "", ""
	if e.Err != nil {
		code = cmp.Or(joblock.CodeOf(e.Err), metric.Other) // the text of an error would name keys
	}
	if r.cfg.KeyGroup != nil && e.Key != "" {
		group = strings.ToValidUTF8(r.cfg.KeyGroup(e.Key), "\uFFFD") // anything else panics
	}
	r.meet(group)
	r.events.WithLabelValues(kind, code, group).Inc()
	switch e.Kind {
	case event.Acquired, event.GaveUp:
		r.wait.WithLabelValues(kind, code, group).Observe(e.Waited.Seconds())
	case event.Parked, event.Released, event.Lost:
		r.hold.WithLabelValues(kind, code, group).Observe(e.Held.Seconds())
	case event.RenewedLate:
		r.late.WithLabelValues(group).Observe(e.Late.Seconds())
	}
	if by := r.holdings.Observe(e); by != 0 {
		r.held.WithLabelValues(group).Add(float64(by))
	}
}
