package otelobserver_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/otelobserver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// tracing keeps the spans of a test.
type tracing struct {
	spans *tracetest.InMemoryExporter
	*sdktrace.TracerProvider
	event.Tracer
}

func newTracing(t *testing.T, cfg *otelobserver.TracerConfig) *tracing {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tracer, err := otelobserver.NewTracer(provider, cfg)
	testkit.WantNil(t, "NewTracer", err)
	return &tracing{spans, provider, tracer}
}

// begin begins a span as an application's own instrumentation does.
func (tr *tracing) begin(ctx context.Context, name string) (context.Context, trace.Span) {
	return tr.TracerProvider.Tracer("application").Start(ctx, name)
}

func (tr *tracing) locker(t *testing.T) *joblock.Locker {
	t.Helper()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{
		Tracer: tr.Tracer, Holder: "web:1", Logger: slog.New(slog.DiscardHandler),
	})
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) })
	return locks
}

// one returns the only span that has ended with this name.
func (tr *tracing) one(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	all := tr.named(name)
	if len(all) != 1 {
		t.Fatalf("%d spans %q, want one; there are\n%s", len(all), name, tr)
	}
	return all[0]
}

func (tr *tracing) named(name string) (all []tracetest.SpanStub) {
	for _, s := range tr.spans.GetSpans() {
		if s.Name == name {
			all = append(all, s)
		}
	}
	return all
}

// String draws the spans as a tree, sorted by their begin.
func (tr *tracing) String() string {
	spans := tr.spans.GetSpans()
	slices.SortFunc(spans, func(a, b tracetest.SpanStub) int {
		return cmp.Or(a.StartTime.Compare(b.StartTime), strings.Compare(a.Name, b.Name))
	})
	var b strings.Builder
	var draw func(parent trace.SpanID, depth int)
	draw = func(parent trace.SpanID, depth int) {
		for _, s := range spans {
			if s.Parent.SpanID() == parent {
				fmt.Fprintf(&b, "%s%s\n", strings.Repeat("  ", depth), s.Name)
				draw(s.SpanContext.SpanID(), depth+1)
			}
		}
	}
	draw(trace.SpanID{}, 0)
	return b.String()
}

func attr(kvs []attribute.KeyValue, name string) string {
	for _, kv := range kvs {
		if string(kv.Key) == name {
			return kv.Value.String()
		}
	}
	return ""
}

func events(s tracetest.SpanStub) (names []string) {
	for _, e := range s.Events {
		names = append(names, e.Name)
	}
	return names
}

