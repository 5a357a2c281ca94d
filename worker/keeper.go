package worker

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/worker/internal/keeper"
)

func (w *Worker) newKeeper() *keeper.Keeper {
	return keeper.New(keeper.Config{
		Locks: w.locks, Ring: w.ring,
		Inspectors: append([]*asynq.Inspector{w.inspector}, w.cfg.Inspectors...),
		Every:      w.cfg.Every, Reserve: w.cfg.Reserve,
		Snoozed: snoozedInArchive, DryRun: w.cfg.DryRun, Logger: w.cfg.Logger,
	})
}

// Run is the keeper. It keeps the lock of a task reserved while the task exists, and frees
// the lock of a task that has ended without this package. Start it in every process that
// has a Worker:
//
//	go w.Run(ctx)
//
// One of them works at a time. When it stops, another takes over at once; when it dies,
// within one TTL of its Locker. The package comment says what is freed and what is left
// alone.
//
// Run returns nil, promptly, when ctx ends or the Worker is closed. An outage of either
// Redis does not end it. Other errors match:
//
//	joblock.ErrClosed    the Worker or its Locker was closed before
//	joblock.ErrInvalid   the Worker is nil; an earlier Run of it has not returned; or the
//	                     value at the keeper's key, "%keeper", is no lock
func (w *Worker) Run(ctx context.Context) error {
	if w == nil {
		return invalid("the Worker is nil")
	}
	if !w.running.CompareAndSwap(false, true) {
		return invalid("Run was called while an earlier one has not returned")
	}
	defer w.running.Store(false)
	if !w.open.begin() {
		return workerClosed()
	}
	defer w.open.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.open.closing, cancel)()
	return w.keeper.Run(ctx)
}

// KeeperStats counts what Run has done in this process. Each check of a lock counts in one
// of Held, Kept, Over, Foreign, Unanswered and Freed, unless the lock was taken up or ended
// during the check.
type KeeperStats struct {
	// Leading is true while this Worker's Run checks locks. Of the Workers on one store,
	// only one does so at a time.
	Leading bool

	Checked    int64            // locks that were due
	Held       int64            // somebody runs under it
	Kept       int64            // its task lives, or may still be on its way
	Extended   int64            // of Kept: the reservation was prolonged
	Over       int64            // it had ended, or become another job's, by itself
	Foreign    int64            // left alone: its queue is in none of the known asynq databases
	Unanswered int64            // left alone: asynq or the locks' store did not answer
	Freed      map[string]int64 // by the reason that Status shows; with Config.DryRun: would have been freed
}

// KeeperStats returns a snapshot. A nil Worker has counted nothing.
func (w *Worker) KeeperStats() KeeperStats {
	if w == nil {
		return KeeperStats{}
	}
	return KeeperStats(w.keeper.Stats())
}
