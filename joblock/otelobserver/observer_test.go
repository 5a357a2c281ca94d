package otelobserver_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/otelobserver"
)

// newMetrics returns an Observer and what reads what it has recorded: a sorted line
// for each time series.
func newMetrics(t *testing.T, cfg *otelobserver.Config) (event.Observer, func() []string) {
	t.Helper()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	observe, err := otelobserver.New(provider, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return observe, func() []string {
		t.Helper()
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, s := range all.ScopeMetrics {
			for _, m := range s.Metrics {
				lines = append(lines, render(t, m)...)
			}
		}
		slices.Sort(lines)
		return lines
	}
}

func render(t *testing.T, m metricdata.Metrics) (lines []string) {
	t.Helper()
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			if p.Value == 0 && m.Name == "joblock.events" {
				continue // see TestCountersOfRareEventsBeginWithZero
			}
			lines = append(lines, fmt.Sprintf("%s %s {%s} %d", m.Name, m.Unit, p.Attributes.Encoded(encoder{}), p.Value))
		}
	case metricdata.Gauge[int64]:
		t.Errorf("%s is a gauge", m.Name)
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			lines = append(lines, fmt.Sprintf("%s %s {%s} %d adding up to %g", m.Name, m.Unit, p.Attributes.Encoded(encoder{}), p.Count, p.Sum))
		}
	default:
		t.Fatalf("%s is a %T", m.Name, data)
	}
	return lines
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEventsAreCountedByKindAndError(t *testing.T) {
	observe, read := newMetrics(t, nil)
	for _, e := range []event.Event{
		{Kind: event.Acquired, Key: "a"},
		{Kind: event.Acquired, Key: "b", Waited: 1500 * time.Millisecond, Held: time.Hour},
		{Kind: event.Contended, Key: "b", Waited: time.Hour, Remaining: time.Hour},
		{Kind: event.GaveUp, Key: "b", Waited: 2 * time.Second, Err: joblock.ErrTimeout},
		{Kind: event.GaveUp, Key: "b", Waited: time.Second, Err: context.Canceled},
		{Kind: event.Released, Key: "a", Held: 250 * time.Millisecond},
		{Kind: event.Lost, Key: "a", Held: 4 * time.Second, Err: fmt.Errorf("wrapped: %w", joblock.ErrLost)},
		{Kind: event.Parked, Key: "a", Held: 3 * time.Second},
		{Kind: event.RenewedLate, Key: "a", Late: time.Second},
	} {
		observe(e)
	}
	wantLines(t, read(),
		"joblock.events {event} {error.type=LOCK_LOST,joblock.event=lost} 1",
		"joblock.events {event} {error.type=LOCK_TIMEOUT,joblock.event=gave up} 1",
		"joblock.events {event} {error.type=_OTHER,joblock.event=gave up} 1",
		"joblock.events {event} {joblock.event=acquired} 2",
		"joblock.events {event} {joblock.event=contended} 1",
		"joblock.events {event} {joblock.event=parked} 1",
		"joblock.events {event} {joblock.event=released} 1",
		"joblock.events {event} {joblock.event=renewed late} 1",
		"joblock.held {lock} {} 1",
		"joblock.hold.duration s {error.type=LOCK_LOST,joblock.event=lost} 1 adding up to 4",
		"joblock.hold.duration s {joblock.event=parked} 1 adding up to 3",
		"joblock.hold.duration s {joblock.event=released} 1 adding up to 0.25",
		"joblock.renewal.late s {} 1 adding up to 1",
		"joblock.wait.duration s {error.type=LOCK_TIMEOUT,joblock.event=gave up} 1 adding up to 2",
		"joblock.wait.duration s {error.type=_OTHER,joblock.event=gave up} 1 adding up to 1",
		"joblock.wait.duration s {joblock.event=acquired} 2 adding up to 1.5",
	)
}

// A counter that an alert watches is there before its first event, also in a group that is new: else its first step would
// be no increase.
func TestCountersOfRareEventsBeginWithZero(t *testing.T) {
	reader := sdk.NewManualReader()
	observe, err := otelobserver.New(sdk.NewMeterProvider(sdk.WithReader(reader)), &otelobserver.Config{KeyGroup: otelobserver.FirstPart})
	if err != nil {
		t.Fatal(err)
	}
	observe(event.Event{Kind: event.Acquired, Key: "export:1"})
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	var zero []string
	for _, m := range all.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "joblock.events" {
			for _, p := range sum.DataPoints {
				if p.Value == 0 {
					zero = append(zero, p.Attributes.Encoded(encoder{}))
				}
			}
		}
	}
	for _, want := range []string{
		"error.type=LOCK_LOST,joblock.event=lost,joblock.key.group=export", "error.type=LOCK_LOST,joblock.event=lost",
		"error.type=LOCK_UNAVAILABLE,joblock.event=renewal unanswered", "joblock.event=forced,joblock.key.group=export",
	} {
		if !slices.Contains(zero, want) {
			t.Errorf("no {%s} in %q", want, zero)
		}
	}
}

