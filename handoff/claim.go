package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// defaultMaxHold is the default of Claim.MaxHold: the time that proxies commonly allow a request.
const defaultMaxHold = time.Minute

// Claim says which locks a request needs. It must name a key or set NoLock. See Refusal for the answer to a bad Claim.
type Claim struct {
	// NoLock says that the request needs no lock: the handler runs without one. Every other field must then be zero.
	NoLock bool

	// Key names the lock that joblock.FromContext returns. Build Key with joblock.Key and a fixed first part: joined
	// by hand, the parts of two different requests can make the same key. A parameter of the route must be known when
	// the middleware runs; see "Routers" in the package comment.
	Key string

	// Keys are further keys. The middleware locks Key and Keys together: all of them or none.
	Keys []string

	// TTL is the length of the leases; 0 means the Locker's. The middleware renews the locks while the request runs, so
	// TTL limits only how long the locks outlive a crash, not the request.
	TTL time.Duration

	// MaxWait is how long to wait for the locks; 0 means not at all. Guard.MaxWaiting bounds how many requests
	// wait.
	MaxWait time.Duration

	// MaxHold is how long the request may hold the locks: at most 366 days; 0 means one minute. After MaxHold the
	// handler's context ends with a cause that matches context.DeadlineExceeded, and the locks are no longer renewed. A
	// lock is lost if it is neither released nor handed over before its lease runs out, so a slow client, or a handler
	// that hangs, keeps other requests out for up to MaxHold plus one TTL. Locks that were handed over or kept (Keep)
	// before MaxHold was up are not affected. If an enqueue fails after MaxHold, the lock comes back to the request for
	// one more lease.
	MaxHold time.Duration

	// Holder is the label that Status shows; "" means the Locker's.
	Holder string

	// Limit is how many requests and jobs may have Key, and each of Keys, at a time: from 1 to limit.Max. The locks are
	// then permits of package limit, and are handed over like other locks. Give the same Limit for a key everywhere. 0
	// means one holder, under an ordinary lock: an ordinary lock and a permit do not keep each other out.
	Limit int
}

// errMaxHold is the cause with which a handler's context ends when Claim.MaxHold is up.
var errMaxHold = fmt.Errorf("handoff: the request has held its locks for Claim.MaxHold: %w", context.DeadlineExceeded)

// check refuses a Claim that names no lock. The Locker checks the options itself.
func (c Claim) check() error {
	const op = "claim"
	switch {
	case c.NoLock && (c.Key != "" || len(c.Keys) > 0 || c.TTL != 0 || c.MaxWait != 0 || c.MaxHold != 0 || c.Holder != "" || c.Limit != 0):
		return enqueue.Invalid(op, c.Key, "Claim.NoLock is set together with other fields")
	case c.NoLock:
		return nil
	case c.Key == "":
		return enqueue.Invalid(op, "", "Claim.Key is empty: name a key, or set Claim.NoLock for a request that needs none")
	case slices.Contains(c.Keys, ""):
		return enqueue.Invalid(op, "", "a key in Claim.Keys is empty")
	case c.Limit < 0 || c.Limit > limit.Max:
		return enqueue.Invalid(op, c.Key, "Claim.Limit is %d, must be from 0 to %d", c.Limit, limit.Max)
	case c.MaxHold < 0 || c.MaxHold > driver.MaxPeriod:
		return enqueue.Invalid(op, c.Key, "Claim.MaxHold is %s, must be from 0 to %s", c.MaxHold, driver.MaxPeriod)
	}
	return nil
}

// keys returns all keys of the claim, Key first.
func (c Claim) keys() []string { return append([]string{c.Key}, c.Keys...) }

// options returns the claim's settings as options of the Locker.
func (c Claim) options() []joblock.AcquireOption {
	opts := []joblock.AcquireOption{joblock.MaxWait(c.MaxWait)}
	if c.TTL != 0 {
		opts = append(opts, joblock.TTL(c.TTL))
	}
	if c.Holder != "" {
		opts = append(opts, joblock.Holder(c.Holder))
	}
	return opts
}

// badKey reports whether no application may use key. badKey("") is false: the claim has named no key.
func badKey(key string) bool {
	if key == "" {
		return false
	}
	_, err := joblock.NewToken(key, "owner", time.Second)
	return err != nil || keyspace.CheckApplication(key) != ""
}

// claimError is an ErrInvalid that is not the client's fault. It is about a Claim's settings, the value that the store
// has at the key, or an argument of a call that the handler made before it called Refuse.
type claimError struct{ error }

func (e *claimError) Unwrap() error { return e.error }

// blame marks err as a claimError if err is an ErrInvalid and all keys are valid.
func blame(err error, keys ...string) error {
	if errors.Is(err, joblock.ErrInvalid) && !slices.ContainsFunc(keys, badKey) {
		return &claimError{err}
	}
	return err
}
