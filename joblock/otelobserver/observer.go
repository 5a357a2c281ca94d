package otelobserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	names "github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

const scope = "github.com/joblock/toolkit/joblock/otelobserver"

// Config configures New. The zero value of each field means its default.
type Config struct {
	// KeyGroup returns the value of the attribute joblock.key.group for a key. "" leaves the attribute out. KeyGroup
	// must return few different values, because each value is a set of time series. If keys begin with their purpose,
	// FirstPart is such a function. KeyGroup must be safe for concurrent use. Default: no attribute.
	KeyGroup func(key string) string

	// JournalDropped, if set, returns the value of joblock.journal.dropped. Set it to the method Dropped of the
	// process's journal.Journal. It is called at each collection.
	JournalDropped func() int64
}

// FirstPart returns the first of the parts from which joblock.Key made key: "export" for "export:acct-7". For a key
// of one part, FirstPart returns key. Use FirstPart as a Config.KeyGroup.
func FirstPart(key string) string {
	first, _, _ := strings.Cut(key, ":")
	return first
}

// New returns an Observer that records events with a Meter of provider. A nil cfg means the defaults. Errors:
// joblock.ErrInvalid for a nil provider, and the errors of the provider.
func New(provider metric.MeterProvider, cfg *Config) (event.Observer, error) {
	if provider == nil {
		return nil, fmt.Errorf("otelobserver: the MeterProvider is nil: %w", joblock.ErrInvalid)
	}
	var r recorder
	if cfg != nil {
		r.cfg = *cfg
	}
	meter := provider.Meter(scope)
	var errs [6]error
	histogram := func(m names.Metric) (metric.Float64Histogram, error) {
		return meter.Float64Histogram(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help), metric.WithExplicitBucketBoundaries(m.Buckets...))
	}
	r.events, errs[0] = meter.Int64Counter(names.Events.Name, metric.WithUnit(names.Events.Unit), metric.WithDescription(names.Events.Help))
	r.wait, errs[1] = histogram(names.WaitDuration)
	r.hold, errs[2] = histogram(names.HoldDuration)
	r.late, errs[3] = histogram(names.RenewalLate)
	r.held, errs[4] = meter.Int64UpDownCounter(names.Held.Name, metric.WithUnit(names.Held.Unit), metric.WithDescription(names.Held.Help))
	if dropped := r.cfg.JournalDropped; dropped != nil {
		m := names.JournalDropped
		_, errs[5] = meter.Int64ObservableCounter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(dropped())
				return nil
			}))
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("otelobserver: %w", err)
	}
	r.events.Add(context.Background(), 0, metric.WithAttributes(
		attribute.String(names.Event, event.RenewalUnanswered.String()), attribute.String(names.Error, "LOCK_UNAVAILABLE"))) // has no key
	r.meet("", nil)
	return r.observe, nil
}

// meet creates, with value 0, the counters that alerts watch, when a group of keys is first seen.
func (r *recorder) meet(name string, group []attribute.KeyValue) {
	if !r.groups.First(name) {
		return
	}
	for _, rare := range names.Rare {
		kvs := []attribute.KeyValue{attribute.String(names.Event, rare.Kind.String())}
		if rare.Error != "" {
			kvs = append(kvs, attribute.String(names.Error, rare.Error))
		}
		r.events.Add(context.Background(), 0, metric.WithAttributes(append(kvs, group...)...))
	}
}

type recorder struct {
	cfg              Config
	events           metric.Int64Counter
	wait, hold, late metric.Float64Histogram
	held             metric.Int64UpDownCounter
	holdings         names.Holdings
	groups           names.Groups
}

func (r *recorder) observe(e event.Event) {
	ctx := context.Background()
	group := r.group(e)
	attrs := metric.WithAttributeSet(attribute.NewSet(append(kind(e), group...)...))
	if len(group) > 0 {
		r.meet(group[0].Value.AsString(), group)
	}
	r.events.Add(ctx, 1, attrs)
	switch e.Kind {
	case event.Acquired, event.GaveUp:
		r.wait.Record(ctx, e.Waited.Seconds(), attrs)
	case event.Parked, event.Released, event.Lost:
		r.hold.Record(ctx, e.Held.Seconds(), attrs)
	case event.RenewedLate:
		r.late.Record(ctx, e.Late.Seconds(), metric.WithAttributes(group...))
	}
	if by := r.holdings.Observe(e); by != 0 {
		r.held.Add(ctx, int64(by), metric.WithAttributes(group...))
	}
}

// kind returns the attributes that say what has happened.
func kind(e event.Event) []attribute.KeyValue {
	kvs := make([]attribute.KeyValue, 0, 3)
	kvs = append(kvs, attribute.String(names.Event, e.Kind.String()))
	if e.Err != nil {
		// The text of an error would name keys.
		kvs = append(kvs, attribute.String(names.Error, cmp.Or(joblock.CodeOf(e.Err), names.Other)))
	}
	return kvs
}

// group returns the attribute of the key, if there is one.
func (r *recorder) group(e event.Event) []attribute.KeyValue {
	if r.cfg.KeyGroup == nil || e.Key == "" {
		return nil
	}
	if group := r.cfg.KeyGroup(e.Key); group != "" {
		return []attribute.KeyValue{attribute.String(names.Group, group)}
	}
	return nil
}
