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

// Gone says what becomes of an attempt whose lock no longer exists or belongs to
// somebody else.
type Gone uint8

const (
	// Reacquire takes the lock anew and runs; while somebody else has it the
	// task is snoozed without charge. The job runs after all, but others may
	// have held the key in between.
	Reacquire Gone = iota
	// Skip does not run the handler and lets the task succeed.
	Skip
	// Fail does not run the handler and fails the attempt with the reason, by
	// asynq's rules.
	Fail
)

// String returns the name in lower case.
func (g Gone) String() string {
	switch g {
	case Reacquire:
		return "reacquire"
	case Skip:
		return "skip"
	case Fail:
		return "fail"
	}
	return fmt.Sprintf("Gone(%d)", uint8(g))
}

const (
	defaultReserve = time.Hour
	defaultSnooze  = 10 * time.Second
	defaultOverrun = time.Minute
	defaultEvery   = 30 * time.Second

	minEvery = 100 * time.Millisecond
)

// Config configures a Worker. The zero value of each field means its default;
// negative values are refused.
type Config struct {
	// Gone is the policy for a lock that is gone at resume. Default Reacquire.
	Gone Gone

	// Reserve is how long a lock stays reserved for its task: while it waits, beyond
	// the known delay of a retry, which covers the time in the queue; while it
	// runs, beyond the lease as last renewed, which covers asynq's recovery of a
	// crashed worker's tasks, which takes minutes. Default 1 h.
	Reserve time.Duration

	// Snooze is the longest pause before a task that found its lock held, or
	// the store unavailable, is tried again. It is shorter when the holder's lease
	// ends sooner, and at most two seconds when the holder is an earlier attempt
	// of the same task, which is most likely about to end; but at least a second,
	// which is asynq's grain, and up to a quarter longer, for jitter. Default 10 s.
	// How soon asynq acts on it depends on its DelayedTaskCheckInterval, 5 s by
	// default.
	Snooze time.Duration

	// Overrun is how long a handler that goes on after its context has ended
	// keeps its lease. Longer protects what it still does; shorter lets the
	// next attempt in sooner. Default 1 min.
	Overrun time.Duration

	// Every is how often the keeper looks at each lock that waits for its task: how
	// long after its task was archived or deleted a lock is free, and what it costs,
	// two commands to asynq's Redis per look. A lock that has just been parked is
	// looked at for the first time after joblock.Config.JobGrace, and is not freed
	// for a task that is not there within a minute of that. With very many locks a
	// round may take longer. At least 100 ms, at most half of Reserve. Default 30 s, or
	// a quarter of Reserve if that is less.
	Every time.Duration

	// Inspectors are those of further asynq databases whose tasks have locks in the
	// same store. The keeper must know them all: it takes a task for gone if none of
	// them has it. Default: none but the one given to New.
	Inspectors []*asynq.Inspector

	// DryRun has the keeper log and count what it would do and change no lock. One
	// that runs dry takes its turn like the others: set it everywhere or nowhere.
	DryRun bool

	// Logger hears of locks that were busy, gone, lost, freed by the keeper, or
	// could not be given back. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a checked copy of c, which may be nil.
func (c *Config) withDefaults() (Config, error) {
	var out Config
	if c != nil {
		out = *c
	}
	if out.Gone > Fail {
		return out, invalid("Config.Gone is %d, must be Reacquire, Skip or Fail", out.Gone)
	}
	out.Reserve = cmp.Or(out.Reserve, defaultReserve)
	out.Snooze = cmp.Or(out.Snooze, defaultSnooze)
	out.Overrun = cmp.Or(out.Overrun, defaultOverrun)
	out.Every = cmp.Or(out.Every, min(defaultEvery, out.Reserve/4))
	for _, d := range []struct {
		name string
		val  time.Duration
		min  time.Duration
	}{
		{"Config.Reserve", out.Reserve, time.Second},
		{"Config.Snooze", out.Snooze, time.Second},
		{"Config.Overrun", out.Overrun, time.Millisecond},
	} {
		// Half of joblock's bound leaves room for a retry's delay on top of Reserve.
		if d.val < d.min || d.val > driver.MaxPeriod/2 {
			return out, invalid("%s is %s, must be from %s to %s", d.name, d.val, d.min, driver.MaxPeriod/2)
		}
	}
	if out.Every < minEvery || out.Every > out.Reserve/2 {
		return out, invalid("Config.Every is %s, must be from %s to half of Config.Reserve, %s", out.Every, minEvery, out.Reserve/2)
	}
	if slices.Contains(out.Inspectors, nil) {
		return out, invalid("Config.Inspectors has a nil")
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out, nil
}
