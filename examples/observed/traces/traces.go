// Package traces shows the latest traces as trees. It stands for the place to which your traces go.
package traces

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// keptSpans is how many spans are kept.
const keptSpans = 2000

// Traces keeps the latest spans: an exporter of OpenTelemetry's SDK, and an http.Handler that shows them.
type Traces struct {
	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
}

// ExportSpans keeps spans.
func (t *Traces) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = append(t.spans, spans...)
	t.spans = slices.Delete(t.spans, 0, max(0, len(t.spans)-keptSpans))
	return nil
}

// Shutdown does nothing.
func (t *Traces) Shutdown(context.Context) error { return nil }

// ServeHTTP shows the latest traces whose jobs have run, the newest first.
func (t *Traces) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	t.mu.Lock()
	spans := slices.Clone(t.spans)
	t.mu.Unlock()
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	children := make(map[trace.SpanID][]sdktrace.ReadOnlySpan)
	ran := make(map[trace.TraceID]bool)
	var roots []sdktrace.ReadOnlySpan
	for _, s := range spans {
		ran[s.SpanContext().TraceID()] = ran[s.SpanContext().TraceID()] || strings.HasPrefix(s.Name(), "joblock run")
		if parent := s.Parent(); parent.IsValid() {
			children[parent.SpanID()] = append(children[parent.SpanID()], s)
		} else {
			roots = append(roots, s)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var draw func(s sdktrace.ReadOnlySpan, indent string)
	draw = func(s sdktrace.ReadOnlySpan, indent string) {
		fmt.Fprintf(w, "%-44s %10s  %s\n", indent+s.Name(), s.EndTime().Sub(s.StartTime()).Round(10*time.Microsecond), about(s))
		for _, child := range children[s.SpanContext().SpanID()] {
			draw(child, indent+"  ")
		}
	}
	shown := 0
	for _, root := range slices.Backward(roots) {
		if !ran[root.SpanContext().TraceID()] {
			continue
		}
		if shown++; shown > 10 {
			break
		}
		draw(root, "")
		fmt.Fprintln(w)
	}
}

// about returns the outcome, the error, the holder and the events of a span, as far as it has them.
func about(s sdktrace.ReadOnlySpan) string {
	var words []string
	for _, name := range []attribute.Key{"joblock.outcome", "error.type", "joblock.holder"} {
		for _, kv := range s.Attributes() {
			if kv.Key == name {
				words = append(words, kv.Value.String())
			}
		}
	}
	for _, e := range s.Events() {
		words = append(words, e.Name)
	}
	return strings.Join(words, ", ")
}