// The whole story on a real Redis: a request waits for its lock, hands it to a job, and a worker runs the job under the lock.
// The job's handler has a span of its own. All of it is one trace.
func TestRequestWaitAndJobAreOneTrace(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	tr := newTracing(t, nil)
	quiet := slog.New(slog.DiscardHandler)
	open := func(holder string) *joblock.Locker {
		locks, err := joblock.New(testkit.Must(redisstore.New(srv.Client(t), nil)), &joblock.Config{
			Tracer: tr.Tracer, Holder: holder, TTL: time.Second, Logger: quiet, // renewed every third of a second
		})
		testkit.WantNil(t, "New", err)
		return locks
	}
	web, jobs := open("web:1"), open("jobs:2")
	opt := asynq.RedisClientOpt{Addr: srv.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	enqueuer, err := handoff.NewClient(web, client, inspector, &handoff.Config{Logger: quiet})
	testkit.WantNil(t, "NewClient", err)
	w, err := worker.New(jobs, inspector, &worker.Config{Logger: quiet})
	testkit.WantNil(t, "worker.New", err)

	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	ended := make(chan error, 1)
	mux.HandleFunc("export", func(ctx context.Context, task *asynq.Task) error {
		_, span := tr.begin(ctx, "work")
		defer span.End()
		lock, _ := joblock.FromContext(ctx)
		// Until it was renewed twice: the first renewal is in the trace by then.
		for range 2 {
			for was := lock.ExpiresAt(); lock.ExpiresAt().Equal(was); time.Sleep(5 * time.Millisecond) {
				if ctx.Err() != nil {
					ended <- context.Cause(ctx)
					return ctx.Err()
				}
			}
		}
		ended <- nil
		return nil
	})
	server := asynq.NewServer(opt, w.Configure(asynq.Config{Concurrency: 1, TaskCheckInterval: 50 * time.Millisecond, LogLevel: asynq.FatalLevel}))

	route := (&handoff.Guard{Locks: web, Logger: quiet}).Middleware(func(*http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: "export:acct-7", MaxWait: time.Minute}, nil
	})(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		task := asynq.NewTaskWithHeaders("export", nil, map[string]string{"traceparent": "00-11111111111111111111111111111111-2222222222222222-01"})
		if _, err := enqueuer.Enqueue(r.Context(), handoff.Carry(lock), task, asynq.TaskID("e-1")); err != nil {
			handoff.Refuse(rw, r, err)
		}
	}))
	// Another one has the key until the request stands in line.
	other, err := jobs.TryAcquire(t.Context(), "export:acct-7", joblock.Holder("other:3"))
	testkit.WantNil(t, "TryAcquire", err)
	answered := make(chan int, 1)
	go func() {
		ctx, span := tr.begin(context.Background(), "POST /exports")
		defer span.End()
		rec := httptest.NewRecorder()
		route.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/", nil).WithContext(ctx))
		answered <- rec.Code
	}()
	until(t, "the request waits", func() bool {
		st, err := jobs.Status(t.Context(), "export:acct-7")
		return err == nil && st[0].Waiters > 0
	})
	testkit.WantNil(t, "Release", other.Release(t.Context()))
	if code := <-answered; code != http.StatusOK {
		t.Fatalf("the request was answered with %d", code)
	}
	info, err := inspector.GetTaskInfo("default", "e-1")
	testkit.WantNil(t, "GetTaskInfo", err)
	testkit.WantNil(t, "Start", server.Start(mux))
	testkit.WantNil(t, "the handler", <-ended)
	server.Shutdown()
	ctx := context.Background()
	testkit.WantNil(t, "Close", errors.Join(w.Close(ctx), enqueuer.Close(ctx), web.Close(ctx), jobs.Close(ctx), client.Close(), inspector.Close()))

	request, acquire, enqueue := tr.one(t, "POST /exports"), tr.one(t, "joblock acquire"), tr.one(t, "joblock enqueue export")
	run, work, park, resume := tr.one(t, "joblock run export"), tr.one(t, "work"), tr.one(t, "joblock park"), tr.one(t, "joblock resume")
	release := tr.one(t, "joblock release")
	for _, s := range tr.spans.GetSpans() {
		if s.SpanContext.TraceID() != request.SpanContext.TraceID() {
			t.Errorf("%s is in another trace", s.Name)
		}
	}
	holds := tr.named("joblock hold")
	if len(holds) != 2 {
		t.Fatalf("%d holdings, want that of the request and that of the job:\n%s", len(holds), tr)
	}
	for _, c := range []struct {
		child, parent tracetest.SpanStub
		kind          trace.SpanKind
	}{
		{acquire, request, trace.SpanKindClient}, {enqueue, request, trace.SpanKindProducer}, {park, enqueue, trace.SpanKindClient},
		{run, enqueue, trace.SpanKindConsumer}, {resume, run, trace.SpanKindClient}, {work, run, trace.SpanKindInternal},
		{release, run, trace.SpanKindClient}, {holds[0], request, trace.SpanKindInternal}, {holds[1], run, trace.SpanKindInternal},
	} {
		if c.child.Parent.SpanID() != c.parent.SpanContext.SpanID() || c.child.SpanKind != c.kind {
			t.Errorf("%s, of kind %s, is not below %s, or not of kind %s:\n%s", c.child.Name, c.child.SpanKind, c.parent.Name, c.kind, tr)
		}
		if c.child.Status.Code == codes.Error || len(c.child.Links) > 0 {
			t.Errorf("%s has status %v and %d links", c.child.Name, c.child.Status, len(c.child.Links))
		}
	}
	if !run.Parent.IsRemote() {
		t.Error("the parent of the job's run did not come by the task")
	}
	if want := "00-" + request.SpanContext.TraceID().String() + "-" + enqueue.SpanContext.SpanID().String() + "-01"; info.Headers["traceparent"] != want {
		t.Errorf("the task has traceparent %q, want %q", info.Headers["traceparent"], want)
	}
	if got := attr(acquire.Attributes, "joblock.waited"); got == "" || got == "0" || attr(acquire.Attributes, "joblock.key") != "export:acct-7" {
		t.Errorf("the wait has attributes %v", acquire.Attributes)
	}
	if got := events(acquire); !slices.Equal(got, []string{"contended"}) || attr(acquire.Events[0].Attributes, "joblock.holder") != "other:3" {
		t.Errorf("the wait has events %v", acquire.Events)
	}
	if got := events(holds[0]); got[len(got)-1] != "parked" || attr(holds[0].Attributes, "joblock.outcome") != "parked" {
		t.Errorf("the request's holding has events %q and %v", got, holds[0].Attributes)
	}
	if got := events(holds[1]); len(got) < 2 || got[0] != "renewed" && got[0] != "renewed late" || got[len(got)-1] != "released" {
		t.Errorf("the job's holding has events %q", got)
	}
	for name, want := range map[string]string{"joblock.outcome": "done", "joblock.job": "default/e-1", "joblock.attempt": "1", "joblock.task": "export", "joblock.key": "export:acct-7"} {
		if got := attr(run.Attributes, name); got != want {
			t.Errorf("the run has %s %q, want %q", name, got, want)
		}
	}
	if run.StartTime.Before(enqueue.StartTime) || holds[1].EndTime.After(run.EndTime) {
		t.Error("the spans are not in order")
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for over := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// Without a span of the caller there is none of the toolkit.
func TestNoTraceBeginsHere(t *testing.T) {
	tr := newTracing(t, nil)
	locks := tr.locker(t)
	testkit.WantNil(t, "Do", locks.Do(t.Context(), "key", func(context.Context) error { return nil }))
	if n := len(tr.spans.GetSpans()); n > 0 {
		t.Errorf("%d spans:\n%s", n, tr)
	}
	if got := tr.Headers(t.Context()); got != nil {
		t.Errorf("headers %v", got)
	}
	if got := tr.Merge([]map[string]string{nil, {"traceparent": "no"}}); got != nil {
		t.Errorf("merged headers %v", got)
	}
}

// A busy key is no error in the trace of the caller. A lost lock is one.
func TestStatusOfSpans(t *testing.T) {
	tr := newTracing(t, &otelobserver.TracerConfig{ShowKey: otelobserver.FirstPart})
	locks := tr.locker(t)
	ctx, span := tr.begin(t.Context(), "request")
	lock, err := locks.TryAcquire(ctx, "export:secret")
	testkit.WantNil(t, "TryAcquire", err)
	_, err = locks.TryAcquire(ctx, "export:secret")
	testkit.WantErr(t, err, joblock.ErrHeld)
	testkit.WantNil(t, "ForceRelease", locks.ForceRelease(t.Context(), "export:secret", joblock.Reason("stuck")))
	testkit.WantErr(t, lock.Renew(ctx), joblock.ErrLost)
	span.End()

	acquires, hold := tr.named("joblock acquire"), tr.one(t, "joblock hold")
	if len(acquires) != 2 || acquires[1].Status.Code == codes.Error || attr(acquires[1].Attributes, "error.type") != "LOCK_ACQUISITION_FAILED" {
		t.Errorf("acquires are %+v", acquires)
	}
	if hold.Status.Code != codes.Error || attr(hold.Attributes, "joblock.outcome") != "lost" || hold.Status.Description != "LOCK_LOST" {
		t.Errorf("the hold has status %v and %v", hold.Status, hold.Attributes)
	}
	for _, s := range tr.spans.GetSpans() {
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, "secret") {
			t.Errorf("%s shows the key: %s", s.Name, text)
		}
	}
	if got := attr(hold.Attributes, "joblock.key"); got != "export" {
		t.Errorf("joblock.key is %q", got)
	}
}

