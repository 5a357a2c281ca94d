package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// openTimeout is how long Open waits for Redis.
const openTimeout = 5 * time.Second

// Config configures a Process. The zero value of each field means its default.
type Config struct {
	// Locks configures the Locker. Default: all defaults of joblock.Config.
	Locks *joblock.Config

	// Redis says where in asynq's Redis the locks are, and how safe they are there. All processes must have the same
	// Prefix. Default: all defaults of redisstore.Config. With Store, Redis must be nil.
	Redis *redisstore.Config

	// Store keeps the locks elsewhere: in another Redis, or in memory for tests. Close closes Store. All processes must
	// use the same place. Default: a redisstore.Store in asynq's Redis.
	Store driver.Store

	// Jobs configures the handoff.Client. Default: all defaults of handoff.Config.
	Jobs *handoff.Config

	// Logger is for each part whose own Config has no Logger. Default slog.Default().
	Logger *slog.Logger
}

// Process is what one process needs for its locks. Make a Process with Open, and Close it when the process stops. A
// Process is safe for concurrent use. Do not close its fields, and do not change them.
type Process struct {
	Redis     redis.UniversalClient
	Locks     *joblock.Locker
	Jobs      *handoff.Client
	Client    *asynq.Client
	Inspector *asynq.Inspector

	logger *slog.Logger
	work   context.Context // of the functions of Go
	stop   context.CancelFunc

	mu      sync.Mutex // guards the fields below
	closed  bool
	servers []*Server
	failed  []error // of functions of Go and of keepers
	running sync.WaitGroup
}

// Open makes a Process on the Redis of redisOpt, and asks that Redis for a PING. cfg may be nil. Jobs, Client,
// Inspector and the servers of NewServer share one go-redis client with the options in redisOpt. The locks have
// connections of their own, with the same options.
//
// Errors, after which nothing is left open:
//
//	joblock.ErrInvalid      redisOpt is nil or makes no go-redis client, or a field of cfg is out of bounds
//	joblock.ErrUnavailable  Redis has not answered within five seconds, or refuses: a wrong address or password
//	the cause of ctx        ctx has ended
func Open(ctx context.Context, redisOpt asynq.RedisConnOpt, cfg *Config) (*Process, error) {
	if redisOpt == nil {
		return nil, invalid("the options of asynq are nil")
	}
	if cfg == nil {
		cfg = &Config{}
	}
	if cfg.Store != nil && cfg.Redis != nil {
		return nil, invalid("Config.Store and Config.Redis are both set: Redis says how the default Store keeps locks")
	}
	made := redisOpt.MakeRedisClient()
	rdb, ok := made.(redis.UniversalClient)
	if !ok {
		return nil, invalid("the options of asynq, a %T, make a %T, which is no go-redis v9 client", redisOpt, made)
	}
	p := &Process{
		Redis: rdb, Client: asynq.NewClientFromRedisClient(rdb), Inspector: asynq.NewInspectorFromRedisClient(rdb),
		logger: cfg.Logger,
	}
	if p.logger == nil {
		p.logger = slog.Default()
	}
	p.work, p.stop = context.WithCancel(context.Background())
	err := p.ping(ctx)
	if err == nil {
		err = p.open(cfg)
	}
	if err != nil {
		p.stop()
		return nil, errors.Join(err, rdb.Close())
	}
	return p, nil
}

// ping asks Redis for an answer.
func (p *Process) ping(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := p.Redis.Ping(bounded).Err()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("process: %w", &joblock.Error{
		Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "open", Err: err,
		Detail: fmt.Sprintf("no usable Redis at %s", address(p.Redis)),
	})
}

// address returns where rdb finds its Redis, as far as rdb tells.
func address(rdb redis.UniversalClient) string {
	switch c := rdb.(type) {
	case *redis.Client:
		return fmt.Sprintf("%s, database %d", c.Options().Addr, c.Options().DB)
	case *redis.ClusterClient:
		return fmt.Sprint(c.Options().Addrs)
	}
	return fmt.Sprintf("the address of a %T", rdb)
}

// open makes the parts that need a Locker.
func (p *Process) open(cfg *Config) error {
	store := cfg.Store
	if store == nil {
		store = redisstore.New(p.Redis, cfg.Redis)
	}
	var locks joblock.Config
	if cfg.Locks != nil {
		locks = *cfg.Locks
	}
	if locks.Logger == nil {
		locks.Logger = p.logger
	}
	var jobs handoff.Config
	if cfg.Jobs != nil {
		jobs = *cfg.Jobs
	}
	if jobs.Logger == nil {
		jobs.Logger = p.logger
	}
	var err error
	if p.Locks, err = joblock.New(store, &locks); err != nil {
		return errors.Join(err, store.Close())
	}
	if p.Jobs, err = handoff.NewClient(p.Locks, p.Client, p.Inspector, &jobs); err != nil {
		return errors.Join(err, p.Locks.Close(context.Background()))
	}
	return nil
}

// Go calls f in a goroutine. The context of f ends when Close begins, and Close waits for f: p.Go(s.Run) runs a
// scheduler. An error of f is logged at once, and is part of the error of Close. After Close, Go does not call f.
func (p *Process) Go(f func(ctx context.Context) error) {
	if !p.opened() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.running.Go(func() {
		if err := f(p.work); err != nil {
			p.fail("a function of Go", err)
		}
	})
}

// Close ends all parts, in the order in the package comment. ctx bounds the wait: give it some seconds more than the
// ShutdownTimeout of asynq.Config, 8 s by default. A second Close does nothing and returns nil, and so does Close of a
// nil Process, such as the result of an Open that has failed.
func (p *Process) Close(ctx context.Context) error {
	if !p.opened() {
		return nil
	}
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	servers := slices.Clone(p.servers)
	p.mu.Unlock()
	if closed {
		return nil
	}
	p.stop()
	errs := []error{p.await(ctx)}
	var down sync.WaitGroup
	for _, s := range servers {
		down.Go(s.Shutdown)
	}
	down.Wait()
	for _, s := range servers {
		errs = append(errs, s.close(ctx))
	}
	errs = append(errs, p.Jobs.Close(ctx), p.Locks.Close(ctx), p.Redis.Close())
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.failed...)...)
}

// opened reports whether Open has made p.
func (p *Process) opened() bool { return p != nil && p.stop != nil }

// await waits for the functions of Go.
func (p *Process) await(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.running.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("process: a function of Go has not returned: %w", context.Cause(ctx))
	}
	return nil
}

// fail logs an error of what, which runs in the background. Close returns the error.
func (p *Process) fail(what string, err error) {
	p.logger.Error("process: "+what+" has failed", "err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = append(p.failed, fmt.Errorf("process: %s: %w", what, err))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("process: %w", &joblock.Error{
		Code: joblock.CodeOf(joblock.ErrInvalid), Op: "open", Detail: fmt.Sprintf(format, args...),
	})
}
