package promobserver_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/otelobserver"
	"github.com/joblock/toolkit/joblock/promobserver"
)

// life are events of every kind and with every kind of error.
func life() []event.Event {
	var all []event.Event
	for kind := event.Acquired; kind <= event.RateLimited; kind++ {
		for i, err := range []error{nil, joblock.ErrLost, fmt.Errorf("secret: %w", joblock.ErrTimeout), context.Canceled} {
			all = append(all, event.Event{
				Kind: kind, Key: joblock.Key("export", fmt.Sprint("secret", i)), Owner: "secret", Holder: "secret", Job: "secret", Reason: "secret",
				Err: err, Waited: 1500 * time.Millisecond, Held: 250 * time.Millisecond, Late: 3 * time.Second, Remaining: time.Hour, Locks: 2,
			})
		}
	}
	return append(all,
		event.Event{Kind: event.RenewalUnanswered, Locks: 3, Err: joblock.ErrUnavailable},
		event.Event{Kind: event.Acquired, Key: "rollup", Owner: "x"},
		event.Event{Kind: event.Acquired, Key: "rollup:2", Owner: "x", Waited: time.Hour})
}

// lines returns a sorted line for each time series, without empty labels and without what the exporter of OpenTelemetry
// says of itself.
func lines(t *testing.T, g prometheus.Gatherer) []string {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		if f.GetName() == "target_info" {
			continue
		}
		all = append(all, fmt.Sprintf("%s %s # %s", f.GetName(), f.GetType(), f.GetHelp()))
		for _, m := range f.GetMetric() {
			all = append(all, line(f, m))
		}
	}
	slices.Sort(all)
	return all
}

func line(f *dto.MetricFamily, m *dto.Metric) string {
	var labels []string
	for _, l := range m.GetLabel() {
		if l.GetValue() != "" {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
	}
	slices.Sort(labels)
	text := fmt.Sprintf("%s {%s}", f.GetName(), strings.Join(labels, ","))
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		return fmt.Sprint(text, " ", m.GetCounter().GetValue())
	case dto.MetricType_GAUGE:
		return fmt.Sprint(text, " ", m.GetGauge().GetValue())
	}
	h := m.GetHistogram()
	text += fmt.Sprintf(" %d adding up to %g:", h.GetSampleCount(), h.GetSampleSum())
	for _, b := range h.GetBucket() {
		text += fmt.Sprintf(" %d≤%g", b.GetCumulativeCount(), b.GetUpperBound())
	}
	return text
}

// The same events come out of both pipes under the same names, with the same labels, types, buckets and values.
func TestBothPipesReportTheSame(t *testing.T) {
	ours, theirs := prometheus.NewPedanticRegistry(), prometheus.NewRegistry()
	direct, err := promobserver.New(ours, &promobserver.Config{KeyGroup: promobserver.FirstPart, JournalDropped: func() int64 { return 7 }})
	if err != nil {
		t.Fatal(err)
	}
	exporter, err := otelprom.New(otelprom.WithRegisterer(theirs), otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	translated, err := otelobserver.New(sdk.NewMeterProvider(sdk.WithReader(exporter)),
		&otelobserver.Config{KeyGroup: otelobserver.FirstPart, JournalDropped: func() int64 { return 7 }})
	if err != nil {
		t.Fatal(err)
	}
	both := event.Observers(direct, translated)
	for _, e := range life() {
		both(e)
	}
	got, want := lines(t, ours), lines(t, theirs)
	if len(got) < 60 {
		t.Fatalf("only %d time series", len(got))
	}
	// OpenTelemetry has no histogram before its first value. Prometheus sees no increase in one that begins with a value.
	empty := slices.DeleteFunc(slices.Clone(got), func(l string) bool { return !strings.Contains(l, "{") || !strings.Contains(l, " 0 adding up to 0:") })
	for i, of := range []string{"{joblock_key_group=rollup}", "{}"} {
		if len(empty) != 2 || !strings.HasPrefix(empty[i], "joblock_renewal_late_seconds "+of) {
			t.Fatalf("histograms without a value: %q", empty)
		}
	}
	got = slices.DeleteFunc(got, func(l string) bool { return slices.Contains(empty, l) })
	for _, l := range got {
		if !slices.Contains(want, l) {
			t.Errorf("only of promobserver: %s", l)
		}
		if strings.Contains(l, "secret") {
			t.Errorf("in the metrics: %s", l)
		}
	}
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("only of otelobserver: %s", l)
		}
	}
	// And each metric has the name that the vocabulary says.
	for _, m := range metric.Process {
		if !slices.ContainsFunc(got, func(l string) bool {
			return strings.HasPrefix(l, fmt.Sprintf("%s %s # ", m.Prometheus(), strings.ToUpper(string(m.Type))))
		}) {
			t.Errorf("there is no %s %s", m.Type, m.Prometheus())
		}
	}
}

func TestMetricsOfALocker(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	observe, err := promobserver.New(registry, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{Observer: observe})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	lock, err := locks.TryAcquire(ctx, "secret-key", joblock.Owner("secret-owner"), joblock.Holder("secret-holder"))
	if err != nil {
		t.Fatal(err)
	}
	_, refused := locks.TryAcquire(ctx, "secret-key")
	if got := lines(t, registry); !slices.Contains(got, "joblock_held {} 1") {
		t.Errorf("while it is held: %q", got)
	}
	if err := errors.Join(lock.Release(ctx), locks.Close(ctx)); err != nil || refused == nil {
		t.Fatal(err, refused)
	}
	got := lines(t, registry)
	for _, want := range []string{
		"joblock_events_total {joblock_event=acquired} 1", "joblock_events_total {joblock_event=contended} 1",
		"joblock_events_total {joblock_event=released} 1", "joblock_held {} 0",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	if strings.Contains(strings.Join(got, ""), "secret") {
		t.Errorf("a secret in %q", got)
	}
}

// A group that is no text does not end the program.
func TestGroupsThatAreNoText(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	observe, err := promobserver.New(registry, &promobserver.Config{KeyGroup: func(string) string { return "\xff" }})
	if err != nil {
		t.Fatal(err)
	}
	observe(event.Event{Kind: event.Acquired, Key: "k"})
	if got := lines(t, registry); !slices.Contains(got, "joblock_held {joblock_key_group=\uFFFD} 1") {
		t.Errorf("%q", got)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := promobserver.New(nil, nil); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("a nil registerer: %v, want ErrInvalid", err)
	}
	registry := prometheus.NewRegistry()
	for i := range 2 {
		observe, err := promobserver.New(registry, &promobserver.Config{})
		var twice prometheus.AlreadyRegisteredError
		if (err != nil) != (i == 1) || (observe == nil) != (i == 1) || i == 1 && !errors.As(err, &twice) {
			t.Errorf("%d: %v", i, err)
		}
	}
	// The first metric that collides undoes the others.
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "joblock_held"}))
	if _, err := promobserver.New(other, nil); err == nil {
		t.Error("a name that is in use is no error")
	}
	if got := lines(t, other); !reflect.DeepEqual(got, []string{"joblock_held GAUGE # ", "joblock_held {} 0"}) {
		t.Errorf("left: %q", got)
	}
}