// A hand-over that is undone begins a holding of its own.
func TestReclaimedHolding(t *testing.T) {
	tr := newTracing(t, nil)
	locks := tr.locker(t)
	ctx, span := tr.begin(t.Context(), "request")
	lock, err := locks.TryAcquire(ctx, "key")
	testkit.WantNil(t, "TryAcquire", err)
	_, err = lock.Park(ctx, joblock.ForJob("q/1"))
	testkit.WantNil(t, "Park", err)
	testkit.WantNil(t, "Reclaim", lock.Reclaim(ctx))
	testkit.WantNil(t, "Release", lock.Release(ctx))
	span.End()
	want := "request\n  joblock acquire\n  joblock hold\n  joblock park\n  joblock reclaim\n  joblock hold\n  joblock release\n"
	if got := tr.String(); got != want {
		t.Errorf("spans\n%swant\n%s", got, want)
	}
	holds := tr.named("joblock hold")
	if a, b := attr(holds[0].Attributes, "joblock.outcome"), attr(holds[1].Attributes, "joblock.outcome"); a != "parked" || b != "released" {
		t.Errorf("holdings ended as %q and %q", a, b)
	}
	if a, b := attr(holds[0].Attributes, "joblock.fence"), attr(holds[1].Attributes, "joblock.fence"); a == "" || a == b {
		t.Errorf("holdings have fences %q and %q", a, b)
	}
}

