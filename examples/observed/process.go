package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/examples/observed/traces"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/otelobserver"
	"github.com/joblock/toolkit/joblock/promobserver"
)

// quiet keeps log lines off the terminal. In your program leave the Loggers out.
var quiet = slog.New(slog.DiscardHandler)

// parts has what the shutdown closes, and what observes the parts.
type parts struct {
	redis   string        // its address
	work    time.Duration // of an export
	group   sync.WaitGroup
	closers []func(context.Context) error

	registry *prometheus.Registry
	journal  *journal.Journal
	provider *sdktrace.TracerProvider
	traces   *traces.Traces // the latest spans

	metrics event.Observer
	tracer  event.Tracer
}

// later registers end for the shutdown, which calls the last registered function first.
func (all *parts) later(end func(context.Context) error) { all.closers = append(all.closers, end) }

func (all *parts) close(ctx context.Context) error {
	var errs []error
	for i := len(all.closers) - 1; i >= 0; i-- {
		errs = append(errs, all.closers[i](ctx))
	}
	all.group.Wait()
	return errors.Join(errs...)
}

// observe makes the metrics, the traces and the journal: every process has one of each.
func (all *parts) observe() (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: all.redis})
	all.later(func(context.Context) error { return rdb.Close() })
	if all.journal, err = journal.New(rdb, &journal.Config{All: true, Logger: quiet}); err != nil { // All: there is little to see
		return err
	}
	all.later(all.journal.Close)

	all.registry = prometheus.NewRegistry()
	if all.metrics, err = promobserver.New(all.registry, &promobserver.Config{
		KeyGroup: promobserver.FirstPart, JournalDropped: all.journal.Dropped,
	}); err != nil {
		return err
	}

	all.traces = new(traces.Traces)
	all.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(all.traces)) // in your program, use an OTLP exporter
	all.later(all.provider.Shutdown)
	all.tracer, err = otelobserver.NewTracer(all.provider, nil)
	return err
}

// open makes what a process of its own would have. The label is shown as the holder of its locks.
func (all *parts) open(ctx context.Context, label string) (*toolkit.Process, error) {
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: all.redis}, &toolkit.Config{
		Locks: &joblock.Config{
			Holder:   label,
			Observer: event.Observers(all.metrics, all.journal.Observe),
			Tracer:   all.tracer,
		},
		Logger: quiet,
	})
	if err != nil {
		return nil, err
	}
	all.later(p.Close)
	return p, p.Ping(ctx)
}
