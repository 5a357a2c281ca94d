package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server"
)

// meter counts what a server does.
type meter struct {
	requests, failures, actions *prometheus.CounterVec
	duration                    *prometheus.HistogramVec
	waits, streams              prometheus.Gauge
}

func newMeter() *meter {
	counter := func(m metric.Metric) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Prometheus(), Help: m.Help}, m.PrometheusLabels())
	}
	gauge := func(m metric.Metric) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: m.Prometheus(), Help: m.Help})
	}
	d := metric.HTTPDuration
	m := &meter{
		requests: counter(metric.HTTPRequests), failures: counter(metric.HTTPAuthFailures), actions: counter(metric.Actions),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Prometheus(), Help: d.Help, Buckets: d.Buckets}, d.PrometheusLabels()),
		waits:    gauge(metric.HTTPWaits), streams: gauge(metric.HTTPStreams),
	}
	// A counter that first appears as 1 shows no increase, so the counters that alerts use start at 0.
	for _, code := range refusals {
		m.failures.WithLabelValues(code)
	}
	for _, verb := range ops.Verbs {
		for _, outcome := range []string{"done", "refused", "unknown", "not_recorded"} {
			m.actions.WithLabelValues(verb.Action.Verb(), outcome)
		}
	}
	return m
}

// refusals are the codes of requests that are refused because of their sender.
var refusals = []string{"AUTH_REQUIRED", "AUTH_UNAVAILABLE", "FORBIDDEN"}

func (m *meter) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.failures, m.actions, m.duration, m.waits, m.streams}
}

// Describe implements prometheus.Collector.
func (m *meter) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *meter) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(to)
	}
}

var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, "LOCK", "UNLOCK"}

func (m *meter) request(r server.MeteredRequest) {
	route, method := cmp.Or(r.Route, "other"), r.Method
	if !slices.Contains(methods, method) {
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(r.Status)).Inc()
	m.duration.WithLabelValues(route).Observe(r.Took.Seconds())
	if slices.Contains(refusals, r.Code) {
		m.failures.WithLabelValues(r.Code).Inc()
	}
}

func (m *meter) waiting(w server.MeteredWait) {
	of := m.waits
	if w.Stream {
		of = m.streams
	}
	if w.Ended {
		of.Dec()
	} else {
		of.Inc()
	}
}

func (m *meter) action(a server.MeteredAction) {
	m.actions.WithLabelValues(a.Action, strings.ReplaceAll(a.Outcome, " ", "_")).Inc()
}