// A permit is acquired once, however many locks that takes.
func TestPermitIsOneAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracing(t, nil)
		locks := tr.locker(t)
		geocoder := limit.New(locks, 2)
		ctx, span := tr.begin(t.Context(), "request")
		for range 2 {
			_, err := geocoder.TryAcquire(ctx, "geocoder")
			testkit.WantNil(t, "TryAcquire", err)
		}
		_, err := geocoder.Acquire(ctx, "geocoder", joblock.MaxWait(time.Minute))
		testkit.WantErr(t, err, joblock.ErrTimeout)
		span.End()
		acquires := tr.named("joblock acquire")
		if len(acquires) != 3 || attr(acquires[2].Attributes, "joblock.key") != "geocoder" || attr(acquires[2].Attributes, "joblock.waited") != "" {
			t.Errorf("acquires:\n%s%+v", tr, acquires)
		}
		if got := events(acquires[2]); !slices.Equal(got, []string{"contended", "gave up"}) {
			t.Errorf("the wait has events %q", got)
		}
	})
}

// The span of other instrumentation is the parent; the enqueue in another trace is a link. The task of a group
// is in the trace of its first member, and links to the others.
func TestParentsAndLinks(t *testing.T) {
	tr := newTracing(t, nil)
	var headers []map[string]string
	var spans []trace.SpanContext
	for range 3 {
		ctx, span := tr.begin(t.Context(), "request")
		headers, spans = append(headers, tr.Headers(ctx)), append(spans, span.SpanContext())
		span.End()
	}
	run := func(ctx context.Context, headers map[string]string) tracetest.SpanStub {
		tr.spans.Reset()
		_, span := tr.Start(ctx, event.Call{Op: event.OpRun, Task: "export", Headers: headers})
		span.End("done", nil)
		return tr.one(t, "joblock run export")
	}
	links := func(s tracetest.SpanStub) (all []trace.SpanID) {
		for _, l := range s.Links {
			all = append(all, l.SpanContext.SpanID())
		}
		return all
	}
	if got := run(t.Context(), headers[0]); got.Parent.SpanID() != spans[0].SpanID() || len(got.Links) > 0 {
		t.Errorf("parent %v, links %v", got.Parent, got.Links)
	}
	own, _ := tr.begin(t.Context(), "asynq")
	if got := run(own, headers[0]); got.Parent.SpanID() != trace.SpanContextFromContext(own).SpanID() || !slices.Equal(links(got), []trace.SpanID{spans[0].SpanID()}) {
		t.Errorf("parent %v, links %v", got.Parent, got.Links)
	}
	own, _ = tr.begin(propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier(headers[0])), "asynq")
	if got := run(own, headers[0]); len(got.Links) > 0 {
		t.Errorf("a link %v within the trace", got.Links)
	}
	merged := tr.Merge([]map[string]string{nil, headers[0], headers[1], headers[1], {"traceparent": "bad"}, headers[2]})
	if got := run(t.Context(), merged); got.Parent.SpanID() != spans[0].SpanID() || !slices.Equal(links(got), []trace.SpanID{spans[1].SpanID(), spans[2].SpanID()}) {
		t.Errorf("parent %v, links %v", got.Parent, got.Links)
	}
	many := make([]map[string]string, 0, 200)
	for range 200 {
		ctx, span := tr.begin(t.Context(), "request")
		many = append(many, tr.Headers(ctx))
		span.End()
	}
	if got := run(t.Context(), tr.Merge(many)); len(got.Links) != 64 {
		t.Errorf("%d links of 200 members", len(got.Links))
	}
}

