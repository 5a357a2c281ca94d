//go:build servers

package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/sqltest"
	"github.com/joblock/toolkit/outbox"
	"github.com/joblock/toolkit/outbox/pgxbox"
)

// writers is how many transactions run at a time, and workers how many jobs.
const (
	writers = 16
	workers = 32
)

// BenchmarkOutbox runs transactions that write an order and enqueue its job, on one PostgreSQL with the settings that a
// package of a distribution has: by an enqueue after the commit, which may be lost; by the outbox; by River's InsertTx
// with its own worker. First all at once, then one after the other, for the time from the commit to the start of the job.
func BenchmarkOutbox(b *testing.B) {
	addr := sqltest.Postgres(b)
	server := redistest.Start(b)
	pool, err := pgxpool.New(b.Context(), addr+" pool_max_conns=40")
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(b.Context(), "CREATE TABLE orders (id bigint PRIMARY KEY)"); err != nil {
		b.Fatal(err)
	}
	for _, way := range inAnyOrder("enqueue", "unique", "sequence", "river", "river5ms") {
		b.Run("way="+way, func(b *testing.B) {
			flush(b, server.Client(b))
			o := &orders{pool: pool, started: make(chan int64, 1)}
			stop := o.begin(b, way, addr, server.Addr())
			defer stop()
			o.all.Store(int64(b.N))
			o.done = make(chan struct{})
			used := cpu()
			b.ResetTimer()
			var writing sync.WaitGroup
			var next atomic.Int64
			for range writers {
				writing.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if err := o.write(b.Context()); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			writing.Wait()
			written := b.Elapsed()
			<-o.done
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(1000*(cpu()-used).Seconds()/float64(b.N), "cpu-ms/job") // application, Redis and PostgreSQL
			b.ReportMetric(float64(b.N)/written.Seconds(), "commits/s")
			o.one.Store(true)
			took := make([]time.Duration, min(b.N, 300))
			for i := range took {
				time.Sleep(5 * time.Millisecond)
				if err := o.write(b.Context()); err != nil {
					b.Fatal(err)
				}
				took[i] = time.Duration(<-o.started - o.committed.Load())
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// orders is a way to write orders, each with its job.
type orders struct {
	pool      *pgxpool.Pool
	enqueue   func(ctx context.Context, tx pgx.Tx, id int64) error // in the transaction, or nil
	after     func(ctx context.Context, id int64) error            // after the commit, or nil
	committed atomic.Int64                                         // Unix nanoseconds of the last commit

	all, ran atomic.Int64
	done     chan struct{} // closed when all have run
	one      atomic.Bool   // orders are written one after the other
	started  chan int64    // when the job of such an order has started
}

var lastOrder atomic.Int64

func (o *orders) write(ctx context.Context) error {
	id := lastOrder.Add(1)
	tx, err := o.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
		return err
	}
	if o.enqueue != nil {
		if err := o.enqueue(ctx, tx, id); err != nil {
			return err
		}
	}
	// The job may start before Commit returns. What counts is the time for which the job can exist.
	o.committed.Store(time.Now().UnixNano())
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if o.after != nil {
		return o.after(ctx, id)
	}
	return nil
}

// run is the job.
func (o *orders) run() {
	if o.one.Load() {
		o.started <- time.Now().UnixNano()
	} else if o.ran.Add(1) == o.all.Load() {
		close(o.done)
	}
}

type orderArgs struct {
	ID int64 `json:"id"`
}

func (orderArgs) Kind() string { return "order" }

type orderWorker struct {
	river.WorkerDefaults[orderArgs]
	o *orders
}

func (w *orderWorker) Work(context.Context, *river.Job[orderArgs]) error {
	w.o.run()
	return nil
}

// begin starts the workers of a way.
func (o *orders) begin(b *testing.B, way, addr, redisAddr string) (stop func()) {
	b.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	if strings.HasPrefix(way, "river") {
		driver := riverpgxv5.New(o.pool)
		migrator, err := rivermigrate.New(driver, nil)
		check(err)
		_, err = migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil)
		check(err)
		all := river.NewWorkers()
		river.AddWorker(all, &orderWorker{o: o})
		cfg := &river.Config{
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}, Workers: all, Logger: quiet,
		}
		if way == "river5ms" {
			cfg.FetchCooldown = 5 * time.Millisecond // default 100 ms, which bounds how many jobs a second it fetches
		}
		client, err := river.NewClient(driver, cfg)
		check(err)
		check(client.Start(context.Background()))
		o.enqueue = func(ctx context.Context, tx pgx.Tx, id int64) error {
			_, err := client.InsertTx(ctx, tx, orderArgs{ID: id}, nil)
			return err
		}
		return func() { check(client.Stop(context.Background())) }
	}
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: redisAddr}, &toolkit.Config{Logger: quiet})
	check(err)
	s, err := p.NewServer(asynq.Config{Concurrency: workers, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond})
	check(err)
	check(s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { o.run(); return nil })))
	job := func(id int64) (handoff.How, *asynq.Task) {
		task := asynq.NewTask("order", fmt.Appendf(nil, `{"id":%d}`, id))
		if way == "sequence" {
			return handoff.Sequence{Key: fmt.Sprint("customer:", id%100)}, task
		}
		return handoff.Unique{Key: fmt.Sprint("order:", id)}, task
	}
	if way == "enqueue" {
		o.after = func(ctx context.Context, id int64) error {
			how, task := job(id)
			_, err := p.Jobs.Enqueue(ctx, how, task)
			return err
		}
		return func() { check(p.Close(context.Background())) }
	}
	db := stdlib.OpenDBFromPool(o.pool)
	check(outbox.Migrate(b.Context(), db, outbox.Postgres))
	box, err := outbox.New(p.Jobs, db, outbox.Postgres, &outbox.Config{Listen: pgxbox.Listen(addr), Logger: quiet})
	check(err)
	p.Go(box.Run)
	o.enqueue = func(ctx context.Context, tx pgx.Tx, id int64) error {
		how, task := job(id)
		_, err := box.Enqueue(ctx, pgxbox.Tx(tx), how, task)
		return err
	}
	return func() {
		check(p.Close(context.Background()))
		check(db.Close())
	}
}
