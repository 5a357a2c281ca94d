package worker

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// Gone is the policy for a task whose lock, when an attempt begins, no longer exists or belongs to another owner. For a
// task into which asynq has aggregated several, the policy is Reacquire whatever Config says: the loss of one key must
// not end the work that stands for the others.
type Gone uint8

const (
	// Reacquire acquires the lock again and runs the handler. While somebody else has the lock, the task is snoozed.
	// Others may have held the lock after the task had lost the lock.
	Reacquire Gone = iota
	// Skip lets the task succeed without a call of the handler. The task's other locks are released.
	Skip
	// Fail fails the attempt with the error of Locker.Resume, without a call of the handler. As after any error, asynq
	// charges a retry, or archives the task after the last attempt.
	Fail
)

// String returns "reacquire", "skip" or "fail".
func (g Gone) String() string {
	if g > Fail {
		return fmt.Sprintf("Gone(%d)", uint8(g))
	}
	return [...]string{"reacquire", "skip", "fail"}[g]
}

// Config configures a Worker. A zero field means the field's default. New refuses fields that are out of bounds.
type Config struct {
	// Gone is the policy for a lock that is gone when an attempt begins. Default Reacquire.
	Gone Gone

	// Reserve is how long a lock stays reserved for a task that does not run: from the time at which a waiting task is
	// due, or after a crash from the end of the lease. Reserve must be longer than asynq takes to recover the tasks of a
	// crashed worker: some minutes. Without a keeper, Reserve must also be longer than tasks wait in the queue. From 1 s
	// to 183 days. Default 1 h.
	Reserve time.Duration

	// Snooze is the longest pause of a task that found its lock held or the store unavailable. A pause is no longer
	// than the rest of the holder's lease or reservation. If the holder is an earlier attempt of the same task, the
	// pause is two seconds at most. But no pause is shorter than a second, because asynq counts in seconds. Jitter
	// prolongs each pause by up to a quarter. asynq notices the end of a pause within
	// asynq.Config.DelayedTaskCheckInterval, 5 s by default. From 1 s to 183 days. Default 10 s.
	Snooze time.Duration

	// Overrun is how long the Worker renews the locks of a handler that runs on after the end of the attempt's context.
	// A long Overrun protects a slow handler. A short Overrun lets the next attempt start sooner. From 1 ms to 183
	// days. Default 1 min.
	Overrun time.Duration

	// MaxHold is how long a job may have its key, pauses between attempts included, from when the job or the request
	// before it got the key. If a retry would begin later, the job fails for good instead: the task is archived, the key
	// is released with a reason that names MaxHold, and the log has an ERROR. An attempt that runs is not cut short: bound
	// it with asynq.Timeout. A job that has not begun its first attempt, such as one in a queue without workers, is not
	// affected. Jobs in a sequence count from their turn. If the server was not configured with Configure, MaxHold does
	// not apply to attempts that end by a timeout or a panic.
	//
	// Without MaxHold only the task's MaxRetry bounds the time: asynq's default of 25 retries takes up to 20.5 days with
	// asynq's default delays. From 1 s to 366 days. Default 0: no bound.
	MaxHold time.Duration

	// Every is how often the keeper checks each lock. When a task was archived or deleted, the next check frees the
	// task's lock; the package comment has the exceptions. With very many locks, a lock may be checked less often: see
	// Share. The first check of a parked lock comes joblock.Config.JobGrace after the park. Use the same Every in all
	// processes that share a store. From 100 ms to half of Reserve. Default: the smaller of 30 s and a quarter of
	// Reserve.
	Every time.Duration

	// Keepers is how many Runs work at a time, of all processes that share a store and prefix; the others stand by. Each
	// Run that works reads the lists of asynq's queues for itself. So more Keepers help only if the locks are those of
	// many small queues, or of few tasks in large queues. Use the same Keepers in all processes. From 1 to 256. Default
	// 1.
	Keepers int

	// Share is the largest part of the time for which a Run that works has calls to asynq's Redis under way. So all
	// processes together have calls under way for at most Keepers × Share of the time. After calls that took the time
	// t, the Run rests for t*(1/Share-1). A smaller Share leaves more of asynq's Redis to the queues. If the checks need
	// more than Share, the checks come later than Every. From 0.001 to 1; with 1 the Run does not rest. Default 0.1.
	Share float64

	// Inspectors has an Inspector for each further asynq database whose tasks have locks in the same store and prefix.
	// New adds the inspector in its own parameter. Default none.
	//
	// Leave out no database. Suppose that a left-out database and a database with an Inspector have queues of the same
	// name. Then the keeper frees the locks of the left-out database's tasks in that queue. If a keeper cannot have all
	// Inspectors, give the locks of each database a prefix of their own, or run no keeper.
	Inspectors []*asynq.Inspector

	// DryRun makes the keeper change no lock and no task. The keeper then logs the locks to free, and KeeperStats
	// counts the changes that the keeper would make. Runs with DryRun have places of their own, Keepers in number, and
	// take none from the other Runs. But a lock that a Run with DryRun checks is not due for other Runs for the next
	// Every: set DryRun in all processes or in none.
	DryRun bool

	// Logger gets the log records of the Worker and of the keeper: about snoozed tasks, about locks that are gone, lost
	// or freed, about headers that are not genuine, and about failed calls. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a copy of c with the defaults. c may be nil. A field out of bounds is joblock.ErrInvalid.
func (c *Config) withDefaults() (Config, error) {
	var out Config
	if c != nil {
		out = *c
	}
	if out.Gone > Fail {
		return out, invalid("Config.Gone is %d, must be Reacquire, Skip or Fail", out.Gone)
	}
	out.Reserve = cmp.Or(out.Reserve, time.Hour)
	out.Snooze = cmp.Or(out.Snooze, 10*time.Second)
	out.Overrun = cmp.Or(out.Overrun, time.Minute)
	out.Every = cmp.Or(out.Every, min(30*time.Second, out.Reserve/4))
	out.Keepers = cmp.Or(out.Keepers, 1)
	if out.Keepers < 1 || out.Keepers > limit.Max {
		return out, invalid("Config.Keepers is %d, must be from 1 to %d", out.Keepers, limit.Max)
	}
	out.Share = cmp.Or(out.Share, 0.1)
	if !(out.Share >= 0.001 && out.Share <= 1) {
		return out, invalid("Config.Share is %v, must be from 0.001 to 1", out.Share)
	}
	for _, d := range []struct {
		name     string
		val, min time.Duration
	}{
		{"Config.Reserve", out.Reserve, time.Second},
		{"Config.Snooze", out.Snooze, time.Second},
		{"Config.Overrun", out.Overrun, time.Millisecond},
	} {
		// The other half of joblock's bound is for a retry's delay, which is added to Reserve.
		if d.val < d.min || d.val > driver.MaxPeriod/2 {
			return out, invalid("%s is %s, must be from %s to %s", d.name, d.val, d.min, driver.MaxPeriod/2)
		}
	}
	if out.MaxHold != 0 && (out.MaxHold < time.Second || out.MaxHold > driver.MaxPeriod) {
		return out, invalid("Config.MaxHold is %s, must be from 1s to %s, or 0 for no bound", out.MaxHold, driver.MaxPeriod)
	}
	if out.Every < 100*time.Millisecond || out.Every > out.Reserve/2 {
		return out, invalid("Config.Every is %s, must be from 100ms to half of Config.Reserve, %s", out.Every, out.Reserve/2)
	}
	if slices.Contains(out.Inspectors, nil) {
		return out, invalid("Config.Inspectors has a nil Inspector")
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, nil
}
