package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

const (
	// jobType is the type of all tasks.
	jobType = "bench"

	// jobConcurrency is that of the asynq server.
	jobConcurrency = 10

	// jobPause is how long the asynq server sleeps when its queue is empty, and so how long
	// its end may take.
	jobPause = 20 * time.Millisecond

	// closeTimeout bounds the end of a measurement: hanging there is an error.
	closeTimeout = 10 * time.Second
)

// A jobMode is how jobs are enqueued and processed.
type jobMode string

const (
	bare     jobMode = "asynq alone"
	unlocked jobMode = "middleware, no lock"
	locked   jobMode = "middleware, one lock"
	lined    jobMode = "middleware, in sequences"
)

// lineJobs is how many jobs each sequence has, where the length of the sequences does not matter.
const lineJobs = 10

// columnProcessed is a title that Aims names.
const columnProcessed = "processed/s"

var jobColumns = []report.Column{
	{Title: columnProcessed, Ratio: true},
	{Title: "commands", Digits: 1},
	{Title: "own CPU µs", Digits: 1, Ratio: true},
	{Title: "server CPU µs", Digits: 1, Ratio: true},
}

func (b *Bench) jobs(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "jobs",
		Title: fmt.Sprintf("Jobs that do nothing: %d through asynq", b.count(0)),
		Note: fmt.Sprintf("Enqueued before, with a lock of their own by handoff's EnqueueUnique, and then processed with concurrency %d, with a lock: resume, "+
			"run, release. In sequences of %d jobs each, all but the first of which wait: resume, run, release, and start the next. The two bare "+
			"scripts are the least that an order of jobs takes: one when a job starts, and one after asynq has written its end, which runs the next. "+
			"Commands are those of one job, CPU is that of processing one; asynq's own house-keeping is among them.", jobConcurrency, lineJobs),
		Base:    string(bare),
		Columns: jobColumns,
	}
	return s, b.jobsOf(ctx, s, 0, b.Scale.Rounds, bare, locked, floored, lined)
}

func (b *Bench) work(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:    "work",
		Title:   fmt.Sprintf("Jobs that wait: %d through asynq", b.Scale.Jobs),
		Note:    fmt.Sprintf("The same with jobs that wait for so long as if for a database. %d rounds.", b.Scale.Few()),
		Base:    string(bare),
		Columns: jobColumns,
	}
	for _, work := range b.Scale.Work {
		if err := b.jobsOf(ctx, s, work, b.Scale.Few(), bare, unlocked, locked, lined); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// jobsOf adds the rows of jobs that take so long.
func (b *Bench) jobsOf(ctx context.Context, s *report.Section, work time.Duration, rounds int, modes ...jobMode) error {
	c := jobCase(work)
	b.say("%s, %s", s.Name, c)
	return eachRound(ctx, b, rounds, modes, func(_ int, mode jobMode) error {
		r, err := b.runJobs(ctx, mode, b.count(work), work)
		if err == nil {
			s.Add(c, string(mode), r.processed, r.commands, r.own, r.server)
		}
		return err
	})
}

// count is how many jobs are enqueued that take so long. A thousand that do nothing would be over in a tenth of a second,
// of which the server's start, and asynq's pauses near the end, where few sequences are left, are a fifth.
func (b *Bench) count(work time.Duration) int {
	if work > 0 {
		return b.Scale.Jobs
	}
	return 10 * b.Scale.Jobs
}

func jobCase(work time.Duration) string { return fmt.Sprintf("jobs of %s", work) }

// jobRates are per second; commands, and processor times in µs, are per job.
type jobRates struct{ processed, commands, own, server float64 }

// runJobs enqueues n jobs, then starts a server and waits until all have run, each
// for as long as work.
func (b *Bench) runJobs(ctx context.Context, mode jobMode, n int, work time.Duration) (r jobRates, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := b.newJobKit()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, k.close()) }()

	switch mode {
	case locked:
		err = k.enqueue(ctx, unique, keysOf("job", n+1))
	case lined:
		err = k.enqueueLines(ctx, keysOf("line", n/lineJobs+1), lineJobs)
		n = (n/lineJobs+1)*lineJobs - 1
	case floored:
		err = k.enqueueFloor(ctx, keysOf("line", n/lineJobs+1), lineJobs)
		n = (n/lineJobs+1)*lineJobs - 1
	default:
		err = k.enqueue(ctx, alone, keysOf("job", n+1))
	}
	if err != nil {
		return r, err
	}

	var left atomic.Int64
	left.Store(int64(n) + 1)
	done := make(chan struct{})
	server, mux := k.server(mode, asynq.Config{})
	mux.HandleFunc(jobType, func(ctx context.Context, _ *asynq.Task) error {
		if work > 0 {
			pause(ctx, work)
		}
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	})
	before, err := used(ctx, b.Server)
	if err != nil {
		return r, err
	}
	count, start := k.wire.Count(), time.Now()
	if err := server.Start(mux); err != nil {
		return r, err
	}
	defer server.Shutdown()
	select {
	case <-done:
	case <-ctx.Done():
		return r, fmt.Errorf("%d of %d jobs were not run: %w", left.Load(), n+1, context.Cause(ctx))
	}
	r.processed = rate(n+1, start)
	r.commands = float64(k.wire.Count().Sub(count).Commands) / float64(n+1)
	after, err := used(ctx, b.Server)
	cpu := after.since(before)
	r.own = micros(cpu.own) / float64(n+1)
	r.server = micros(cpu.server) / float64(n+1)
	return r, err
}

