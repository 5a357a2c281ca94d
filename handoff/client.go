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
	// Reserve is how long locks stay reserved for their job beyond the delay that is
	// known at the enqueue (ProcessIn, ProcessAt): for the queue before it, and
	// for workers that are down. A job that starts later still gets its lock if
	// nobody has taken the key meanwhile. The keeper of package worker prolongs it
	// for as long as the job waits, if Reserve is longer than the keeper may be away:
	// one that dies is replaced a TTL later. At least 10 s, at most
	// driver.MaxPeriod. Default joblock.DefaultHold, 1 h.
	Reserve time.Duration

	// Logger hears of enqueues whose outcome had to be found out, and how that
	// went. It never hears an owner token. Default slog.Default().
	Logger *slog.Logger
}

// minReserve leaves the keeper the time to come by: it does so when half of a reservation
// has passed, or a second later.
const minReserve = 10 * time.Second

// Client enqueues tasks that carry locks. Make one per process with NewClient,
// share it freely, and Close it before its Locker. The methods of a nil or zero
// Client return ErrInvalid.
type Client struct {
	locks     *joblock.Locker
	ring      *seal.Ring // of locks
	client    *asynq.Client
	inspector *asynq.Inspector
	reserve   time.Duration
	logger    *slog.Logger

	closing context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // the look-outs

	mu      sync.Mutex // guards watches, and that none begins after Close
	watches int
}

// NewClient returns a Client that enqueues with client and, when an enqueue
// fails, asks inspector what has become of the task; both must work on the same
// Redis. cfg may be nil. It returns ErrInvalid when any of the other three is nil,
// or for a Config out of bounds. The Client owns none of them and closes none.
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
			cfg.Reserve, minReserve, driver.MaxPeriod, joblock.DefaultHold)
	}
	c := &Client{
		locks:     locks,
		ring:      door.Of(locks).Ring(),
		client:    client,
		inspector: inspector,
		reserve:   cmp.Or(cfg.Reserve, joblock.DefaultHold),
		logger:    cfg.Logger,
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	c.closing, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// Enqueue hands lock over to a job: it parks the lock, enqueues task with the
// lock's token in a header, and returns what asynq's Client would. From then on
// the handle can do nothing, a deferred Release frees nothing, and the worker that
// processes the task holds the lock.
//
// opts override the options that the task was made with, as in asynq. Both are
// kept, and so are the task's headers; task itself is not changed. Two things
// differ from a plain enqueue: the TaskID is chosen here if none is given, so that
// the lock can be bound to the job before the job exists, and the task is enqueued
// with one retry more than asked for (asynq's tools show n+1). The worker takes
// that one away again: asynq archives a task whose retries are used up before it
// looks at whether the last attempt was charged, so without a spare one a busy
// lock would cost the job. The header of an earlier envelope, on a task that
// is enqueued again from its own handler, is overwritten.
//
// The TaskInfo that is returned lacks that header: the owner tokens in it are good for
// the locks, and TaskInfos are logged. The header is in asynq's record of the task, and
// so in what the Inspector and asynqmon show and in the Headers of the task that a
// handler is given.
//
// On error lock.Err tells in which state each lock is:
//
//   - nil: the caller holds it, as before the call. The error is ErrInvalid for
//     anything wrong with the arguments, Park's, another lock's, or asynq's:
//     asynq.ErrTaskIDConflict and asynq.ErrDuplicateTask match. asynq makes mere
//     text of the errors of Redis; that of ctx is joined.
//   - ErrLost: it was lost, before the call or during it; neither the caller nor
//     this job has it.
//   - ErrAlreadyReleased: the caller had released it before the call.
//   - ErrNotOwner: the caller does not hold it. Either it had been handed over
//     before the call, and the error is ErrNotOwner too; or this call has parked
//     it, for a job that may or may not exist.
//
// In that last case the error matches joblock.ErrUnavailable where it could not be
// found out whether the task exists, or whether the lock was taken back. Until it
// is found out neither side runs under the lock and nobody else gets it: if the
// task exists it runs under it, and if not the lock is released. That is as soon as
// Redis answers, within WatchFor; after that, or after Close, or with very many
// such enqueues at once, it is when the reservation ends. The error matches ErrBusy
// or ErrAlreadyReleased where the lock could not be taken back because a job has
// it, or has ended it: then the enqueue had succeeded although asynq reported an
// error.
//
// Enqueue returns SettleFor after the end of ctx at the latest, or SettleFor after
// an error of the lock's store or of asynq if that comes first. Give it a ctx with a deadline: without one a
// server that is silent is waited for as long as asynq's Redis client does.
//
// The package comment says how the outcome of a failed enqueue is found out.
func (c *Client) Enqueue(ctx context.Context, lock *joblock.Lock, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueAll(ctx, joblock.Locks{lock}, task, opts...)
}

// EnqueueAll is Enqueue for a job that carries several locks: all of them go to
// the job, or all that were the caller's stay with the caller. Only where Enqueue
// would leave its one lock parked may they differ; each one's Err tells. It returns ErrInvalid for no locks, more
// than 64, or two on one key.
func (c *Client) EnqueueAll(ctx context.Context, locks joblock.Locks, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if err := c.check("enqueue"); err != nil {
		return nil, err
	}
	spec, err := c.readTask(task, opts)
	if err != nil {
		return nil, err
	}
	if err := c.checkLocks(locks, spec); err != nil {
		return nil, err
	}
	if err := c.ready(ctx, spec); err != nil {
		return nil, err
	}
	h := &handover{taskSpec: spec, c: c, locks: locks}
	info, err := h.run(ctx)
	return shown(info), err
}

// ready returns nil if what the task of spec is to carry can be sealed. It costs a call
// of the locks' store once in the life of the Locker.
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

func invalid(op, key, format string, args ...any) error {
	return &joblock.Error{Code: joblock.CodeInvalid, Op: op, Key: key, Detail: fmt.Sprintf(format, args...)}
}
