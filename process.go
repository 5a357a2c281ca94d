package toolkit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/life"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// pingTimeout is how long Ping waits for Redis.
const pingTimeout = 5 * time.Second

// pingKey is the key whose record Ping reads. It is never locked.
const pingKey = "toolkit:ping"

// Config configures a Process. The zero value of each field means its default.
type Config struct {
	// Locks configures the Locker. Default: all defaults of joblock.Config.
	Locks *joblock.Config

	// Redis says where in asynq's Redis the locks are, and how safe they are there. All processes must have the same
	// Prefix. Default: all defaults of redisstore.Config. With Store, Redis must be nil.
	Redis *redisstore.Config

	// Store keeps the locks elsewhere: in another Redis, or in memory for tests. Close closes Store. All processes must
	// use the same place. Default: a store of package redisstore in asynq's Redis.
	Store driver.Store

	// Jobs configures the handoff.Client. Default: all defaults of handoff.Config.
	Jobs *handoff.Config

	// Worker configures the worker.Worker of each server of NewServer. Default: all defaults of worker.Config.
	Worker *worker.Config

	// Logger is used by each part whose own Config has no Logger. Default slog.Default().
	Logger *slog.Logger
}

// Process holds everything that one operating-system process needs for its locks. Make a Process with New, and Close it
// when the program stops. A Process is safe for concurrent use. Do not close its fields, and do not change them.
type Process struct {
	Redis     redis.UniversalClient
	Locks     *joblock.Locker
	Jobs      *handoff.Client
	Client    *asynq.Client
	Inspector *asynq.Inspector

	owned  bool // Close closes Redis
	worker *worker.Config
	logger *slog.Logger
	life   *life.Life // counts the functions of Go

	mu      sync.Mutex // guards the fields below
	closed  bool
	servers []*Server
	failed  []error // errors of functions of Go, of keepers and of Shutdown
}

// New returns a Process on the Redis of redisOpt. New does not connect to Redis: use Ping to find out whether Redis
// answers. cfg may be nil. Jobs, Client, Inspector and the servers of NewServer share one go-redis client with the
// options in redisOpt. The locks have connections of their own, with the same options.
//
// New returns joblock.ErrInvalid if redisOpt is nil or makes no go-redis client, or if a field of cfg is out of bounds.
// NewServer, not New, checks Config.Worker.
func New(redisOpt asynq.RedisConnOpt, cfg *Config) (*Process, error) {
	if redisOpt == nil {
		return nil, invalid(opNew, "the options of asynq are nil")
	}
	made := redisOpt.MakeRedisClient()
	rdb, ok := made.(redis.UniversalClient)
	if !ok {
		return nil, invalid(opNew, "asynq.RedisConnOpt %T made a %T, must make a redis.UniversalClient of go-redis v9", redisOpt, made)
	}
	p, err := NewFromRedisClient(rdb, cfg)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	p.owned = true
	return p, nil
}

// NewFromRedisClient is like New, but uses an existing go-redis client, as asynq.NewClientFromRedisClient does. Jobs,
// Client, Inspector and the servers share rdb, and the locks have connections of their own with its options. Close does
// not close rdb. NewFromRedisClient also returns joblock.ErrInvalid if rdb is nil.
func NewFromRedisClient(rdb redis.UniversalClient, cfg *Config) (*Process, error) {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, invalid(opNew, "the Redis client is nil")
	}
	if cfg == nil {
		cfg = &Config{}
	}
	p := &Process{
		Redis: rdb, Client: asynq.NewClientFromRedisClient(rdb), Inspector: asynq.NewInspectorFromRedisClient(rdb),
		logger: cfg.Logger, worker: cfg.Worker,
	}
	if p.logger == nil {
		p.logger = slog.Default()
	}
	if err := p.open(cfg); err != nil {
		return nil, err
	}
	p.life = life.New()
	return p, nil
}

