package internal_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/joblock/event"
)

func TestNamesOfMetrics(t *testing.T) {
	for m, want := range map[*metric.Metric]string{
		&metric.Events: "joblock_events_total", &metric.WaitDuration: "joblock_wait_duration_seconds", &metric.Held: "joblock_held",
		&metric.OldestAcquired: "joblock_oldest_acquired_timestamp_seconds", &metric.BuildInfo: "joblock_build_info",
	} {
		if got := m.Prometheus(); got != want {
			t.Errorf("%s is %s, want %s", m.Name, got, want)
		}
	}
	seen := map[string]bool{}
	name := regexp.MustCompile(`^joblock(\.[a-z]+)+$`)
	for _, m := range slices.Concat(metric.Process, metric.Cluster, metric.Server) {
		if !name.MatchString(m.Name) || seen[m.Prometheus()] || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%+v", m)
		}
		seen[m.Prometheus()] = true
		if (m.Type == metric.Histogram) != (len(m.Buckets) > 0) || !slices.IsSorted(m.Buckets) {
			t.Errorf("%s has the buckets %v", m.Name, m.Buckets)
		}
		for _, suffix := range []string{"_seconds_seconds", "_total_total"} {
			if strings.Contains(m.Prometheus(), suffix) {
				t.Errorf("%s", m.Prometheus())
			}
		}
	}
	if got := metric.Events.PrometheusLabels(); !slices.Equal(got, []string{"joblock_event", "error_type", "joblock_key_group"}) {
		t.Errorf("the labels are %q", got)
	}
}

func TestHoldingsAreCounted(t *testing.T) {
	var h metric.Holdings
	n := 0
	for i, step := range []struct {
		kind  event.Kind
		owner string
		want  int
	}{
		{event.Acquired, "a", 1},
		{event.Contended, "b", 1},
		{event.Parked, "a", 0},
		{event.Reclaimed, "a", 1},
		{event.RenewedLate, "a", 1},
		{event.Lost, "a", 0},
		{event.Parked, "a", 0}, // answered after the loss
		{event.Resumed, "a", 1},
		{event.Acquired, "b", 2}, // forced meanwhile; a does not know yet
		{event.Forced, "", 2},
		{event.Lost, "a", 1},
		{event.Released, "b", 0},
		{event.Released, "b", 0},
	} {
		if n += h.Observe(event.Event{Kind: step.kind, Key: "k", Owner: step.owner}); n != step.want {
			t.Errorf("step %d: %s of %s: %d are held, want %d", i, step.kind, step.owner, n, step.want)
		}
	}
	for _, owner := range []string{"a", "b", ""} {
		if h.Observe(event.Event{Kind: event.Lost, Key: "k", Owner: owner}) != 0 {
			t.Errorf("the holding of %q is left", owner)
		}
	}
}
