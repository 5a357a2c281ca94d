package joblock

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Config configures a Locker. The zero value of each field means its default;
// negative values are refused.
type Config struct {
	// TTL is how long a lease lasts. It is renewed after a third of that. The lock of a
	// holder that has crashed is free again after one TTL. At least a millisecond; New
	// warns of less than a second, which leaves little room for a slow network. Default
	// 30 s.
	TTL time.Duration

	// MaxTTL is the longest TTL that a call or a token may ask for, at most 366 days.
	// Default 24 h, or TTL if that is longer.
	MaxTTL time.Duration

	// Margin is how long before the end of its lease a lock stops being trusted. In
	// that time the work can notice, and the store's clock may run faster than ours. At
	// most TTL/2. Default a twentieth of the lease, at most 1 s.
	Margin time.Duration

	// MaxRenew is the longest time for which a lock is renewed, at most 366 days. Then
	// it runs out, so that a forgotten lock does not live for ever. Default: no bound.
	MaxRenew time.Duration

	// Reserve is how long a parked lock stays reserved for its job, unless the option
	// Reserve says otherwise. From a millisecond to 366 days. Default 1 h.
	Reserve time.Duration

	// Retain is how long the store remembers a lock after its end. For that long,
	// "already released" can be told from "not found", and memos live. The store keeps
	// as many records as there are distinct keys in that time. At most 366 days.
	// Default 5 min.
	//
	// A lock that nobody else can ask for is remembered only for twice CallTimeout, at
	// least five seconds. Such a lock was released by its holder, has no memo, was not
	// made into a token, and was taken without the options Owner and Retain.
	Retain time.Duration

	// JobGrace is the time from a Park for a job until jobs.Due first shows the lock.
	// It is half of the reservation if that is less. Most jobs are over by then and
	// cost a keeper nothing. Those that are not have their tasks, which are enqueued
	// after the Park, in the queue. Default 20 s.
	JobGrace time.Duration

	// Poll is how often a waiting Acquire asks without a push, give or take a quarter.
	// It asks at least six times in a lease in any case. A lost push costs at most one
	// Poll. A waiter that died keeps its place in the queue for three. A shorter Poll
	// costs the store more calls. At most an hour. Default 4 s.
	Poll time.Duration

	// WatchForced lets a holder find out at once that ForceRelease has taken its lock
	// away, not only at its next renewal. It costs a connection, from the first lock
	// on.
	WatchForced bool

	// CallTimeout bounds every call to the store, give or take an eighth. The deadline
	// of a context ends a call earlier. Cancelling the context may not, once the call
	// waits for its answer. A waiting Acquire gives up CallTimeout after its first call
	// without an answer. At most an hour. Default 3 s.
	CallTimeout time.Duration

	// Holder labels this process's locks for people: Status, List and the errors of
	// others show it. At most 256 bytes. Default "host:pid".
	Holder string

	// Logger is told of lost locks and of clean-up that failed, and never of an owner
	// token. Default slog.Default().
	Logger *slog.Logger

	// Secrets seal what tasks carry in packages handoff and worker, so that the right
	// to enqueue a task is not the right to take a lock. The first one seals, and any
	// of them opens. Set the same in all processes: at most 8, each of 16 to 1024
	// bytes.
	//
	// Default: SecretOfStore alone, a key that lives with the locks. A secret of your
	// own also keeps out those who can read the locks but not write them.
	//
	// Change a secret, or introduce the first one, in three steps. Take each in all
	// processes before the next: add the new one at the end; put it first; remove the
	// old one when no task that it sealed is left.
	//
	//	{SecretOfStore} → {SecretOfStore, new} → {new, SecretOfStore} → {new}
	Secrets []Secret

	// Observer is told of every Event. Default: none. JSON leaves it out, having no
	// functions.
	Observer event.Observer `json:"-"`
}

// withDefaults returns a copy of c, which may be nil, with every zero field
// replaced by its default.
func (c *Config) withDefaults() *Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.TTL = cmp.Or(out.TTL, 30*time.Second)
	out.MaxTTL = cmp.Or(out.MaxTTL, max(24*time.Hour, out.TTL))
	out.Reserve = cmp.Or(out.Reserve, time.Hour)
	out.Retain = cmp.Or(out.Retain, 5*time.Minute)
	out.JobGrace = cmp.Or(out.JobGrace, 20*time.Second)
	out.Poll = cmp.Or(out.Poll, 4*time.Second)
	out.CallTimeout = cmp.Or(out.CallTimeout, 3*time.Second)
	out.Secrets = slices.Clone(out.Secrets)
	if len(out.Secrets) == 0 {
		out.Secrets = []Secret{SecretOfStore}
	}
	if out.Holder == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		out.Holder = shorten(fmt.Sprintf("%s:%d", host, os.Getpid()), driver.MaxLabelBytes-8)
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return &out
}

func (c *Config) validate() error {
	const op = "new"
	if err := checkDurations(op, "",
		duration{"Config.TTL", c.TTL, driver.MinPeriod, c.MaxTTL},
		duration{"Config.MaxTTL", c.MaxTTL, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.Margin", c.Margin, 0, c.TTL / 2},
		duration{"Config.MaxRenew", c.MaxRenew, 0, driver.MaxPeriod},
		duration{"Config.Reserve", c.Reserve, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.Retain", c.Retain, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.JobGrace", c.JobGrace, driver.MinPeriod, driver.MaxPeriod},
		duration{"Config.Poll", c.Poll, driver.MinPeriod, time.Hour},
		duration{"Config.CallTimeout", c.CallTimeout, driver.MinPeriod, time.Hour},
	); err != nil {
		return err
	}
	if err := checkSecrets(op, c.Secrets); err != nil {
		return err
	}
	return checkText(op, "", "Config.Holder", c.Holder, 1, driver.MaxLabelBytes)
}

// margin returns how long before its end a lease of length ttl stops being trusted. A
// Margin set for long leases is cut to half of a shorter one.
func (c *Config) margin(ttl time.Duration) time.Duration {
	if c.Margin > 0 {
		return min(c.Margin, ttl/2)
	}
	return min(ttl/20, time.Second)
}

// brief is how long the store remembers the end of a lock that nobody else can ask for.
// Its fence need not be remembered, because the store's clock has passed it. But a
// client that had no answer may send the release again, and must be told that it
// succeeded. That can happen for CallTimeout, and as long again for calls that are
// under way.
func (c *Config) brief() time.Duration { return max(2*c.CallTimeout, minBrief) }

// minBrief is how far the store's clock may be set back while fences still grow
// although nothing is remembered.
const minBrief = 5 * time.Second

// duration is a value, by its name in errors, and its bounds, both inclusive.
type duration struct {
	name        string
	val, lo, hi time.Duration
}

// checkDurations returns the error of the first duration that is out of its bounds.
func checkDurations(op, key string, all ...duration) error {
	for _, d := range all {
		if d.val < d.lo {
			return invalid(op, key, "%s is %s, must be at least %s", d.name, d.val, d.lo)
		}
		if d.val > d.hi {
			return invalid(op, key, "%s is %s, must be at most %s", d.name, d.val, d.hi)
		}
	}
	return nil
}
