package handoff

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/crew"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Config configures a Client. The zero value of each field means its default.
type Config struct {
	// Reserve is how long locks stay reserved for their job after the job is due (asynq.ProcessIn, ProcessAt). From
	// 10 s to 366 days. Default 1 h. Reserve must cover the time in the queue and an outage of the workers. A job
	// that starts later still gets its lock if nobody has taken the key. The keeper of package worker prolongs the
	// reservation while the job waits. Reserve must therefore be longer than the cluster can be without a keeper: a
	// keeper that dies is replaced one TTL later.
	Reserve time.Duration

	// Logger logs enqueues of unknown outcome, and later their outcome. No line has an owner token. Default
	// slog.Default().
	Logger *slog.Logger
}

const (
	// minReserve leaves the keeper time to prolong a reservation. The keeper prolongs a reservation when half of it is
	// over, or up to a second later.
	minReserve = 10 * time.Second

	defaultReserve = time.Hour
)

// Client enqueues tasks that carry locks. Make one per process with NewClient, share it freely, and Close the Client
// before its Locker. The methods of a nil or zero Client return joblock.ErrInvalid.
type Client struct {
	locks     *joblock.Locker
	ring      *seal.Ring // the keys of locks
	client    *asynq.Client
	inspector *asynq.Inspector
	reserve   time.Duration
	logger    *slog.Logger
	refused   error // the error of all calls, if not nil; see door.RefusingClient

	next    *nextjob.Starter // of jobs whose turn in line comes with a call of this Client
	turns   turns            // of calls that may replace a job
	senders *crew.Crew
	closing context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // the watches, and lookAfter

	mu      sync.Mutex // guards the fields below; Close, watch and remember take mu, so that nothing begins after Close
	watches int
	unkept  unkept
}

func init() { door.AnyRefusingClient = func(err error) any { return &Client{refused: err} } }

// NewClient returns a Client that enqueues with client. When an enqueue fails, the Client looks the task up with
// inspector. Both must work on the same Redis. The Client closes none of its arguments. cfg may be nil. An error
// matches joblock.ErrInvalid: another argument is nil, joblock.New has not made locks, or a field of cfg is out of
// bounds.
func NewClient(locks *joblock.Locker, client *asynq.Client, inspector *asynq.Inspector, cfg *Config) (*Client, error) {
	const op = "new client"
	ring := door.Of(locks).Ring()
	switch {
	case ring == nil:
		return nil, invalid(op, "", "the Locker is nil or was not made by joblock.New")
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
		locks: locks, ring: ring, client: client, inspector: inspector,
		reserve: cmp.Or(cfg.Reserve, defaultReserve),
		logger:  cfg.Logger,
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	c.closing, c.stop = context.WithCancel(context.Background())
	c.senders = crew.New(c.closing)
	c.next = &nextjob.Starter{Locks: locks, Inspectors: []*asynqprivate.Inspector{asynqprivate.New(inspector)}, Logger: c.logger, Go: c.background}
	return c, nil
}

// background runs f in another goroutine. Close waits for f, unless Close was called before.
func (c *Client) background(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		c.senders.Go(f)
	} else {
		c.running.Go(f)
	}
}

// ready returns joblock.ErrClosed if the Locker was closed, and otherwise the error with which the seal keys cannot be read.
func (c *Client) ready(ctx context.Context, op string) error {
	if err := door.Of(c.locks).Check(op); err != nil {
		return err
	}
	return c.ring.Ready(ctx)
}

// check refuses a Client that NewClient has not made.
func (c *Client) check(op string) error {
	if c != nil && c.refused != nil {
		return c.refused
	}
	if c == nil || c.locks == nil {
		return invalid(op, "", "the Client was not made by NewClient")
	}
	return nil
}
