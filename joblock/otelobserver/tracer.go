package otelobserver

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	names "github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

// TracerConfig configures NewTracer. The zero value of each field means its default.
type TracerConfig struct {
	// Propagator writes the span of an enqueue into the headers of the task, and reads it there. Use the same
	// Propagator in all processes. Default propagation.TraceContext{}: the headers traceparent and tracestate of W3C.
	// Baggage is carried along only if the Propagator supports it.
	Propagator propagation.TextMapPropagator

	// ShowKey returns the value of the attribute joblock.key for a key; "" leaves the attribute out. ShowKey must be
	// safe for concurrent use. Default: the key itself.
	ShowKey func(key string) string
}

// linksHeader is a header of the task of a group. It names the spans of the group's members to which the task's span
// links, in addition to its parent. Its value is a list of values of traceparent, separated by commas.
const linksHeader = "joblock-links"

// mostLinks bounds linksHeader. OpenTelemetry's SDK keeps 128 links.
const mostLinks = 64

// mostKeys bounds the values of joblock.keys.
const mostKeys = 16

// NewTracer returns a Tracer that creates spans with a Tracer of provider; the package comment lists the spans. A nil
// cfg means the defaults. NewTracer returns joblock.ErrInvalid for a nil provider.
func NewTracer(provider trace.TracerProvider, cfg *TracerConfig) (event.Tracer, error) {
	if provider == nil {
		return nil, fmt.Errorf("otelobserver: the TracerProvider is nil: %w", joblock.ErrInvalid)
	}
	t := &tracer{tracer: provider.Tracer(scope)}
	if cfg != nil {
		t.cfg = *cfg
	}
	if t.cfg.Propagator == nil {
		t.cfg.Propagator = propagation.TraceContext{}
	}
	if t.cfg.ShowKey == nil {
		t.cfg.ShowKey = func(key string) string { return key }
	}
	return t, nil
}

type tracer struct {
	tracer trace.Tracer
	cfg    TracerConfig
}

func (t *tracer) Start(ctx context.Context, c event.Call) (context.Context, event.Span) {
	in, links := ctx, []trace.Link(nil)
	if c.Headers != nil {
		in, links = t.remote(ctx, c.Headers)
	}
	if !trace.SpanContextFromContext(in).IsValid() {
		return ctx, nil
	}
	name, kind := "joblock "+string(c.Op), trace.SpanKindInternal
	switch c.Op {
	case event.OpEnqueue:
		kind = trace.SpanKindProducer
	case event.OpRun:
		kind = trace.SpanKindConsumer
	case event.OpAcquire, event.OpPark, event.OpResume, event.OpReclaim, event.OpRelease:
		kind = trace.SpanKindClient
	}
	if c.Task != "" {
		name += " " + c.Task
	}
	in, s := t.tracer.Start(in, name, trace.WithSpanKind(kind), trace.WithLinks(links...), trace.WithAttributes(t.attributes(c)...))
	return in, span{s}
}

// remote returns ctx with the span that headers name as the parent, unless ctx has a span of its own, because another
// instrumentation of asynq came first. Then that span is the parent, and the one in the headers a link, if it is of
// another trace.
func (t *tracer) remote(ctx context.Context, headers map[string]string) (context.Context, []trace.Link) {
	carrier := propagation.MapCarrier(headers)
	own := trace.SpanContextFromContext(ctx)
	named := trace.SpanContextFromContext(t.cfg.Propagator.Extract(context.Background(), carrier))
	var links []trace.Link
	switch {
	case !named.IsValid():
	case !own.IsValid():
		ctx = t.cfg.Propagator.Extract(ctx, carrier)
	case own.TraceID() != named.TraceID():
		links = append(links, trace.Link{SpanContext: named})
	}
	if others := headers[linksHeader]; others != "" {
		for i, text := range strings.SplitN(others, ",", mostLinks+1) {
			sc := parse(text)
			if i < mostLinks && sc.IsValid() {
				links = append(links, trace.Link{SpanContext: sc})
			}
		}
	}
	return ctx, links
}

// parse returns the span that a value of traceparent names. The result is not valid if text is not such a value.
func parse(text string) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": text}))
}

func (t *tracer) Headers(ctx context.Context) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	headers := make(propagation.MapCarrier)
	t.cfg.Propagator.Inject(ctx, headers)
	return headers
}

