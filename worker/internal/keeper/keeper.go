// Package keeper looks after the locks of tasks that nobody runs. It keeps the lock of a
// task reserved while the task exists, and frees the lock of a task that has ended where no
// middleware ran. Package worker has the table of what it does when.
//
// One Keeper of the cluster works at a time. It reads which locks are due (package jobs),
// looks up their tasks in asynq (inspect.go), decides about each (verdict.go, pure), and
// acts (reconcile.go).
package keeper

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

const (
	// batch is how many locks are read and acted on together.
	batch = 500

	// wakeups is how often within Config.Every the keeper asks what is due. It asks at
	// least once in longestNap: a lock with a short reservation is due after half of that.
	// A question costs one command, and the work comes in small portions.
	wakeups    = 10
	longestNap = time.Second
)

// Config is what a Keeper works with. All fields but DryRun are required.
type Config struct {
	Locks      *joblock.Locker
	Ring       *seal.Ring // of Locks
	Inspectors []*asynq.Inspector

	Every   time.Duration // how often each lock is checked
	Reserve time.Duration // how long a lock is reserved beyond the time at which its task is due

	// Snoozed reports whether a task is in asynq's archive only because it is snoozed.
	Snoozed func(*asynq.TaskInfo) bool

	DryRun bool // tell what would be done, and change no lock
	Logger *slog.Logger
}

// Keeper checks locks while Run runs. Make it with New.
type Keeper struct {
	cfg Config

	toldNeverResumed atomic.Bool

	mu     sync.Mutex      // guards what follows
	queues map[string]bool // that an inspector was seen to know
	stats  Stats
}

// New returns a Keeper. It does nothing before Run.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, queues: make(map[string]bool), stats: Stats{Freed: make(map[string]int64)}}
}

// Run works while this Keeper has the lock on the keeper's key, and otherwise waits for
// that lock. It returns nil when ctx ends, and else an error of joblock's Locker.Singleton.
func (k *Keeper) Run(ctx context.Context) error {
	// The Locker's bound on renewal is for locks that are forgotten. This one is not.
	err := k.cfg.Locks.Singleton(ctx, keyspace.Keeper, k.lead,
		door.OwnKey[joblock.Option](), joblock.MaxRenew(driver.MaxPeriod))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lead checks what is due until ctx ends. That happens when the caller's context ends, or
// when the lock is lost.
func (k *Keeper) lead(ctx context.Context) error {
	k.leading(true)
	defer k.leading(false)
	tick := k.nap()
	for pause := tick; ; {
		err := k.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			pause = tick
		default:
			// What was read is due again later. In an outage there is no point in asking as
			// often as otherwise.
			pause = min(2*pause, k.cfg.Every)
			k.cfg.Logger.Warn("worker: the keeper got no answer and left the locks concerned alone", "err", err, "pause", pause)
		}
		if sleep.For(ctx, pause) != nil {
			return nil
		}
	}
}

// nap is how long the keeper pauses before it asks the store again which locks are due.
func (k *Keeper) nap() time.Duration { return min(k.cfg.Every/wakeups, longestNap) }

// pass checks all that is due. After an error, what was read is due again after
// Config.Every, and the rest stays due.
func (k *Keeper) pass(ctx context.Context) error {
	later := k.cfg.Every - k.nap() // it takes up to a nap to find that something is due
	for {
		due, err := jobs.Due(ctx, k.cfg.Locks, batch, later)
		if err != nil {
			return err
		}
		if err := k.reconcile(ctx, due); err != nil {
			return err
		}
		if len(due) < batch {
			return nil
		}
	}
}
