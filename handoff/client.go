package handoff

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Config configures a Client. The zero value of each field means its default.
type Config struct {
	// Reserve is how long locks stay reserved for their job after the job is due
	// (asynq.ProcessIn, ProcessAt). It must cover the time in the queue, and an outage of
	// the workers. A job that starts later still gets its lock if nobody has taken the key.
	// The keeper of package worker prolongs the reservation while the job waits, if Reserve
	// is longer than the keeper may be away: one that dies is replaced a TTL later. From 10
	// s to 366 days. Default 1 h.
	Reserve time.Duration

	// Logger hears of enqueues whose outcome was unclear, and what it turned out to be. It
	// never hears an owner token. Default slog.Default().
	Logger *slog.Logger
}

// minReserve leaves the keeper time to prolong a reservation: it does so when half of it
// has passed, or a second later.
const minReserve = 10 * time.Second

// defaultReserve is the default of Config.Reserve.
const defaultReserve = time.Hour

// Client enqueues tasks that carry locks. Make one per process with NewClient, share it
// freely, and Close it before its Locker. The methods of a nil or zero Client return
// joblock.ErrInvalid.
type Client struct {
	locks     *joblock.Locker
	ring      *seal.Ring // of locks
	client    *asynq.Client
	inspector *asynq.Inspector
	reserve   time.Duration
	logger    *slog.Logger

	closing context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // the watches

	mu      sync.Mutex // guards watches, and that none begins after Close
	watches int
}

// NewClient returns a Client that enqueues with client, and asks inspector for the task
// when an enqueue fails. Both must work on the same Redis. The Client closes none of its
// arguments. cfg may be nil. Errors match joblock.ErrInvalid: another argument is nil,
// locks was not made by joblock.New, or a field of cfg is out of bounds.
func NewClient(locks *joblock.Locker, client *asynq.Client, inspector *asynq.Inspector, cfg *Config) (*Client, error) {
	const op = "new client"
	switch {
	case locks == nil:
		return nil, invalid(op, "", "the Locker is nil")
	case door.Of(locks).Ring() == nil:
		return nil, invalid(op, "", "the Locker was not made by joblock.New")
	case client == nil:
		return nil, invalid(op, "", "the asynq client is nil")
	case inspector == nil:
		return nil, invalid(op, "", "the asynq inspector is nil")
	}
	if cfg == nil {
		cfg = &Config{}
	}
	if cfg.Reserve != 0 && (cfg.Reserve < minReserve || cfg.Reserve > driver.MaxPeriod) {
		return nil, invalid(op, "", "Config.Reserve is %s, must be from %s to %s, or 0 for %s",
			cfg.Reserve, minReserve, driver.MaxPeriod, defaultReserve)
	}
	c := &Client{
		locks:     locks,
		ring:      door.Of(locks).Ring(),
		client:    client,
		inspector: inspector,
		reserve:   cmp.Or(cfg.Reserve, defaultReserve),
		logger:    cfg.Logger,
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	c.closing, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// ready returns nil if a header for spec's task can be sealed. The first call for a Locker
// reads the locks' store.
func (c *Client) ready(ctx context.Context, spec *taskSpec) error {
	if err := c.ring.Ready(ctx); err != nil {
		return fmt.Errorf("handoff: enqueue %s: %w", spec.job, err)
	}
	return nil
}

// check refuses a Client that NewClient has not made.
func (c *Client) check(op string) error {
	if c == nil || c.locks == nil {
		return invalid(op, "", "the Client was not made by NewClient")
	}
	return nil
}