// open makes the parts that need a Locker.
func (p *Process) open(cfg *Config) error {
	if cfg.Store != nil && cfg.Redis != nil {
		return errors.Join(
			invalid(opNew, "Config.Store and Config.Redis are both set: Redis says how the default Store keeps locks"), cfg.Store.Close())
	}
	store := cfg.Store
	if store == nil {
		var err error
		if store, err = redisstore.New(p.Redis, cfg.Redis); err != nil {
			return fmt.Errorf("toolkit: %w", err)
		}
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
		return errors.Join(fmt.Errorf("toolkit: %w", err), store.Close())
	}
	if p.Jobs, err = handoff.NewClient(p.Locks, p.Client, p.Inspector, &jobs); err != nil {
		return errors.Join(fmt.Errorf("toolkit: %w", err), p.Locks.Close(context.Background()))
	}
	return nil
}

// Ping pings asynq's Redis and reads the record of a lock that is never taken, to find out whether asynq and the locks
// can be used.
//
//	joblock.ErrInvalid      p was not made by New
//	joblock.ErrUnavailable  Redis or the Store did not answer within five seconds, or refused the call: for example, the
//	                        address or the password is wrong
//	joblock.ErrClosed       after Close
//	the cause of ctx        ctx has ended
func (p *Process) Ping(ctx context.Context) error {
	if !p.made() {
		return notMade("ping")
	}
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return ended("ping")
	}
	bounded, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := p.Redis.Ping(bounded).Err()
	if err != nil {
		err = &joblock.Error{
			Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "ping", Err: err, Detail: "no usable Redis at " + address(p.Redis),
		}
	} else {
		_, err = p.Locks.Status(bounded, pingKey)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("toolkit: %w", err)
}

// address returns the address of the Redis of rdb, as far as rdb reveals it.
func address(rdb redis.UniversalClient) string {
	switch c := rdb.(type) {
	case *redis.Client:
		return fmt.Sprintf("%s, database %d", c.Options().Addr, c.Options().DB)
	case *redis.ClusterClient:
		return fmt.Sprint(c.Options().Addrs)
	}
	return fmt.Sprintf("the address of a %T", rdb)
}

// Go calls f in a goroutine. The context of f ends when Close begins, and Close waits for f: p.Go(s.Run) runs a
// scheduler. An error of f is logged at once, and Close returns it too. After Close, Go does not call f.
func (p *Process) Go(f func(ctx context.Context) error) {
	if !p.made() {
		return
	}
	p.life.TryGo(func() {
		if err := f(p.life.Context()); err != nil {
			p.fail("a function started with Go", err)
		}
	})
}

// Close ends all parts, in the order that the package comment gives. ctx bounds the wait. Give ctx a few seconds more
// than asynq.Config.ShutdownTimeout, 8 s by default, and, if Go runs a Scheduler, more than scheduler.Config.Grace, 30
// s by default. When ctx ends, Close no longer waits for what still runs. A second Close does nothing and returns nil,
// and so does Close of a nil Process.
func (p *Process) Close(ctx context.Context) error {
	if !p.made() {
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
	var errs []error
	if err := p.life.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("toolkit: a function started with Go did not return in time: %w", err))
	}
	var down sync.WaitGroup
	for _, s := range servers {
		down.Go(s.Server.Shutdown)
	}
	down.Wait()
	for _, s := range servers {
		errs = append(errs, s.close(ctx))
	}
	errs = append(errs, p.Jobs.Close(ctx), p.Locks.Close(ctx))
	if p.owned {
		errs = append(errs, p.Redis.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.failed...)...)
}

// made reports whether New made p.
func (p *Process) made() bool { return p != nil && p.life != nil }

// fail logs err, the error of the background task that what names. Close returns the error too.
func (p *Process) fail(what string, err error) {
	p.logger.Error("toolkit: "+what+" has failed", "err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = append(p.failed, fmt.Errorf("toolkit: %s: %w", what, err))
}

const opNew = "new"

func invalid(op, format string, args ...any) error {
	return fmt.Errorf("toolkit: %w", &joblock.Error{
		Code: joblock.CodeOf(joblock.ErrInvalid), Op: op, Detail: fmt.Sprintf(format, args...),
	})
}

func notMade(op string) error { return invalid(op, "the Process was not made by New") }

// ended is the error of a call after Close.
func ended(op string) error {
	return fmt.Errorf("toolkit: %w", &joblock.Error{Code: joblock.CodeOf(joblock.ErrClosed), Op: op})
}
