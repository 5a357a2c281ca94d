// Package demo is a small company in one process, with a Redis of its own, on which every command of joblock can be
// tried: locks that are held, parked and orphaned, lines of waiters, permits, jobs of asynq with their locks,
// sequences, and cron jobs. Everything is kept in memory, and is gone when the process ends.
//
//	key               what happens
//	deploy:shop       two deployments at a time are asked for; each has the lock for half a minute, the other one waits
//	report:monthly    a process takes the lock, renews its lease, and dies; the lock is free when the lease ends; and so on
//	import:prices     is parked for a task that does not exist; the keeper frees the key
//	geocoder          three permits for five callers
//	export:acct-N     one job per account; acct-3 fails at the first attempt, acct-5 at every attempt
//	webhooks:shop-N   a sequence of jobs per shop; that of shop-2 grows, because its jobs take long
//	stuck:invoices    a job whose handler does not end for ten minutes
//	reindex:catalog   hangs every two minutes, and an operator on call forces it
//
// The scope of the cron jobs is Scope. The journal has all these events, and how each cron job ended; the job "rates"
// fails at every third run, beginning with the first. The audit has the operators' actions.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// Scope is the scope of the demo's cron jobs.
const Scope = "demo"

// Run runs the demo with a Redis on a port of 127.0.0.1, or on any free port if port is 0. Once everything runs, it
// calls ready with the Redis URL. When ctx ends, Run stops everything and returns nil. An error says what did
// not start, or did not end within a few seconds.
func Run(ctx context.Context, port int, ready func(url string)) error {
	return run(ctx, port, 1, ready)
}

// run is Run with people who are pace times as fast.
func run(ctx context.Context, port int, pace time.Duration, ready func(url string)) error {
	embedded := miniredis.NewMiniRedis()
	embedded.ClockTTL(true)
	if err := embedded.StartAddr(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
		return fmt.Errorf("start the embedded Redis: %w", err)
	}
	defer embedded.Close()
	c, err := found(embedded.Addr(), pace)
	if err == nil {
		err = c.work(ctx, func() { ready("redis://" + embedded.Addr()) })
	}
	return errors.Join(err, c.close())
}

// company has what all parts of the demo share.
type company struct {
	addr      string
	pace      time.Duration   // how many times as fast people are
	ctx       context.Context // the context of everything in the demo; ends when the demo ends
	stop      context.CancelFunc
	happening sync.WaitGroup
	lockers   []*joblock.Locker
	journals  []*journal.Journal
	closers   []func() error // the clients of Redis
	client    *asynq.Client
	inspector *asynq.Inspector
	rated     atomic.Int64 // how often the job "rates" has run
}

func found(addr string, pace time.Duration) (*company, error) {
	c := &company{addr: addr, pace: pace}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.client, c.inspector = asynq.NewClient(c.redis()), asynq.NewInspector(c.redis())
	c.closers = append(c.closers, c.client.Close, c.inspector.Close)
	return c, nil
}

func (c *company) redis() asynq.RedisClientOpt { return asynq.RedisClientOpt{Addr: c.addr} }

// quiet keeps the log lines of the libraries out of the demo.
var quiet = slog.New(slog.DiscardHandler)

// locker makes the Locker of a process, whose label is shown as the holder.
func (c *company) locker(label string) (*joblock.Locker, error) {
	p, err := c.process(label)
	return p.locks, err
}

// process is a process of the demo.
type process struct {
	rdb    *redis.Client
	locks  *joblock.Locker
	events *journal.Journal
}

func (c *company) process(label string) (process, error) {
	p, err := newProcess(label, &redis.Options{Addr: c.addr})
	if err == nil {
		c.lockers, c.journals, c.closers = append(c.lockers, p.locks), append(c.journals, p.events), append(c.closers, p.rdb.Close)
	}
	return p, err
}

// newProcess makes a process, whose label is shown as the holder.
func newProcess(label string, opts *redis.Options) (p process, err error) {
	p.rdb = redis.NewClient(opts)
	p.events, err = journal.New(p.rdb, &journal.Config{All: true, Source: label, Logger: quiet})
	var store driver.Store
	if err == nil {
		store, err = redisstore.New(p.rdb, nil)
	}
	if err == nil {
		p.locks, err = joblock.New(store, &joblock.Config{Holder: label, Logger: quiet, WatchForced: true, Observer: p.events.Observe})
	}
	if err != nil {
		return p, errors.Join(err, p.close(context.Background()))
	}
	return p, nil
}

// close ends a process from newProcess, even an incomplete one.
func (p process) close(ctx context.Context) (err error) {
	if p.locks != nil {
		err = errors.Join(err, p.locks.Close(ctx))
	}
	if p.events != nil {
		err = errors.Join(err, p.events.Close(ctx))
	}
	return errors.Join(err, p.rdb.Close())
}

// work starts everything, and returns after ctx has ended.
func (c *company) work(ctx context.Context, ready func()) error {
	stopJobs := func() error { return nil }
	var err error
	for _, begin := range []func() error{
		c.people,
		func() (err error) { stopJobs, err = c.jobs(); return err },
		c.clock,
	} {
		if err = begin(); err != nil {
			break
		}
	}
	if err == nil {
		ready()
		<-ctx.Done()
	}
	c.stop()
	return errors.Join(err, stopJobs())
}

// patience bounds the shutdown of the demo.
const patience = 5 * time.Second

func (c *company) close() error {
	if c == nil {
		return nil
	}
	c.stop()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := make(chan struct{})
	go func() { c.happening.Wait(); close(ended) }()
	var errs []error
	select {
	case <-ended:
	case <-ctx.Done():
		errs = append(errs, errors.New("part of the demo did not end"))
	}
	for _, locks := range c.lockers {
		errs = append(errs, locks.Close(ctx))
	}
	for _, events := range c.journals {
		errs = append(errs, events.Close(ctx))
	}
	for _, close := range c.closers {
		if err := close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// happens calls do repeatedly until the demo ends. do returns the pause before the next call.
func (c *company) happens(do func(ctx context.Context) time.Duration) {
	c.happening.Go(func() {
		for c.ctx.Err() == nil {
			c.pause(do(c.ctx))
		}
	})
}

// pause returns after d at the pace of the company, or when the demo ends.
func (c *company) pause(d time.Duration) {
	select {
	case <-time.After(d / c.pace):
	case <-c.ctx.Done():
	}
}
