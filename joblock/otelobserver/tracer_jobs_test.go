package otelobserver_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// A rig is a process that enqueues and a worker, on a real Redis. Both trace.
type rig struct {
	*tracing
	t        *testing.T
	web      *joblock.Locker
	jobs     *joblock.Locker
	enqueuer *handoff.Client
	tasks    *asynq.Inspector
	worker   *worker.Worker
	opt      asynq.RedisClientOpt
	quiet    *slog.Logger
}

func newRig(t *testing.T) *rig {
	t.Helper()
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	r := &rig{tracing: newTracing(t, nil), t: t, opt: asynq.RedisClientOpt{Addr: srv.Addr()}, quiet: slog.New(slog.DiscardHandler)}
	open := func(holder string) *joblock.Locker {
		locks, err := joblock.New(testkit.Must(redisstore.New(srv.Client(t), nil)), &joblock.Config{Tracer: r.Tracer, Holder: holder, Logger: r.quiet})
		testkit.WantNil(t, "New", err)
		return locks
	}
	r.web, r.jobs = open("web:1"), open("jobs:2")
	client := asynq.NewClient(r.opt)
	r.tasks = asynq.NewInspector(r.opt)
	var err error
	r.enqueuer, err = handoff.NewClient(r.web, client, r.tasks, &handoff.Config{Logger: r.quiet})
	testkit.WantNil(t, "NewClient", err)
	r.worker, err = worker.New(r.jobs, r.tasks, &worker.Config{Logger: r.quiet})
	testkit.WantNil(t, "worker.New", err)
	t.Cleanup(func() {
		ctx := context.Background()
		testkit.WantNil(t, "Close", errors.Join(r.worker.Close(ctx), r.enqueuer.Close(ctx), r.web.Close(ctx), r.jobs.Close(ctx), client.Close(), r.tasks.Close()))
	})
	return r
}

// request enqueues in a trace of its own, and returns the span of the enqueue.
func (r *rig) request(name string, enqueue func(context.Context) error) tracetest.SpanStub {
	r.t.Helper()
	ctx, span := r.begin(context.Background(), name)
	testkit.WantNil(r.t, name, enqueue(ctx))
	span.End()
	for _, s := range r.named("joblock enqueue export") {
		if s.Parent.SpanID() == span.SpanContext().SpanID() {
			return s
		}
	}
	r.t.Fatalf("%s has no enqueue below it:\n%s", name, r)
	return tracetest.SpanStub{}
}

// work runs tasks until n handlers have returned. The first attempt of a job in fails, fails.
func (r *rig) work(n int, fails ...string) {
	r.t.Helper()
	ended := make(chan struct{}, 100)
	mux := asynq.NewServeMux()
	mux.Use(r.worker.Middleware)
	mux.HandleFunc("export", func(ctx context.Context, task *asynq.Task) error {
		defer func() { ended <- struct{}{} }()
		_, span := r.begin(ctx, "work "+string(task.Payload()))
		defer span.End()
		if retried, _ := asynq.GetRetryCount(ctx); retried == 0 && slices.Contains(fails, string(task.Payload())) {
			return errors.New("no disk")
		}
		return nil
	})
	server := asynq.NewServer(r.opt, r.worker.Configure(asynq.Config{
		Concurrency: 2, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}))
	testkit.WantNil(r.t, "Start", server.Start(mux))
	for range n {
		<-ended
	}
	server.Shutdown()
}

// below looks for an attempt of a job: it must be below its enqueue, with the handler's span and so many holdings below it.
func (r *rig) below(enqueue tracetest.SpanStub, payload, attempt, outcome string, holds int) {
	r.t.Helper()
	for _, run := range r.named("joblock run export") {
		if run.Parent.SpanID() != enqueue.SpanContext.SpanID() || attr(run.Attributes, "joblock.attempt") != attempt {
			continue
		}
		if run.SpanContext.TraceID() != enqueue.SpanContext.TraceID() || !run.Parent.IsRemote() || len(run.Links) > 0 {
			r.t.Errorf("the run of %s is in another trace, or has links: %+v", payload, run)
		}
		if got := attr(run.Attributes, "joblock.outcome"); got != outcome || (run.Status.Code == codes.Error) != (outcome == "failed") {
			r.t.Errorf("the run of %s has ended as %q with status %v, want %q", payload, got, run.Status, outcome)
		}
		under := func(name string) (n int) {
			for _, s := range r.named(name) {
				if s.Parent.SpanID() == run.SpanContext.SpanID() {
					n++
				}
			}
			return n
		}
		if under("work "+payload) != 1 || under("joblock hold") != holds {
			r.t.Errorf("below the run of %s are %d handlers and %d holdings, want one and %d:\n%s", payload, under("work "+payload), under("joblock hold"), holds, r)
		}
		return
	}
	r.t.Errorf("no attempt %s of %s below its enqueue:\n%s", attempt, payload, r)
}

