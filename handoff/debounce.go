package handoff

import (
	"time"

	"github.com/joblock/toolkit/internal/enqueue"
)

// Debounce waits until enqueues for a key stop, and then runs one job with the newest payload. Each enqueue replaces
// the job that waits for the key, with all its options; the new job is due Wait from now:
//
//	jobs.Enqueue(ctx, handoff.Debounce{Key: joblock.Key("index", id), Wait: 5 * time.Second, MaxWait: time.Minute}, task)
//
// An enqueue while a job of the key runs, or waits for its retry, begins a new wait. The new job starts after the wait,
// once the earlier job is done or has failed for good, so the two never overlap and the newest payload runs last. While
// it waits for the earlier job, the new job uses up no retry. If a process dies during an enqueue, the older job may
// still run, but only before the newer one.
//
// asynq keeps whole seconds and looks for tasks that are due once in asynq.Config.DelayedTaskCheckInterval, by default
// every 5 s: a job starts up to a second and that interval later, never earlier.
//
// The errors are those of Unique with KeepLast: ErrHeld if calls of other processes have kept replacing the job for ten
// seconds, ErrUnavailable, or ErrInvalid. Enqueue returns ErrInvalid for the options asynq.ProcessAt, ProcessIn,
// TaskID, Group and Unique, and for a Deadline that is not later than Wait from now. All other options work; those of
// the newest enqueue count.
type Debounce struct {
	// Key is the key of the job. Build Key with joblock.Key or TaskKey. Enqueue all jobs of a key with the same
	// Debounce. The running job has the lock on Key, and the waiting job has the lock on Key+"%next", as with KeepLast.
	Key string

	// Wait is the time without a further enqueue after which the job is due: at least 1 s.
	Wait time.Duration

	// MaxWait bounds how long enqueues can put the job off: it is due at the latest MaxWait after the first enqueue
	// since the last job has started. It must be at least Wait. 0 means no bound: if the enqueues never stop, no job
	// runs.
	MaxWait time.Duration

	// Leading runs a job at once if no job of the key runs, and none was done within Wait. Further enqueues are
	// collected as without Leading, into one job that starts no sooner than Wait after the previous job is done. To run
	// only the first job, use Unique with Skip and a Cooldown.
	Leading bool
}

func (b Debounce) engine() enqueue.How { return enqueue.Debounce(b) }
