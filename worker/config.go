package worker

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// Config configures a Worker. A zero field means the field's default. New refuses fields that are out of bounds.
type Config struct {
	// OnLockLost decides about a task whose lock, when an attempt begins, no longer exists or belongs to another owner.
	// err is the error of Locker.Resume: a *joblock.Error with the key. The result of OnLockLost means:
	//
	//	nil               the Worker acquires the lock again and calls the handler; other callers may have held it
	//	                  meanwhile. While another caller has the lock, the task is snoozed, and the next attempt calls
	//	                  OnLockLost again
	//	asynq.RevokeTask  the task succeeds without a call of the handler, and its other locks are released
	//	any other error   the attempt fails with the error, without a call of the handler. asynq charges a retry, or
	//	                  archives the task after the last attempt. Return err if there is nothing else to say
	//
	// For the aggregated task of a group, the Worker acquires the lock again without a call of OnLockLost: the loss of
	// one member's key must not end the work of the other members. Default: a function that returns nil.
	OnLockLost func(ctx context.Context, task *asynq.Task, err error) error

	// Reserve is how long a lock stays reserved for a task that does not run: from the time at which a waiting task is
	// due, or after a crash from the end of the lease. Reserve must be longer than asynq takes to recover the tasks of a
	// crashed worker: some minutes. Without a keeper, Reserve must also be longer than tasks wait in the queue. From 1 s
	// to 183 days. Default 1 h.
	Reserve time.Duration

	// Snooze is the longest pause of a task that found its lock held or the store unavailable. A pause is no longer than
	// the rest of the holder's lease or reservation. If the holder is an earlier attempt of the same task, the pause is at
	// most two seconds. No pause is shorter than a second, because asynq counts in seconds. Jitter prolongs each pause by
	// up to a quarter. asynq notices the end of a pause within asynq.Config.DelayedTaskCheckInterval, 5 s by default. From
	// 1 s to 183 days. Default 10 s.
	Snooze time.Duration

	// Overrun is how long the Worker renews the locks of a handler that runs on after the end of the attempt's context. A
	// long Overrun protects a slow handler, a short one lets the next attempt start sooner. From 1 ms to 183 days. Default
	// 1 min.
	Overrun time.Duration

	// MaxHold is how long a job may have its key, pauses between attempts included. The time counts from when the job,
	// or the request that handed it the key, got the key. If a retry would begin later, the job fails for good instead:
	// the task is archived, the key is released with a reason that names MaxHold, and the log has an ERROR. A running
	// attempt is not cut short: bound it with asynq.Timeout. A job that has not begun its first attempt, such as one in
	// a queue without workers, is not affected. Jobs in a sequence count from their turn. If the server was not
	// configured with Configure, MaxHold does not apply to attempts that end by a timeout or a panic.
	//
	// Without MaxHold only the task's MaxRetry bounds the time: asynq's default of 25 retries takes up to 20.5 days with
	// asynq's default delays. From 1 s to 366 days. Default 0: no bound.
	MaxHold time.Duration

	// Keeper configures RunKeeper. Use the same values in all processes that share a store.
	Keeper KeeperConfig

	// Inspectors has an Inspector for each further asynq database whose tasks have locks in the same store and prefix.
	// New adds its parameter inspector. Default none.
	//
	// Leave out no database: if a left-out database and a database with an Inspector have queues of the same name, the
	// keeper frees the locks of the left-out database's tasks in that queue. If a keeper cannot have all Inspectors, give
	// the locks of each database a prefix of their own, or run no keeper.
	Inspectors []*asynq.Inspector

	// Logger gets the log records of the Worker and of the keeper: about snoozed tasks, about locks that are gone, lost
	// or freed, about headers that are not genuine, and about failed calls. Default slog.Default().
	Logger *slog.Logger
}

