package worker

import (
	"context"
	"sync"
	"time"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// RunKeeper runs the keeper, which looks after the locks of tasks that do not run. The package comment has the keeper's
// rules. Start one in every process that has a Worker:
//
//	go w.RunKeeper(ctx)
//
// Of all these keepers, KeeperConfig.MaxKeepers work at a time, and the others stand by. When a keeper that works
// returns, another takes over at once. When its process dies, another takes over within about ten seconds. The locks
// that the dead keeper was just checking are due again within 20 seconds of their claim. If asynq or the locks' store
// does not answer a keeper that works for two periods of KeeperConfig.Interval, it gives its place to the next in line.
//
// RunKeeper returns nil soon after ctx ends or the Worker is closed. An outage of Redis does not end it. The errors
// match:
//
//	joblock.ErrClosed    the Worker was closed before the call, or the Locker before or during the call
//	joblock.ErrInvalid   the Worker is nil, an earlier RunKeeper of this Worker has not returned, or the store has a value that is
//	                     no lock at a key of the keepers' places, "%keeper%#1" and so on
func (w *Worker) RunKeeper(ctx context.Context) error {
	if w == nil {
		return verdict.Invalid("the Worker is nil")
	}
	if !w.running.CompareAndSwap(false, true) {
		return verdict.Invalid("RunKeeper was called before an earlier RunKeeper of this Worker returned")
	}
	defer w.running.Store(false)
	if !w.life.Enter() {
		return errClosed
	}
	defer w.life.Leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.life.Context(), cancel)()
	var pauses sync.WaitGroup
	if !w.cfg.Keeper.DryRun {
		pauses.Go(func() { w.endPauses(ctx) })
	}
	err := w.keeper.Run(ctx)
	cancel()
	pauses.Wait()
	return err
}

// KeeperStats counts the locks, and the places of jobs that wait in line, that this Worker's keeper has checked. Each
// check adds one to Checked, and one to Held, Kept, Over, Foreign, Unanswered or Freed, with two exceptions: if the
// check was to free a lock, but the lock was resumed or ended meanwhile, it adds to Checked alone; if the store did not
// answer when the keeper wanted to prolong a reservation, it adds to both Kept and Unanswered.
type KeeperStats struct {
	Working bool // this Worker's keeper works now, and does not stand by

	Asked time.Time // when the store last answered which locks are due for a check; zero if never

	// Behind means that at Asked more locks were due than fit into one answer, or that the keeper was late with some
	// checks. If Behind stays true, locks are checked less often than once per KeeperConfig.Interval.
	Behind bool

	Checked    int64            // all checks
	Held       int64            // an attempt held the lock
	Kept       int64            // left alone or prolonged: the task lives, or the enqueue may be under way
	Listed     int64            // of Kept: a list of the queue showed the task, and the task was not looked up
	Extended   int64            // of Kept: the keeper prolonged the reservation, or would without KeeperConfig.DryRun
	Over       int64            // the lock had ended, or belonged to another job
	Foreign    int64            // left alone: no asynq database of the Inspectors has the queue, or the record is unreadable
	Unanswered int64            // left alone: asynq or the locks' store did not answer
	Freed      map[string]int64 // by the reason in Status: the keeper freed the lock, or would without KeeperConfig.DryRun
}

// KeeperStats returns the counts since New. The counts of a nil Worker are zero.
func (w *Worker) KeeperStats() KeeperStats {
	if w == nil {
		return KeeperStats{}
	}
	return KeeperStats(w.keeper.Stats())
}
