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

// Config configures a Locker. The zero value of each field means its default. A value out of bounds is ErrInvalid.
type Config struct {
	// TTL is how long a lease lasts, at least a millisecond. A holder renews its lease every third of the TTL. The lock
	// of a holder that has crashed is free again after one TTL. New logs a warning for a TTL below one second, because
	// such a TTL leaves little room for a slow network. Default 30 s.
	TTL time.Duration

	// MaxTTL is the longest TTL that a call or a token may ask for, at most 366 days. Default 24 h, or TTL if TTL is
	// longer.
	MaxTTL time.Duration

	// Margin is how long before the end of its lease a lock stops being trusted, at most TTL/2. The margin gives the
	// work time to notice a loss, and covers a store's clock that runs fast. Default: a twentieth of the lease, at most
	// 1 s.
	Margin time.Duration

	// MaxRenew is the longest time for which a lock is renewed, at most 366 days. Then the lease ends, so that a
	// forgotten lock does not live for ever. Default: no bound.
	MaxRenew time.Duration

	// Reserve is how long a parked lock stays reserved for its job, if Park has no option Reserve. From a millisecond
	// to 366 days. Default 1 h.
	Reserve time.Duration

	// Retain is how long the store remembers a lock and its memo after the lock has ended. In that time errors
	// distinguish ErrAlreadyReleased from ErrNotFound. The store keeps a record of each key that was used in that time.
	// From a millisecond to 366 days. Default 5 min.
	//
	// If nobody else can ask for a lock, the store remembers the lock for twice CallTimeout, at least 5 s, and not for
	// Retain. Such a lock was released by its holder and has no memo. No token was made of the lock, and the lock was
	// taken without the options Owner and Retain.
	Retain time.Duration

	// JobGrace is the time from a Park for a job until jobs.Due first shows the lock, at most half of the reservation.
	// By then most jobs are over and cost a keeper nothing, and the tasks of the other jobs, which are enqueued after
	// the Park, are in the queue. From a millisecond to 366 days. Default 20 s.
	JobGrace time.Duration

	// Poll is how often a waiting Acquire asks the store without a push, give or take a quarter. If a lease has fewer
	// than six polls, Acquire asks six times in a lease instead. A lost push costs at most one Poll. A waiter that died
	// keeps its place in the queue for three polls. A shorter Poll costs the store more calls. From a millisecond to an
	// hour. Default 4 s.
	Poll time.Duration

	// WatchForced lets a holder find out at once that ForceRelease has taken its lock away. Without WatchForced the
	// holder finds out at its next renewal. The price is one connection for each Locker, from its first lock on.
	WatchForced bool

	// CallTimeout bounds every call to the store, give or take an eighth. The deadline of the caller's context ends a
	// call earlier. Cancelling that context may not end a call that waits for its answer. A waiting Acquire fails
	// CallTimeout after its first call without an answer. From a millisecond to an hour. Default 3 s.
	CallTimeout time.Duration

	// Holder is a label for people on this process's locks, at most 256 bytes. Status, List and the errors of other
	// callers show the label. Default "host:pid".
	Holder string

	// Logger logs lost locks and clean-ups that failed, and never an owner token. Default slog.Default(). JSON leaves out
	// the Logger, the Observer and the Tracer, because JSON has no code.
	Logger *slog.Logger `json:"-"`

	// Secrets seal what tasks carry in packages handoff and worker, so that the right to enqueue a task is not the
	// right to take a lock. The first secret seals, and every secret opens. Set the same secrets in all processes: at
	// most 8, each of 16 to 1024 bytes.
	//
	// Default: SecretOfStore alone, a secret that the store keeps with the locks. A secret of your own also keeps out
	// people who can read the locks but cannot write locks.
	//
	// Change a secret, or introduce the first secret of your own, in three steps: add the new secret at the end; put
	// the new secret first; remove the old secret when no task that the old secret sealed is left. Take each step in
	// all processes before the next step. A worker that lacks the secret of a task does not run the task: the task waits
	// for a worker that has the secret.
	//
	//	{SecretOfStore} → {SecretOfStore, new} → {new, SecretOfStore} → {new}
	Secrets []Secret

	// Observer receives every Event. Default: none.
	Observer event.Observer `json:"-"`

	// Tracer makes spans of calls whose context is in a trace, here and in packages handoff, worker and limit. Set it in
	// the processes that enqueue and in those that work. Default: none.
	Tracer event.Tracer `json:"-"`
}

// withDefaults returns a copy of c in which every zero field has its default. c may be nil.
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

// The method margin returns the time between the trust deadline and the end of a lease. That time is Config.Margin or
// its default, but at most half of ttl, the length of the lease.
func (c *Config) margin(ttl time.Duration) time.Duration {
	if c.Margin > 0 {
		return min(c.Margin, ttl/2)
	}
	return min(ttl/20, time.Second)
}

// The method brief returns how long the store remembers the end of a lock that nobody else can ask for. The store can
// forget the fence of such a lock, because the store's clock has passed the fence. But a client without an answer may
// repeat its release, and must learn that the first release succeeded. Repeats come for CallTimeout, and as long again
// from calls under way.
func (c *Config) brief() time.Duration { return max(2*c.CallTimeout, minBrief) }

// minBrief is how far back the store's clock may be set while new fences are still larger than forgotten fences.
const minBrief = 5 * time.Second

// The type duration is the value of a setting or an option, with the name for errors, and with two inclusive bounds.
type duration struct {
	name        string
	val, lo, hi time.Duration
}

// checkDurations returns an ErrInvalid for the first duration out of bounds, and nil if there is none.
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