// A job that waits in a sequence runs in the trace of the request that enqueued it, whatever gives it its turn. So does
// the retry of a job before it.
func TestJobsOfASequenceAreInTheirOwnTraces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var enqueues []tracetest.SpanStub
	for _, id := range []string{"1", "2", "3"} {
		enqueues = append(enqueues, r.request("POST "+id, func(ctx context.Context) error {
			_, err := r.enqueuer.Enqueue(ctx, handoff.Sequence{Key: "export:acct-7"}, asynq.NewTask("export", []byte(id)), asynq.TaskID(id))
			return err
		}))
	}
	st, err := r.jobs.Status(t.Context(), "export:acct-7")
	testkit.WantNil(t, "Status", err)
	if st[0].Waiters != 2 {
		t.Fatalf("%d jobs wait, want two", st[0].Waiters)
	}
	r.work(4, "1")
	if enqueues[0].SpanContext.TraceID() == enqueues[1].SpanContext.TraceID() {
		t.Fatal("the requests are one trace")
	}
	r.below(enqueues[0], "1", "1", "failed", 1)
	r.below(enqueues[0], "1", "2", "done", 1)
	r.below(enqueues[1], "2", "1", "done", 1)
	r.below(enqueues[2], "3", "1", "done", 1)
	if n := len(r.named("joblock run export")); n != 4 {
		t.Errorf("%d runs, want four:\n%s", n, r)
	}
}

// A job that replaces one that waits runs in the trace of the request that has enqueued it. The trace of the request before
// has no run: its holding ended with a hand-over, which is the last that the trace shows.
func TestJobThatReplacesAnotherIsInItsOwnTrace(t *testing.T) {
	for name, c := range map[string]struct {
		policy handoff.OnConflict
		holds  int // of the run: with KeepLast it has the lock of a job that waits, too
	}{"Replace": {handoff.Replace, 1}, "KeepLast": {handoff.KeepLast, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			enqueue := func(id string) tracetest.SpanStub {
				return r.request("POST "+id, func(ctx context.Context) error {
					done, err := r.enqueuer.Enqueue(ctx, handoff.Unique{Key: "export:acct-7", OnConflict: c.policy}, asynq.NewTask("export", []byte(id)), asynq.TaskID(id))
					if err == nil && (done.Replaced != nil) != (id == "2") {
						t.Errorf("%s has replaced %v", id, done.Replaced)
					}
					return err
				})
			}
			first, second := enqueue("1"), enqueue("2")
			r.work(1)
			r.below(second, "2", "1", "done", c.holds)
			r.one(t, "joblock run export")
			for _, s := range r.spans.GetSpans() {
				if s.SpanContext.TraceID() == first.SpanContext.TraceID() && s.StartTime.After(second.StartTime) {
					t.Errorf("%s has begun in the trace of the job that was replaced:\n%s", s.Name, r)
				}
				if s.Status.Code == codes.Error {
					t.Errorf("%s has status %v", s.Name, s.Status)
				}
			}
			// The lock that the second request took over from the first job, and handed to its own.
			holds := 0
			for _, s := range r.named("joblock hold") {
				if s.SpanContext.TraceID() == second.SpanContext.TraceID() && s.EndTime.Before(second.EndTime) {
					holds++
					if got := attr(s.Attributes, "joblock.outcome"); got != "parked" {
						t.Errorf("the holding of the second request has ended as %q", got)
					}
				}
			}
			if holds != 1 {
				t.Errorf("the second request has %d holdings, want that of the lock it took over:\n%s", holds, r)
			}
		})
	}
}
