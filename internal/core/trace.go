package core

import (
	"context"
	"runtime/debug"

	"github.com/joblock/toolkit/joblock/event"
)

// span is a span of the Tracer. All methods of a nil *span do nothing: most calls are not traced.
type span struct {
	l *Locker
	s event.Span
}

// trace begins a span about c. If ctx is not traced, s is nil and ctx is unchanged.
func (l *Locker) trace(ctx context.Context, c event.Call) (in context.Context, s *span) {
	if l == nil || l.cfg.Tracer == nil {
		return ctx, nil
	}
	in = ctx
	l.guard(func() {
		if child, started := l.cfg.Tracer.Start(ctx, c); started != nil {
			in, s = child, &span{l, started}
		}
	})
	return in, s
}

// Trace is Start of the Tracer. Without a span it returns a Span that does nothing.
func (l *Locker) Trace(ctx context.Context, c event.Call) (context.Context, event.Span) {
	ctx, s := l.trace(ctx, c)
	return ctx, s // a nil *span does nothing
}

// TraceHeaders is Headers of the Tracer, or nil without a Tracer.
func (l *Locker) TraceHeaders(ctx context.Context) (headers map[string]string) {
	if l != nil && l.cfg.Tracer != nil {
		l.guard(func() { headers = l.cfg.Tracer.Headers(ctx) })
	}
	return headers
}

// TraceMerge is Merge of the Tracer, or nil without a Tracer.
func (l *Locker) TraceMerge(of []map[string]string) (headers map[string]string) {
	if l != nil && l.cfg.Tracer != nil {
		l.guard(func() { headers = l.cfg.Tracer.Merge(of) })
	}
	return headers
}

// guard calls f, which calls the Tracer, and recovers a panic, which must not end a renewal or a release.
func (l *Locker) guard(f func()) {
	defer func() {
		if p := recover(); p != nil && !l.panicked.Swap(true) {
			l.cfg.Logger.Error("joblock: the Tracer panicked; further panics are not logged", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
}

func (s *span) AddEvent(e event.Event) {
	if s != nil && e.Kind != 0 {
		s.l.guard(func() { s.s.AddEvent(e) })
	}
}

func (s *span) Renewed() {
	if s != nil {
		s.l.guard(s.s.Renewed)
	}
}

func (s *span) End(outcome string, err error) {
	if s != nil {
		s.l.guard(func() { s.s.End(outcome, err) })
	}
}

// traceHold begins the span of the holding of k in ctx, unless users do not see the lock. The caller holds k.mu, or the
// only reference to k.
func (k *Lock) traceHold(ctx context.Context) {
	if k.l.cfg.Tracer == nil || k.silent || ctx == nil {
		return
	}
	_, k.span = k.l.trace(ctx, event.Call{Op: event.OpHold, Keys: []string{k.h.key}, Job: k.h.job})
}

// emit reports e, an event of the holding with the span s, to the Observer and to s. Some events end the holding. The
// caller must not hold k.mu.
func (k *Lock) emit(s *span, e event.Event) {
	k.l.Emit(e)
	s.AddEvent(e)
	switch e.Kind {
	case event.Parked, event.Released, event.Lost:
		s.End(e.Kind.String(), e.Err)
	}
}

// keysOf returns the keys of reqs, or nil without a Tracer.
func keysOf[Q any](l *Locker, reqs []Q, keyOf func(*Q) string) []string {
	if l.cfg.Tracer == nil {
		return nil
	}
	var keys []string
	for i := range reqs {
		if key := keyOf(&reqs[i]); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// firstOf returns the first error of errs that is not nil.
func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
