// Package keeper is the keeper of package worker, whose package comment has the rules. A Keeper reads from package jobs
// which locks are due, looks up the task of each lock in asynq (inspect.go), decides what to do about each lock
// (verdict.go), and acts (reconcile.go).
//
// A mark is the lock that a process holds while the process snoozes a task by way of asynq's archive. When that process
// dies, the mark is how the keeper finds the task.
package keeper

import (
	"context"
	"log/slog"
	"maps"
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
	// batch is how many locks a Keeper reads and handles together.
	batch = 500

	// A leading Keeper asks the store which locks are due: after each Config.Every/wakeups, and at least once per
	// longestNap. Each question costs one command. longestNap is for locks with a short reservation: such a lock is due
	// after half of the reservation.
	wakeups    = 10
	longestNap = time.Second
)

// Config configures a Keeper. All fields but DryRun are required. worker.Config explains the fields that have the same
// names there.
type Config struct {
	Locks          *joblock.Locker
	Ring           *seal.Ring // of the field Locks
	Inspectors     []*asynq.Inspector
	Every, Reserve time.Duration
	Snoozed        func(*asynq.TaskInfo) bool // whether a task is in asynq's archive only for the pause of a snooze
	DryRun         bool
	Logger         *slog.Logger
}

// Keeper checks locks while the method Run is running. Make a Keeper with New.
type Keeper struct {
	cfg Config

	neverResumed atomic.Bool // logNeverResumed has logged

	mu     sync.Mutex      // guards queues and stats
	queues map[string]bool // the queues that were found in one of Config.Inspectors
	stats  Stats
}

// New returns a Keeper that does nothing until Run is called.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, queues: make(map[string]bool), stats: Stats{Freed: make(map[string]int64)}}
}

// Run acquires the lock on the key keyspace.Keeper and checks locks while it holds that lock. Run returns nil when ctx
// ends. Other errors are those of joblock's Locker.Singleton.
func (k *Keeper) Run(ctx context.Context) error {
	// The Locker's own MaxRenew is for locks that a program forgets to release.
	err := k.cfg.Locks.Singleton(ctx, keyspace.Keeper, k.lead,
		door.OwnKey[joblock.Option](), joblock.MaxRenew(driver.MaxPeriod))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lead checks the due locks until ctx ends. ctx also ends when the keeper's lock is lost.
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
			// The locks that pass has read are due again after Config.Every. Pauses grow in an outage.
			pause = min(2*pause, k.cfg.Every)
			k.cfg.Logger.Warn("worker: the keeper got no answer and leaves some locks for a later check", "err", err, "pause", pause)
		}
		if sleep.For(ctx, pause) != nil {
			return nil
		}
	}
}

// The method nap returns the pause between two passes.
func (k *Keeper) nap() time.Duration { return min(k.cfg.Every/wakeups, longestNap) }

// pass checks all due locks. After an error, the locks already read are due again after Config.Every, and the other
// locks stay due.
func (k *Keeper) pass(ctx context.Context) error {
	later := k.cfg.Every - k.nap() // a lock may be due for one nap before a pass reads it
	for part := 0; part < jobs.Parts(k.cfg.Locks); {
		due, next, err := jobs.Due(ctx, k.cfg.Locks, part, batch, later)
		if err != nil {
			return err
		}
		if err := k.reconcile(ctx, due); err != nil {
			return err
		}
		if next > 0 {
			part++
		}
	}
	return nil
}

// Stats has the fields of worker.KeeperStats, which are explained there.
type Stats struct {
	Leading    bool
	Checked    int64
	Held       int64
	Kept       int64
	Extended   int64
	Over       int64
	Foreign    int64
	Unanswered int64
	Freed      map[string]int64
}

// Stats returns a copy of the counts.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.stats
	out.Freed = maps.Clone(out.Freed)
	return out
}

func (k *Keeper) leading(yes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Leading = yes
}

func (k *Keeper) add(n *Stats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Checked += n.Checked
	k.stats.Held += n.Held
	k.stats.Kept += n.Kept
	k.stats.Extended += n.Extended
	k.stats.Over += n.Over
	k.stats.Foreign += n.Foreign
	k.stats.Unanswered += n.Unanswered
	for reason, freed := range n.Freed {
		k.stats.Freed[reason] += freed
	}
}
