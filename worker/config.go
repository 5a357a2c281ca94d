package worker

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock/driver"
)

// Gone is the policy for an attempt whose lock no longer exists or belongs to somebody else.
type Gone uint8

const (
	// Reacquire acquires the lock again and runs the handler. While somebody else has the lock, the task is snoozed.
	// Others may have held the lock in the meantime.
	Reacquire Gone = iota
	// Skip lets the task succeed without a call of the handler.
	Skip
	// Fail fails the attempt with the error of Locker.Resume, without a call of the handler. asynq charges the attempt,
	// and archives the task after the last attempt.
	Fail
)

// String returns the name in lower case.
func (g Gone) String() string {
	if g > Fail {
		return fmt.Sprintf("Gone(%d)", uint8(g))
	}
	return [...]string{"reacquire", "skip", "fail"}[g]
}

// Config configures a Worker. A zero field means the field's default. New refuses negative values.
type Config struct {
	// Gone is the policy for a lock that Locker.Resume reports as gone. Default Reacquire.
	Gone Gone

	// Reserve is how long a lock stays reserved for the task. While the task waits, Reserve counts from the time at
	// which the task is due, and must cover the time in the queue. While the task runs, Reserve counts from the end of
	// the lease, and must cover asynq's recovery of a crashed worker's tasks, which takes minutes. From 1 s to 183
	// days. Default 1 h.
	Reserve time.Duration

	// Snooze is the longest pause of a task that found its lock held or the store unavailable. The pause ends earlier
	// when the holder's lease ends. The pause lasts at most two seconds if the holder is an earlier attempt of the same
	// task. But no pause is shorter than a second, because asynq counts in seconds. Jitter then adds up to a quarter.
	// asynq notices the end of a pause within DelayedTaskCheckInterval, 5 s by default. From 1 s to 183 days. Default
	// 10 s.
	Snooze time.Duration

	// Overrun is how long the Worker renews the locks of a handler that runs on after its context has ended. A long
	// Overrun protects a slow handler. A short Overrun lets the next attempt start sooner. From 1 ms to 183 days.
	// Default 1 min.
	Overrun time.Duration

	// Every is the time between two checks of a lock by the keeper. The lock of an archived or deleted task is freed
	// at the next check. With very many locks a round may take longer than Every. The first check of a parked lock comes
	// joblock.Config.JobGrace after the park. From 100 ms to half of Reserve. Default: the smaller of 30 s and a
	// quarter of Reserve.
	Every time.Duration

	// Inspectors has an Inspector for each further asynq database whose tasks have locks in the same store and prefix.
	// New adds the inspector that is its parameter. If a database has no Inspector here, and its queues have the names
	// of queues that an Inspector knows, the keeper frees the locks of that database's tasks. If a keeper cannot have
	// all Inspectors, give the locks of each database a prefix of their own, or run no keeper. Default none.
	Inspectors []*asynq.Inspector

	// DryRun makes the keeper log and count the changes that it would make, and change no lock. Only one keeper of the
	// cluster works: set DryRun in all processes or in none.
	DryRun bool

	// Logger gets a record for each lock that is busy, gone or lost, that the keeper has freed, or that an attempt
	// cannot give back. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a checked copy of c with the defaults. A nil c has all defaults.
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