// The number of locks that are held is by group, too. The journal's drops are those that the journal tells.
func TestHeldAndDropped(t *testing.T) {
	observe, read := newMetrics(t, &otelobserver.Config{KeyGroup: otelobserver.FirstPart, JournalDropped: func() int64 { return 7 }})
	for _, e := range []event.Event{
		{Kind: event.Acquired, Key: "export:1", Owner: "a"},
		{Kind: event.Acquired, Key: "export:2", Owner: "b"},
		{Kind: event.Resumed, Key: "rollup", Owner: "c"},
		{Kind: event.Lost, Key: "export:1", Owner: "a"},
		{Kind: event.Parked, Key: "export:1", Owner: "a"},
	} {
		observe(e)
	}
	var lines []string
	for _, line := range read() {
		if strings.HasPrefix(line, "joblock.held") || strings.HasPrefix(line, "joblock.journal") {
			lines = append(lines, line)
		}
	}
	wantLines(t, lines,
		"joblock.held {lock} {joblock.key.group=export} 1",
		"joblock.held {lock} {joblock.key.group=rollup} 1",
		"joblock.journal.dropped {event} {} 7",
	)
}

func TestKeysAreGroupedOnlyIfAsked(t *testing.T) {
	observe, read := newMetrics(t, &otelobserver.Config{KeyGroup: otelobserver.FirstPart})
	for _, key := range []string{joblock.Key("export", "1"), joblock.Key("export", "2"), joblock.Key("a:b", "c"), "alone"} {
		observe(event.Event{Kind: event.Forced, Key: key})
	}
	wantLines(t, read(),
		"joblock.events {event} {joblock.event=forced,joblock.key.group=a%3Ab} 1",
		"joblock.events {event} {joblock.event=forced,joblock.key.group=alone} 1",
		"joblock.events {event} {joblock.event=forced,joblock.key.group=export} 2",
	)
}

func TestNoGroupIsNoAttribute(t *testing.T) {
	var asked []string
	observe, read := newMetrics(t, &otelobserver.Config{KeyGroup: func(key string) string {
		asked = append(asked, key)
		return ""
	}})
	observe(event.Event{Kind: event.Forced, Key: "key"})
	observe(event.Event{Kind: event.RenewalUnanswered}) // has none
	if len(asked) != 1 || asked[0] != "key" {
		t.Errorf("asked for %q", asked)
	}
	wantLines(t, read(),
		"joblock.events {event} {joblock.event=forced} 1",
		"joblock.events {event} {joblock.event=renewal unanswered} 1",
	)
}

// With a real Locker: neither keys nor owners come out.
func TestMetricsOfALocker(t *testing.T) {
	observe, read := newMetrics(t, nil)
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
	if err := errors.Join(lock.Release(ctx, joblock.Reason("secret-reason")), locks.Close(ctx)); err != nil || refused == nil {
		t.Fatal(err, refused)
	}
	var events []string
	for _, line := range read() {
		if strings.Contains(line, "secret") {
			t.Errorf("in the metrics: %s", line)
		}
		if strings.HasPrefix(line, "joblock.events") {
			events = append(events, line)
		}
	}
	wantLines(t, events,
		"joblock.events {event} {joblock.event=acquired} 1",
		"joblock.events {event} {joblock.event=contended} 1",
		"joblock.events {event} {joblock.event=released} 1",
	)
}

// No metric has any text of an event other than the group of its key, not even that of its error.
func TestMetricsHaveOnlyKindCodeAndGroup(t *testing.T) {
	observe, read := newMetrics(t, &otelobserver.Config{KeyGroup: otelobserver.FirstPart})
	e := event.Event{Err: fmt.Errorf("secret: %w", joblock.ErrLost)}
	fields := reflect.ValueOf(&e).Elem()
	texts := 0
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			texts++
			f.SetString("secret")
		}
	}
	if texts < 4 {
		t.Fatalf("an event has only %d texts", texts)
	}
	e.Key = joblock.Key("export", "secret")
	kinds := 0
	for e.Kind = event.Acquired; e.Kind <= event.RateLimited; e.Kind++ {
		observe(e)
		kinds++
	}
	lines := read()
	if len(lines) < kinds {
		t.Errorf("%d time series of %d kinds of events", len(lines), kinds)
	}
	for _, line := range lines {
		if strings.Contains(line, "secret") {
			t.Errorf("in the metrics: %s", line)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := otelobserver.New(nil, nil); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("a nil provider: %v, want ErrInvalid", err)
	}
	if observe, err := otelobserver.New(failing{}, nil); !errors.Is(err, errNoInstrument) || observe != nil {
		t.Errorf("a provider without instruments: %v", err)
	}
}

var errNoInstrument = errors.New("no instrument")

// failing is a provider whose meters make no histograms.
type failing struct{ noop.MeterProvider }

func (failing) Meter(string, ...metric.MeterOption) metric.Meter { return failingMeter{} }

type failingMeter struct{ noop.Meter }

func (failingMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errNoInstrument
}

// encoder writes attributes as "a=b,c=d".
type encoder struct{}

func (encoder) ID() attribute.EncoderID { return attribute.EncoderID{} }

func (encoder) Encode(i attribute.Iterator) string {
	var kvs []string
	for i.Next() {
		kv := i.Attribute()
		kvs = append(kvs, string(kv.Key)+"="+kv.Value.AsString())
	}
	return strings.Join(kvs, ",")
}
