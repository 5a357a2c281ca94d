package joblock

import (
	"log/slog"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/event"
)

// Config configures a Locker. The zero value of each field means its default. New returns ErrInvalid for a value that
// is out of bounds.
type Config struct {
	// TTL is how long a lease lasts, at least a millisecond. A holder renews its lease every third of the TTL. The lock of
	// a holder that has crashed is free again after one TTL. New logs a warning for a TTL below one second, which leaves
	// little room for a slow network. Default 30 s.
	TTL time.Duration

	// MaxTTL is the longest TTL that a call or a token may ask for, at most 366 days. Default 24 h, or TTL if TTL is
	// longer.
	MaxTTL time.Duration

	// Margin is how long before the end of its lease a lock stops being trusted, at most TTL/2. It gives the work time to
	// notice a loss, and covers a store's clock that runs fast. Default: a twentieth of the lease, at most 1 s.
	Margin time.Duration

	// MaxRenew is the longest time for which a lock is renewed, at most 366 days. Then the lease ends, so that a forgotten
	// lock is not held forever. Default: no bound.
	MaxRenew time.Duration

	// Reserve is how long a parked lock stays reserved for its job, if Park has no option Reserve. From a millisecond
	// to 366 days. Default 1 h.
	Reserve time.Duration

	// Retain is how long the store remembers a lock and its memo after the lock has ended. In that time errors
	// distinguish ErrAlreadyReleased from ErrNotFound. The store keeps a record of each key that was used in that time.
	// From a millisecond to 366 days. Default 5 min.
	//
	// A lock about which no other caller can ask is remembered only for twice CallTimeout, at least 5 s: its holder has
	// released it, no Token was made of it, it has no memo, and it was acquired without the options Owner and Retain.
	Retain time.Duration

	// JobGrace is the time from a Park for a job until jobs.Due first shows the lock, at most half of the reservation.
	// By then most jobs have ended, so a keeper need not look at them, and the tasks of the other jobs have been
	// enqueued. From a millisecond to 366 days. Default 20 s.
	JobGrace time.Duration

	// Poll is the interval at which a waiting Acquire asks the store if no push arrives, give or take a quarter. If a
	// sixth of the lease is shorter than Poll, that is the interval, except for waiters far back in line. A lost push
	// delays a waiter by at most one Poll. A waiter that died keeps its place in the queue for three polls. A shorter
	// Poll means more calls to the store. From a millisecond to an hour. Default 4 s.
	Poll time.Duration

	// WatchForced lets a holder find out at once that ForceRelease has taken its lock, instead of at its next renewal. It
	// costs one connection for each Locker, from its first lock on.
	WatchForced bool

	// CallTimeout bounds every call to the store, give or take an eighth. An earlier deadline of the caller's context
	// ends a call earlier. Cancelling that context does not always end a call that waits for its answer. A waiting
	// Acquire fails when the store has not answered it for CallTimeout. From a millisecond to an hour. Default 3 s.
	CallTimeout time.Duration

	// Holder labels this process's locks for people, in at most 256 bytes. Status, List and the errors of other callers
	// show the label. Default "host:pid".
	Holder string

	// Logger logs lost locks and clean-ups that failed, and never an owner token. Default slog.Default(). The JSON of a
	// Config leaves out Logger, Observer and Tracer.
	Logger *slog.Logger `json:"-"`

	// Secrets seal the locks that tasks carry in packages handoff and worker, so that a program that may only enqueue
	// tasks cannot take locks with them. New tasks are sealed with the first secret; workers accept every secret. Set the
	// same secrets in all processes: at most 8, each of 16 to 1024 bytes.
	//
	// Default: SecretOfStore alone, a secret that the store keeps with the locks. A secret of your own also keeps out
	// people who can read the locks but not write them.
	//
	// Change a secret, or introduce the first secret of your own, in three steps: add the new secret at the end; put it
	// first; remove the old secret when no task that it sealed is left. Take each step in all processes before the next
	// step. A worker that lacks the secret of a task does not run the task; the task waits for a worker that has the
	// secret.
	//
	//	{SecretOfStore} → {SecretOfStore, new} → {new, SecretOfStore} → {new}
	Secrets []Secret

	// Observer receives every Event. Default: none.
	Observer event.Observer `json:"-"`

	// Tracer creates a span for each call whose context has a trace, here and in packages handoff, worker and limit. Set
	// it in the processes that enqueue and in the workers. Default: none.
	Tracer event.Tracer `json:"-"`
}

func (c *Config) core() (*core.Config, error) {
	if c == nil {
		return nil, nil
	}
	if err := checkSecrets("new", c.Secrets); err != nil {
		return nil, err
	}
	full := &core.Config{
		TTL: c.TTL, MaxTTL: c.MaxTTL, Margin: c.Margin, MaxRenew: c.MaxRenew, Reserve: c.Reserve, Retain: c.Retain, JobGrace: c.JobGrace,
		Poll: c.Poll, WatchForced: c.WatchForced, CallTimeout: c.CallTimeout, Holder: c.Holder, Logger: c.Logger,
		Observer: c.Observer, Tracer: c.Tracer,
	}
	for _, s := range c.Secrets {
		if s == SecretOfStore {
			full.Secrets = append(full.Secrets, nil)
		} else {
			full.Secrets = append(full.Secrets, []byte(s))
		}
	}
	return full, nil
}
