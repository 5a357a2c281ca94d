package otelobserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

const scope = "github.com/joblock/toolkit/joblock/otelobserver"

// Config configures New. The zero value of each field means its default.
type Config struct {
	// KeyGroup returns the attribute joblock.key.group for a key. "" leaves the attribute out. KeyGroup must return
	// few different values, because each value is a set of time series. If keys begin with their purpose, FirstPart
	// is such a function. Several goroutines may call KeyGroup at a time. Default: no attribute.
	KeyGroup func(key string) string
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
	var errs [3]error
	r.events, errs[0] = meter.Int64Counter("joblock.events",
		metric.WithUnit("{event}"), metric.WithDescription("What has happened to locks."))
	r.wait, errs[1] = meter.Float64Histogram("joblock.wait.duration",
		metric.WithUnit("s"), metric.WithDescription("How long acquires had waited when they got the lock or gave up."),
		metric.WithExplicitBucketBoundaries(0, 0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800))
	r.hold, errs[2] = meter.Float64Histogram("joblock.hold.duration",
		metric.WithUnit("s"), metric.WithDescription("How long locks were held in this process."),
		metric.WithExplicitBucketBoundaries(0.001, 0.01, 0.1, 1, 5, 10, 30, 60, 300, 900, 3600, 4*3600, 24*3600))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("otelobserver: %w", err)
	}
	return r.observe, nil
}

type recorder struct {
	cfg        Config
	events     metric.Int64Counter
	wait, hold metric.Float64Histogram
}

func (r *recorder) observe(e event.Event) {
	ctx := context.Background()
	attrs := metric.WithAttributeSet(r.attrs(e))
	r.events.Add(ctx, 1, attrs)
	switch e.Kind {
	case event.Acquired, event.GaveUp:
		r.wait.Record(ctx, e.Waited.Seconds(), attrs)
	case event.Parked, event.Released, event.Lost:
		r.hold.Record(ctx, e.Held.Seconds(), attrs)
	}
}

func (r *recorder) attrs(e event.Event) attribute.Set {
	kvs := make([]attribute.KeyValue, 0, 3)
	kvs = append(kvs, attribute.String("joblock.event", e.Kind.String()))
	if e.Err != nil {
		// The text of an error would name keys.
		kvs = append(kvs, attribute.String("error.type", cmp.Or(joblock.CodeOf(e.Err), "_OTHER")))
	}
	if r.cfg.KeyGroup != nil && e.Key != "" {
		if group := r.cfg.KeyGroup(e.Key); group != "" {
			kvs = append(kvs, attribute.String("joblock.key.group", group))
		}
	}
	return attribute.NewSet(kvs...)
}
