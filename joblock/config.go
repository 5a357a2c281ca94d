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

// The defaults of Config.
const (
	defaultTTL         = 30 * time.Second
	defaultMaxTTL      = 24 * time.Hour
	defaultReserve     = time.Hour
	defaultRetain      = 5 * time.Minute
	defaultJobGrace    = 20 * time.Second
	defaultPoll        = 4 * time.Second
	defaultCallTimeout = 3 * time.Second
)

// Config configures a Locker. The zero value of each field means its default;
// negative values are refused.
type Config struct {
	// TTL is the length of a lease. It is renewed every third of it. A crashed holder's
	// lock can be had again after one TTL. At least a millisecond;
	// New warns of less than a second, which leaves little room for a slow network.
	// Default 30 s.
	TTL time.Duration

	// MaxTTL is the longest TTL that a call or a token may ask for. Default 24 h.
	MaxTTL time.Duration

	// Margin is how long before the end of its lease a lock stops being trusted: room
	// for the store's clock to run faster than ours, and for the work to notice. At most
	// TTL/2. Default a twentieth of the lease, at most 1 s.
	Margin time.Duration

	// MaxRenew is how long a lock is renewed at the most. Then it runs out, so that a
	// forgotten lock does not live for ever. Default: no bound.
	MaxRenew time.Duration

	// Reserve is how long a parked lock stays reserved for its job where the option of
	// the same name does not say. Default 1 h.
	Reserve time.Duration

	// Retain is how long the store remembers a lock that has ended. So long "already
	// released" can be told from "not found", and memos live. The store keeps as many
	// records as there are distinct keys in that time. Default 5 min.
	//
	// A lock that nobody else can ask for is remembered for twice CallTimeout only, at
	// least five seconds: its holder has released it, it has no memo, no token was made of
	// it, and neither the option Owner nor Retain was given.
	Retain time.Duration

	// JobGrace passes between a Park for a job and the first time that jobs.Due shows the
	// lock, or half of the reservation if that is less. Most jobs are over by then and
	// cost a keeper nothing; and a task, which is enqueued after the Park, is in its
	// queue. Default 20 s.
	JobGrace time.Duration

	// Poll is how often a waiting Acquire asks although nothing was pushed to it, give or
	// take a quarter. It asks at least six times in a lease in any case. Poll is what a
	// lost push costs at most, and what a waiter costs the store. A waiter that died keeps
	// its place in the queue for three polls. Default 4 s.
	Poll time.Duration

	// WatchForced lets a holder find out at once, and not at its next renewal, that
	// ForceRelease has taken its lock away. It costs a connection, from the first lock on.
	WatchForced bool

	// CallTimeout bounds every call to the store, give or take an eighth. A call whose
	// context is cancelled while it waits for an answer returns after that at the latest;
	// a context's deadline is kept to. A waiting Acquire gives up that long after the
	// first call without an answer. Default 3 s.
	CallTimeout time.Duration

	// Holder labels this process's locks for people: Status, List and the errors
	// of others show it. Default "host:pid".
	Holder string

	// Logger is told of lost locks and of clean-up that failed, and never of an owner
	// token. Default slog.Default().
	Logger *slog.Logger

	// Secrets seal what tasks carry in packages handoff and worker, so that the right to
	// enqueue a task is not the right to take a lock. The first one seals. What was sealed
	// with any of them counts. Set the same in all processes: at most 8, each from 16 to
	// 1024 bytes long.
	//
	// Default: SecretOfStore alone, a key that lives with the locks. A secret of your own
	// also keeps out those who may read the locks, but not write them.
	//
	// To change a secret, or to have one for the first time, add it at the end
	// everywhere, then put it first everywhere, then remove the old one when no tasks
	// that were sealed with it are left:
	//
	//	{SecretOfStore} → {SecretOfStore, new} → {new, SecretOfStore} → {new}
	Secrets []Secret

	// Observer is told of every Event. Default: nobody is, and nothing spent on it.
	// The tag is for those who keep a Config as JSON, which has no functions.
	Observer event.Observer `json:"-"`
}

// withDefaults returns a copy of c, which may be nil, with every zero field
// replaced by its default.
func (c *Config) withDefaults() *Config {
	var out Config
	if c != nil {
		out = *c
	}
	out.TTL = cmp.Or(out.TTL, defaultTTL)
	out.MaxTTL = cmp.Or(out.MaxTTL, max(defaultMaxTTL, out.TTL))
	out.Reserve = cmp.Or(out.Reserve, defaultReserve)
	out.Retain = cmp.Or(out.Retain, defaultRetain)
	out.JobGrace = cmp.Or(out.JobGrace, defaultJobGrace)
	out.Poll = cmp.Or(out.Poll, defaultPoll)
	out.CallTimeout = cmp.Or(out.CallTimeout, defaultCallTimeout)
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

// validate checks a Config that has its defaults.
func (c *Config) validate() error {
	const op = "new"
	for _, d := range []struct {
		name     string
		val      time.Duration
		min, max time.Duration
	}{
		{"Config.TTL", c.TTL, driver.MinPeriod, c.MaxTTL},
		{"Config.MaxTTL", c.MaxTTL, driver.MinPeriod, driver.MaxPeriod},
		{"Config.Margin", c.Margin, 0, c.TTL / 2},
		{"Config.MaxRenew", c.MaxRenew, 0, driver.MaxPeriod},
		{"Config.Reserve", c.Reserve, driver.MinPeriod, driver.MaxPeriod},
		{"Config.Retain", c.Retain, driver.MinPeriod, driver.MaxPeriod},
		{"Config.JobGrace", c.JobGrace, driver.MinPeriod, driver.MaxPeriod},
		{"Config.Poll", c.Poll, driver.MinPeriod, time.Hour},
		{"Config.CallTimeout", c.CallTimeout, driver.MinPeriod, time.Hour},
	} {
		if err := checkDuration(op, "", d.name, d.val, d.min, d.max); err != nil {
			return err
		}
	}
	if err := checkSecrets(op, c.Secrets); err != nil {
		return err
	}
	return checkText(op, "", "Config.Holder", c.Holder, 1, driver.MaxLabelBytes)
}

// margin returns what is taken off the trust deadline of a lease of length ttl.
// A Margin fixed for long leases is cut to half of a shorter one.
func (c *Config) margin(ttl time.Duration) time.Duration {
	if c.Margin > 0 {
		return min(c.Margin, ttl/2)
	}
	return min(ttl/20, time.Second)
}

// brief is how long the store remembers the end of a lock that nobody else can ask for:
// no token of it was made, and there is no memo. Its fence needs no remembering, as the
// store's clock has passed it. What is left is that its release may come again, from a
// client that had no answer, and is to be told that it was right: for CallTimeout, and as
// long again for what is under way meanwhile.
func (c *Config) brief() time.Duration { return max(2*c.CallTimeout, minBrief) }

// minBrief is for clocks that are set back a little: up to that fences grow although
// nothing is remembered.
const minBrief = 5 * time.Second

// checkDuration refuses values out of bounds, and names them.
func checkDuration(op, key, what string, d, lo, hi time.Duration) error {
	if d < lo {
		return invalid(op, key, "%s is %s, must be at least %s", what, d, lo)
	}
	if d > hi {
		return invalid(op, key, "%s is %s, must be at most %s", what, d, hi)
	}
	return nil
}