// Merge makes the first span the parent, so that a group of one task is in the trace of that task. The others are links.
func (t *tracer) Merge(of []map[string]string) map[string]string {
	var merged propagation.MapCarrier
	var links []string
	seen := make(map[trace.SpanID]bool)
	for _, headers := range of {
		ctx := t.cfg.Propagator.Extract(context.Background(), propagation.MapCarrier(headers))
		sc := trace.SpanContextFromContext(ctx)
		switch {
		case !sc.IsValid() || seen[sc.SpanID()]:
		case merged == nil:
			merged = make(propagation.MapCarrier)
			t.cfg.Propagator.Inject(ctx, merged)
		case len(links) < mostLinks:
			link := make(propagation.MapCarrier)
			propagation.TraceContext{}.Inject(ctx, link)
			links = append(links, link["traceparent"])
		}
		seen[sc.SpanID()] = true
	}
	if merged != nil {
		merged[linksHeader] = strings.Join(links, ",") // even if empty, because a member's header may have been copied
	}
	return merged
}

func (t *tracer) attributes(c event.Call) []attribute.KeyValue {
	kvs := make([]attribute.KeyValue, 0, 4)
	var keys []string
	for _, key := range c.Keys[:min(len(c.Keys), mostKeys)] {
		if shown := t.cfg.ShowKey(key); shown != "" {
			keys = append(keys, shown)
		}
	}
	switch {
	case len(keys) == 1 && len(c.Keys) == 1:
		kvs = append(kvs, attribute.String("joblock.key", keys[0]))
	case len(keys) > 0:
		kvs = append(kvs, attribute.StringSlice("joblock.keys", keys))
	}
	if c.Job != "" {
		kvs = append(kvs, attribute.String("joblock.job", c.Job))
	}
	if c.Task != "" {
		kvs = append(kvs, attribute.String("joblock.task", c.Task))
	}
	if c.Attempt > 0 {
		kvs = append(kvs, attribute.Int("joblock.attempt", c.Attempt))
	}
	return kvs
}

type span struct{ s trace.Span }

// AddEvent records the grant of a lock as attributes, and everything else as an event of the span.
func (s span) AddEvent(e event.Event) {
	if !s.s.IsRecording() {
		return
	}
	kvs := make([]attribute.KeyValue, 0, 6)
	if e.Fence != 0 {
		kvs = append(kvs, attribute.Int64("joblock.fence", e.Fence))
	}
	if e.Holder != "" {
		kvs = append(kvs, attribute.String("joblock.holder", e.Holder))
	}
	if e.Job != "" {
		kvs = append(kvs, attribute.String("joblock.job", e.Job))
	}
	if e.Reason != "" {
		kvs = append(kvs, attribute.String("joblock.reason", e.Reason))
	}
	switch e.Kind {
	case event.Acquired, event.GaveUp:
		kvs = append(kvs, attribute.Float64("joblock.waited", e.Waited.Seconds()))
	case event.Contended:
		kvs = append(kvs, attribute.Float64("joblock.remaining", e.Remaining.Seconds()))
	case event.Parked, event.Released, event.Lost:
		kvs = append(kvs, attribute.Float64("joblock.held", e.Held.Seconds()))
	case event.RenewedLate:
		kvs = append(kvs, attribute.Float64("joblock.late", e.Late.Seconds()))
	}
	switch e.Kind {
	case event.Acquired, event.Resumed, event.Reclaimed:
		s.s.SetAttributes(kvs...)
	default:
		s.s.AddEvent(e.Kind.String(), trace.WithAttributes(kvs...))
	}
}

func (s span) Renewed() {
	if s.s.IsRecording() {
		s.s.AddEvent("renewed")
	}
}

// End sets the status Error only if something is wrong. A busy key is not: a request is refused, a job waits its turn.
func (s span) End(outcome string, err error) {
	if outcome != "" {
		s.s.SetAttributes(attribute.String("joblock.outcome", outcome))
	}
	if err != nil {
		code := joblock.CodeOf(err)
		s.s.SetAttributes(attribute.String(names.Error, cmp.Or(code, names.Other)))
		if outcome != "snoozed" && outcome != "revoked" && outcome != "superseded" && !expected[code] {
			// The text of a handler's error may contain anything, and the texts of the toolkit's errors contain keys.
			s.s.SetStatus(codes.Error, cmp.Or(code, outcome))
		}
	}
	s.s.End()
}

// expected has the codes of errors that say only that another caller has the key, or that the lock was released before.
var expected = map[string]bool{
	joblock.CodeOf(joblock.ErrHeld): true, joblock.CodeOf(joblock.ErrBusy): true, joblock.CodeOf(joblock.ErrTimeout): true,
	joblock.CodeOf(joblock.ErrAlreadyReleased): true, joblock.CodeOf(joblock.ErrNotOwner): true, joblock.CodeOf(joblock.ErrNotFound): true,
}
