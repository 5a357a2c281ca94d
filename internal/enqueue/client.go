// Package enqueue is the engine of handoff.Client: it enqueues tasks of asynq that carry locks. Package handoff has the
// documentation of each call. The lock server makes calls that handoff does not offer: see Request.
//
// A kind is a way in which a job gets its lock. Each kind has a file of its own: carry.go, unique.go with conflict.go and
// replace.go, permit.go, debounce.go, sequence.go and chain.go. All kinds take the same path: request.go or many.go,
// task.go, batch.go, send.go, outcome.go.
package enqueue

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/life"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Config is handoff.Config.
type Config struct {
	Reserve time.Duration
	Logger  *slog.Logger
}

const (
	// minReserve leaves the keeper time to extend a reservation. The keeper does so when half of the reservation has
	// passed, or up to a second later.
	minReserve = 10 * time.Second

	defaultReserve = time.Hour
)

// Client is handoff.Client.
type Client struct {
	locks     *joblock.Locker
	ring      *seal.Ring // the keys of locks
	client    *asynq.Client
	inspector *asynq.Inspector
	reserve   time.Duration
	logger    *slog.Logger

	moves   *asynqprivate.Inspector // of tasks, in asynq's Redis
	starter *jobline.Starter        // frees keys, and starts the jobs that get them from this Client
	turns   turns                   // of calls that may replace a job
	life    *life.Life              // counts the watches, lookAfter, and starts of jobs, for which Close waits
	senders *life.Pool              // of enqueues that outlive their callers; Close does not wait for them

	mu      sync.Mutex // guards the fields below
	watches int
	unkept  unkept
}

// New is handoff.NewClient.
func New(locks *joblock.Locker, client *asynq.Client, inspector *asynq.Inspector, cfg *Config) (*Client, error) {
	const op = "new client"
	ring := ringOf(locks)
	switch {
	case ring == nil:
		return nil, Invalid(op, "", "the Locker is nil or was not made by joblock.New")
	case client == nil:
		return nil, Invalid(op, "", "the asynq client is nil")
	case inspector == nil:
		return nil, Invalid(op, "", "the asynq inspector is nil")
	}
	if cfg == nil {
		cfg = &Config{}
	}
	if cfg.Reserve != 0 && (cfg.Reserve < minReserve || cfg.Reserve > driver.MaxPeriod) {
		return nil, Invalid(op, "", "Config.Reserve is %s, must be from %s to %s, or 0 for %s",
			cfg.Reserve, minReserve, driver.MaxPeriod, defaultReserve)
	}
	c := &Client{
		locks: locks, ring: ring, client: client, inspector: inspector,
		reserve: cmp.Or(cfg.Reserve, defaultReserve),
		logger:  cfg.Logger,
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	c.life = life.New()
	c.senders = life.NewPool(c.life.Context())
	c.moves = asynqprivate.New(inspector)
	c.starter = &jobline.Starter{Locks: locks, Inspectors: []*asynqprivate.Inspector{c.moves}, Logger: c.logger, Go: c.life.Go}
	return c, nil
}

// Close is handoff.Client.Close.
func (c *Client) Close(ctx context.Context) error {
	if err := c.check("close client"); err != nil {
		return err
	}
	return c.life.Close(ctx)
}

// ready returns joblock.ErrClosed if the Locker was closed, and an error of the locks' store if the seal keys cannot be
// read.
func (c *Client) ready(ctx context.Context, op string) error {
	if err := checkOpen(c.locks, op); err != nil {
		return err
	}
	return c.ring.Ready(ctx)
}

// check refuses a Client that was not made by New.
func (c *Client) check(op string) error {
	if c == nil || c.locks == nil {
		return Invalid(op, "", "the Client was not made by NewClient")
	}
	return nil
}
