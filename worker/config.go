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

// Gone says what happens to an attempt whose lock no longer exists or belongs to
// somebody else.
type Gone uint8

const (
	// Reacquire takes the lock anew and runs the handler. While somebody else has the
	// lock the task is snoozed. Others may have held the key in between.
	Reacquire Gone = iota
	// Skip does not run the handler and lets the task succeed.
	Skip
	// Fail does not run the handler and fails the attempt with the reason. The attempt is
	// charged, and asynq archives the task after the last one.
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

	// Reserve is how long a lock stays reserved for its task. For a task that waits it
	// counts from when the task is due, and must cover the time in the queue. For one that
	// runs it counts from the end of the lease, and must cover asynq's recovery of a
	// crashed worker's tasks, which takes minutes. From 1 s to 183 days. Default 1 h.
	Reserve time.Duration

	// Snooze is the longest pause of a task that found its lock held, or the store
	// unavailable. The pause is shorter if the holder's lease ends sooner, and at most two
	// seconds if the holder is an earlier attempt of the same task, which is likely to end
	// soon. It is at least a second, asynq's grain, and up to a quarter longer, for jitter.
	// asynq acts on it within its DelayedTaskCheckInterval, 5 s by default. From 1 s to 183
	// days. Default 10 s.
	Snooze time.Duration

	// Overrun is how long a handler keeps its lease after its context has ended. A longer
	// one protects what the handler still does; a shorter one lets the next attempt in
	// sooner. From 1 ms to 183 days. Default 1 min.
	Overrun time.Duration

	// Every is how often the keeper checks each lock that waits for its task. So the lock
	// of an archived or deleted task is free that much later. Each check costs two commands
	// to asynq's Redis; with very many locks a round may take longer. A lock that was just
	// parked is checked first after joblock.Config.JobGrace, and is kept for a minute even
	// if its task does not exist. From 100 ms to half of Reserve. Default 30 s, or a
	// quarter of Reserve if that is less.
	Every time.Duration

	// Inspectors are those of further asynq databases whose tasks have locks in the
	// same store, besides the one given to New. The keeper must know them all: it takes
	// a task for gone if none of them has it. Default none.
	Inspectors []*asynq.Inspector

	// DryRun makes the keeper log and count what it would do, and change no lock. Such a
	// keeper can be the one that works: set it everywhere or nowhere.
	DryRun bool

	// Logger hears of locks that were busy, gone, lost or freed by the keeper, or that
	// could not be given back. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a checked copy of c with the defaults. c may be nil.
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
