package trial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/worker"
)

const (
	taskType     = "bench"
	concurrency  = 10 // of each asynq server
	closeTimeout = 10 * time.Second
)

// process is one process of a fleet: a Locker, and what enqueues or runs jobs.
type process struct {
	toLocks, toAsynq rig.Wire
	rdb              redis.UniversalClient // of the locks
	asynqRdb         *redis.Client
	locks            *joblock.Locker
	jobs             *handoff.Client
	ended            []func(context.Context) error // in the order of the end
}

func (f *Fleet) newProcess(l Load) (*process, error) {
	p := new(process)
	if len(f.Locks) == 1 {
		p.rdb = redis.NewClient(&redis.Options{Addr: f.Locks[0].Addr(), PoolSize: poolSize, Dialer: p.toLocks.Dial})
	} else {
		o := &redis.ClusterOptions{PoolSize: poolSize, Dialer: p.toLocks.Dial}
		for _, s := range f.Locks {
			o.Addrs = append(o.Addrs, s.Addr())
		}
		p.rdb = redis.NewClusterClient(o)
	}
	p.asynqRdb = redis.NewClient(&redis.Options{Addr: f.Asynq.Addr(), PoolSize: poolSize, Dialer: p.toAsynq.Dial})
	var err error
	p.locks, err = joblock.New(redisstore.New(p.rdb, nil), &joblock.Config{
		TTL: l.TTL, Poll: l.Poll, Retain: l.Retain, JobGrace: l.Grace, Logger: quiet,
	})
	if err != nil {
		return nil, errors.Join(err, p.rdb.Close(), p.asynqRdb.Close())
	}
	return p, nil
}

var quiet = slog.New(slog.DiscardHandler)

// newWeb returns a process that enqueues.
func (f *Fleet) newWeb(l Load) (*process, error) {
	p, err := f.newProcess(l)
	if err != nil {
		return nil, err
	}
	p.jobs, err = handoff.NewClient(p.locks, asynq.NewClientFromRedisClient(p.asynqRdb), asynq.NewInspectorFromRedisClient(p.asynqRdb),
		&handoff.Config{Reserve: max(l.Reserve, 10*time.Second), Logger: quiet})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.ended = append(p.ended, p.jobs.Close)
	return p, nil
}

// newWorker returns a process that runs jobs, a keeper and cron entries.
func (f *Fleet) newWorker(ctx context.Context, l Load) (_ *process, err error) {
	p, err := f.newProcess(l)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	w, err := worker.New(p.locks, asynq.NewInspectorFromRedisClient(p.asynqRdb), &worker.Config{
		Every: l.Every, Reserve: l.Reserve, Keepers: l.Keepers, Share: l.Share, Logger: quiet,
	})
	if err != nil {
		return nil, err
	}
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc(taskType, func(ctx context.Context, _ *asynq.Task) error {
		pause(ctx, l.Work)
		f.ran.Add(1)
		return ctx.Err()
	})
	server := asynq.NewServerFromRedisClient(p.asynqRdb, w.Configure(asynq.Config{
		Concurrency: concurrency, Logger: silence{}, ShutdownTimeout: time.Second,
	}))
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(ctx)
	keeper := make(chan error, 1)
	go func() { keeper <- w.Run(background) }()
	p.ended = append(p.ended, func(context.Context) error { server.Shutdown(); return nil }, w.Close,
		func(context.Context) error { stop(); return <-keeper })
	f.keepers = append(f.keepers, w)
	if l.Cron == 0 {
		return p, nil
	}
	nodes, err := scheduler.New(p.locks, &scheduler.Config{Scope: "bench", Concurrency: max(100, l.Cron), Logger: quiet})
	if err != nil {
		return nil, err
	}
	for i := range l.Cron {
		err := nodes.Func(fmt.Sprint("entry", i), "@every "+l.CronEvery.String(), func(context.Context) error {
			f.ticked.Add(1)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	ticks := make(chan error, 1)
	go func() { ticks <- nodes.Run(background) }()
	p.ended = append(p.ended, func(context.Context) error { return <-ticks })
	return p, nil
}

func (p *process) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, end := range p.ended {
		errs = append(errs, end(ctx))
	}
	return errors.Join(append(errs, p.locks.Close(ctx), p.rdb.Close(), p.asynqRdb.Close())...)
}

// silence is an asynq.Logger.
type silence struct{}

func (silence) Debug(...any)      {}
func (silence) Info(...any)       {}
func (silence) Warn(...any)       {}
func (silence) Error(...any)      {}
func (silence) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// pause sleeps, but not beyond the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
