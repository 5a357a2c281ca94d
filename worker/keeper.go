package worker

import "context"

// Run is the keeper; the package comment has its rules. Start one Run in every process that has a Worker:
//
//	go w.Run(ctx)
//
// When the Run that works as the keeper returns, another Run takes over at once. When the process of that Run dies,
// another Run takes over within one TTL of the Locker.
//
// Run returns nil soon after ctx ends or the Worker is closed. An outage of Redis does not end Run. The errors match:
//
//	joblock.ErrClosed    the Worker or the Locker was closed before the call
//	joblock.ErrInvalid   the Worker is nil; an earlier Run of this Worker has not returned; or the value at the keeper's
//	                     key, "%keeper", is no lock
func (w *Worker) Run(ctx context.Context) error {
	if w == nil {
		return invalid("the Worker is nil")
	}
	if !w.running.CompareAndSwap(false, true) {
		return invalid("Run was called before an earlier Run of this Worker returned")
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

// KeeperStats counts the checks of locks by Run in this process. A check counts as one of Held, Kept, Over, Foreign,
// Unanswered and Freed, unless the lock was resumed or ended during the check.
type KeeperStats struct {
	Leading bool // this Worker's Run does the checks; of all Runs on a store, one does

	Checked    int64            // checks of locks that were due
	Held       int64            // somebody held the lock
	Kept       int64            // the task lives, or the enqueue may be under way
	Extended   int64            // of Kept: Run prolonged the reservation
	Over       int64            // the lock had ended, or belonged to another job
	Foreign    int64            // left alone: the task's queue is in none of the asynq databases of the Inspectors
	Unanswered int64            // left alone: asynq or the locks' store did not answer
	Freed      map[string]int64 // freed by Run, by the reason in Status; with Config.DryRun, what Run would free
}

// KeeperStats returns a copy of the counts. The counts of a nil Worker are zero.
func (w *Worker) KeeperStats() KeeperStats {
	if w == nil {
		return KeeperStats{}
	}
	return KeeperStats(w.keeper.Stats())
}