// A forged task header cannot break the worker.
func TestHeadersAreUntrusted(t *testing.T) {
	tr := newTracing(t, nil)
	good := "00-11111111111111111111111111111111-2222222222222222-01"
	for _, headers := range []map[string]string{
		{}, {"traceparent": ""}, {"traceparent": "00"}, {"traceparent": strings.Repeat("0", 1<<16)}, {"traceparent": good + good},
		{"joblock-links": strings.Repeat(",", 1<<16)},
	} {
		if ctx, span := tr.Start(t.Context(), event.Call{Op: event.OpRun, Headers: headers}); span != nil || ctx != t.Context() {
			t.Errorf("a span for %.40v", headers)
		}
	}
	_, span := tr.Start(t.Context(), event.Call{Op: event.OpRun, Headers: map[string]string{"traceparent": good, "joblock-links": "x,," + good + strings.Repeat(","+good, 200)}})
	span.End("done", nil)
	if got := tr.one(t, "joblock run"); len(got.Links) > 64 || len(got.Links) == 0 {
		t.Errorf("%d links", len(got.Links))
	}
}

// A Tracer that panics costs no lock.
func TestTracerThatPanics(t *testing.T) {
	var log bytes.Buffer
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{
		Tracer: panicking{}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	testkit.WantNil(t, "New", err)
	for range 3 {
		lock, err := locks.TryAcquire(t.Context(), "key")
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
	}
	testkit.WantNil(t, "Close", locks.Close(t.Context()))
	if n := strings.Count(log.String(), "the Tracer panicked"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

type panicking struct{}

func (panicking) Start(ctx context.Context, c event.Call) (context.Context, event.Span) {
	if c.Op == event.OpRelease {
		panic("no room for spans")
	}
	return ctx, panicking{}
}
func (panicking) Headers(context.Context) map[string]string   { panic("headers") }
func (panicking) Merge([]map[string]string) map[string]string { panic("merge") }
func (panicking) AddEvent(event.Event)                        { panic("tell") }
func (panicking) Renewed()                                    { panic("renewed") }
func (panicking) End(string, error)                           { panic("end") }

func TestNewTracerRefuses(t *testing.T) {
	if _, err := otelobserver.NewTracer(nil, nil); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("a nil provider: %v, want ErrInvalid", err)
	}
}
