package handoff

import (
	"errors"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// defaultMaxHold is the default of Claim.MaxHold. It is what proxies commonly allow a
// request.
const defaultMaxHold = time.Minute

// Claim says which locks a request needs. It must name a key or set NoLock; otherwise the
// request is refused.
//
// A key with something wrong in it is answered 400: most likely the client has sent it. No
// key at all, or a field out of bounds, is the application's fault: it is answered 500 and
// logged. In neither case does the handler run.
type Claim struct {
	// NoLock says that the request needs no lock: it is served as if the middleware were
	// not there. Nothing else may be set with it.
	NoLock bool

	// Key is the lock to take, and the one that joblock.FromContext returns. Build it
	// with joblock.Key, with a fixed first part: if parts are joined by hand, two
	// different requests can end up with one key. A parameter of the route must be there
	// when the middleware runs; see "Routers" in the package comment.
	Key string

	// Keys are further keys, taken together with Key: all of them or none.
	Keys []string

	// TTL is the length of the leases; 0 means the Locker's. The locks are renewed while
	// the request runs, so TTL bounds what a crash costs, and not how long a request may
	// take.
	TTL time.Duration

	// MaxWait is how long to wait for the locks; 0 means not at all. See MaxWaiting
	// for how many requests may.
	MaxWait time.Duration

	// MaxHold is how long the request may hold the locks; 0 means one minute, 366 days is
	// the most. Then the handler's context ends with cause ErrMaxHold, and the locks are
	// no longer renewed: one that the handler does not release or hand over before its
	// lease runs out is lost. So a client that sends its body slowly, or a handler that
	// hangs, keeps others out for MaxHold and one TTL. Locks that were handed over or
	// kept (Keep) by then are left alone. A lock that comes back later, because there is
	// no job after all, has one lease left.
	MaxHold time.Duration

	// Holder is the label people see in Status; "" means the Locker's.
	Holder string
}

// ErrMaxHold is the cause with which a handler's context ends when the request has
// held its locks for Claim.MaxHold.
var ErrMaxHold = errors.New("handoff: the request has held its locks for Claim.MaxHold")

// check refuses a Claim that does not say what is to be locked. The Locker checks its
// options itself.
func (c Claim) check() error {
	const op = "claim"
	switch {
	case c.NoLock && (c.Key != "" || len(c.Keys) > 0 || c.TTL != 0 || c.MaxWait != 0 || c.MaxHold != 0 || c.Holder != ""):
		return invalid(op, c.Key, "Claim.NoLock is set together with other fields")
	case c.NoLock:
		return nil
	case c.Key == "":
		return invalid(op, "", "Claim.Key is empty: name a key, or set Claim.NoLock for a request that needs none")
	case slices.Contains(c.Keys, ""):
		return invalid(op, "", "a key in Claim.Keys is empty")
	case c.MaxHold < 0 || c.MaxHold > driver.MaxPeriod:
		return invalid(op, c.Key, "Claim.MaxHold is %s, must be from 0 to %s", c.MaxHold, driver.MaxPeriod)
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

// badKey reports whether key is one that no application can take. An empty one does
// not count: nobody has named a key.
func badKey(key string) bool {
	if key == "" {
		return false
	}
	_, err := joblock.NewToken(key, "owner", time.Second)
	return err != nil || keyspace.CheckApplication(key) != ""
}

// claimError is an ErrInvalid that is not the client's fault: about a Claim's settings,
// about what the store keeps at the key, or from a call that the handler made.
type claimError struct{ err error }

func (e *claimError) Error() string { return e.err.Error() }
func (e *claimError) Unwrap() error { return e.err }

// blame marks err as a claimError if it is an ErrInvalid that is not about a key.
func blame(err error, keys ...string) error {
	if errors.Is(err, joblock.ErrInvalid) && !slices.ContainsFunc(keys, badKey) {
		return &claimError{err}
	}
	return err
}