// KeeperConfig configures the keeper. A zero field means the field's default.
type KeeperConfig struct {
	// Interval is how often each lock is checked. When a task was archived or deleted, the next check frees the task's
	// lock; the package comment has the exceptions. With very many locks, a lock may be checked less often: see MaxLoad.
	// The first check of a parked lock comes joblock.Config.JobGrace after the park. From 100 ms to half of
	// Config.Reserve. Default: the smaller of 30 s and a quarter of Config.Reserve.
	Interval time.Duration

	// MaxKeepers is how many keepers work at a time, of all processes that share a store and prefix; the others stand by.
	// Each keeper that works reads the lists of asynq's queues for itself, so more keepers help only if the locks are
	// those of many small queues, or of few tasks in large queues. From 1 to 256. Default 1.
	MaxKeepers int

	// MaxLoad bounds the share of its time that a working keeper spends in calls to asynq's Redis. All processes
	// together spend at most MaxKeepers × MaxLoad of the time. After calls that took the time t, the keeper rests for
	// t*(1/MaxLoad-1). A smaller MaxLoad leaves more of asynq's Redis to the queues. If the checks need a larger share,
	// a lock is checked less often than once per Interval. From 0.001 to 1; with 1 the keeper does not rest. Default
	// 0.1.
	MaxLoad float64

	// DryRun makes the keeper change no lock and no task. It only logs the locks to free, and KeeperStats counts the
	// changes that it would make. Keepers with DryRun have places of their own, MaxKeepers in number, and take none from
	// the others. But a lock that a keeper with DryRun checks is not due for other keepers for the next Interval: set
	// DryRun in all processes or in none.
	DryRun bool
}

// withDefaults returns a copy of c with the defaults. c may be nil. The error is joblock.ErrInvalid if a field is out
// of bounds.
func (c *Config) withDefaults() (Config, error) {
	var out Config
	if c != nil {
		out = *c
	}
	if out.OnLockLost == nil {
		out.OnLockLost = func(context.Context, *asynq.Task, error) error { return nil }
	}
	out.Reserve = cmp.Or(out.Reserve, time.Hour)
	out.Snooze = cmp.Or(out.Snooze, 10*time.Second)
	out.Overrun = cmp.Or(out.Overrun, time.Minute)
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
			return out, verdict.Invalid("%s is %s, must be from %s to %s", d.name, d.val, d.min, driver.MaxPeriod/2)
		}
	}
	if out.MaxHold != 0 && (out.MaxHold < time.Second || out.MaxHold > driver.MaxPeriod) {
		return out, verdict.Invalid("Config.MaxHold is %s, must be from 1s to %s, or 0 for no bound", out.MaxHold, driver.MaxPeriod)
	}
	if err := out.Keeper.setDefaults(out.Reserve); err != nil {
		return out, err
	}
	if slices.Contains(out.Inspectors, nil) {
		return out, verdict.Invalid("Config.Inspectors has a nil Inspector")
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, nil
}

// setDefaults sets the defaults. reserve is Config.Reserve. The error is joblock.ErrInvalid if a field is out of
// bounds.
func (k *KeeperConfig) setDefaults(reserve time.Duration) error {
	k.Interval = cmp.Or(k.Interval, min(30*time.Second, reserve/4))
	k.MaxKeepers = cmp.Or(k.MaxKeepers, 1)
	k.MaxLoad = cmp.Or(k.MaxLoad, 0.1)
	switch {
	case k.Interval < 100*time.Millisecond || k.Interval > reserve/2:
		return verdict.Invalid("Config.Keeper.Interval is %s, must be from 100ms to half of Config.Reserve, %s", k.Interval, reserve/2)
	case k.MaxKeepers < 1 || k.MaxKeepers > limit.Max:
		return verdict.Invalid("Config.Keeper.MaxKeepers is %d, must be from 1 to %d", k.MaxKeepers, limit.Max)
	case !(k.MaxLoad >= 0.001 && k.MaxLoad <= 1):
		return verdict.Invalid("Config.Keeper.MaxLoad is %v, must be from 0.001 to 1", k.MaxLoad)
	}
	return nil
}
