// Package demo is a small company in one process, with a Redis of its own, on which every command of joblock can be
// tried: locks that are held, parked and orphaned, lines of waiters, permits, jobs of asynq with their locks, sequences,
// and jobs by the clock. Everything is kept in memory, and is gone when the process ends.
//
//	key               what happens
//	deploy:shop       two deployments at a time are asked for; each has the lock for half a minute, the other one waits
//	report:monthly    somebody takes the lock and dies, again and again; the lock is free when the lease ends
//	import:prices     is parked for a task that does not exist; the keeper frees the key
//	geocoder          three permits for five callers
//	export:acct-N     one job per account; acct-3 fails at the first attempt, acct-5 at every attempt
//	webhooks:shop-N   a sequence of jobs per shop; that of shop-2 grows, because its jobs take long
//	stuck:invoices    a job whose handler does not end for ten minutes
//	reindex:catalog   hangs every two minutes, and somebody on call forces it
//
// The scope of the jobs by the clock is Scope. The journal has all of that, and how each cron job has ended; the job "rates"
// fails at every third run, the first one included. The audit has what people did.
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
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// Scope is the scope of the demo's jobs by the clock.
const Scope = "demo"

// Run begins the demo with a Redis on a port of 127.0.0.1, or on any free port if port is 0. When everything moves, Run
// calls ready with the URL of the Redis. Run ends everything when ctx ends, and then returns nil. An error says what did
// not start, or did not end within a few seconds.
func Run(ctx context.Context, port int, ready func(url string)) error {
	embedded := miniredis.NewMiniRedis()
	embedded.ClockTTL(true)
	if err := embedded.StartAddr(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
		return fmt.Errorf("start the embedded Redis: %w", err)
	}
	defer embedded.Close()
	c, err := found(embedded.Addr())
	if err == nil {
		err = c.work(ctx, func() { ready("redis://" + embedded.Addr()) })
	}
	return errors.Join(err, c.close())
}

// The type company has what all parts of the demo share.
type company struct {
	addr      string
	ctx       context.Context // of everything that happens; ends when the demo ends
	stop      context.CancelFunc
	happening sync.WaitGroup
	lockers   []*joblock.Locker
	journals  []*journal.Journal
	closers   []func() error // the clients of Redis
	client    *asynq.Client
	inspector *asynq.Inspector
	rated     atomic.Int64 // how often the job "rates" has run
}

func found(addr string) (*company, error) {
	c := &company{addr: addr}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.client, c.inspector = asynq.NewClient(c.redis()), asynq.NewInspector(c.redis())
	c.closers = append(c.closers, c.client.Close, c.inspector.Close)
	return c, nil
}

func (c *company) redis() asynq.RedisClientOpt { return asynq.RedisClientOpt{Addr: c.addr} }

// quiet keeps the log lines of the libraries out of the demo.
var quiet = slog.New(slog.DiscardHandler)

// The method locker makes the Locker of a process. People see the label as the holder.
func (c *company) locker(label string) (*joblock.Locker, error) {
	p, err := c.process(label)
	return p.locks, err
}

// The type process is a process of the demo.
type process struct {
	rdb    *redis.Client
	locks  *joblock.Locker
	events *journal.Journal
}

func (c *company) process(label string) (p process, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: c.addr})
	c.closers = append(c.closers, rdb.Close)
	events, err := journal.New(rdb, &journal.Config{All: true, Source: label, Logger: quiet})
	if err != nil {
		return p, err
	}
	c.journals = append(c.journals, events)
	locks, err := joblock.New(redisstore.New(rdb, nil), &joblock.Config{Holder: label, Logger: quiet, WatchForced: true, Observer: events.Observe})
	if err != nil {
		return p, err
	}
	c.lockers = append(c.lockers, locks)
	return process{rdb, locks, events}, nil
}

// The method work begins everything, and returns after the end of ctx.
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

// patience bounds the end of the demo.
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
		errs = append(errs, errors.New("something of the demo did not end"))
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

// The method happens runs the function do, again and again, until the demo ends. The function do returns the pause until
// it is called again.
func (c *company) happens(do func(ctx context.Context) time.Duration) {
	c.happening.Go(func() {
		for c.ctx.Err() == nil {
			c.pause(do(c.ctx))
		}
	})
}

// The method pause returns after d, or when the demo ends.
func (c *company) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
	}
}