func rate(n int, start time.Time) float64 { return float64(n) / time.Since(start).Seconds() }

// jobKit is an application: asynq and this library on one client.
type jobKit struct {
	wire      rig.Wire
	rdb       *redis.Client
	locks     *joblock.Locker
	client    *asynq.Client
	inspector *asynq.Inspector
	jobs      *handoff.Client
	worker    *worker.Worker
}

func (b *Bench) newJobKit() (*jobKit, error) {
	k := new(jobKit)
	quiet := slog.New(slog.DiscardHandler)
	k.rdb = redis.NewClient(&redis.Options{Addr: b.Server.Addr(), Dialer: k.wire.Dial})
	k.client = asynq.NewClientFromRedisClient(k.rdb)
	k.inspector = asynq.NewInspectorFromRedisClient(k.rdb)
	var err error
	if k.locks, err = joblock.New(redisstore.New(k.rdb, nil), &joblock.Config{TTL: leaseTTL, Logger: quiet}); err != nil {
		return nil, errors.Join(err, k.rdb.Close())
	}
	k.jobs, err = handoff.NewClient(k.locks, k.client, k.inspector, &handoff.Config{Logger: quiet})
	if err == nil {
		k.worker, err = worker.New(k.locks, k.inspector, &worker.Config{Logger: quiet})
	}
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *jobKit) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if k.jobs != nil {
		err = k.jobs.Close(ctx)
	}
	if k.worker != nil {
		err = errors.Join(err, k.worker.Close(ctx))
	}
	return errors.Join(err, k.locks.Close(ctx), k.rdb.Close())
}

// server returns an asynq server that is not started yet, and the mux it needs. cfg may leave out what most
// measurements have in common.
func (k *jobKit) server(mode jobMode, cfg asynq.Config) (*asynq.Server, *asynq.ServeMux) {
	mux := asynq.NewServeMux()
	cfg.Logger = silence{}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, jobConcurrency)
	cfg.TaskCheckInterval = cmp.Or(cfg.TaskCheckInterval, jobPause)
	switch mode {
	case bare:
	case floored:
		mux.Use(k.floor)
	default:
		mux.Use(k.worker.Middleware)
		cfg = k.worker.Configure(cfg)
	}
	return asynq.NewServerFromRedisClient(k.rdb, cfg), mux
}

// silence is an asynq.Logger: by level alone asynq cannot be kept from saying good bye.
type silence struct{}

func (silence) Debug(...any)      {}
func (silence) Info(...any)       {}
func (silence) Warn(...any)       {}
func (silence) Error(...any)      {}
func (silence) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
