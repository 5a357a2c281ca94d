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

// Claim says which locks a request needs. It must name a key, or say that the request
// needs none: a Claim that does neither is an error and not a request without a lock.
//
// A key with something wrong in it is most likely what the client sent, and answered
// 400. The rest is the application's own: no key at all, or a field out of bounds, is
// answered 500 and logged. In neither case does the handler run.
type Claim struct {
	// NoLock says that the request needs no lock: it is served as if the middleware
	// were not there. Nothing else may be set with it.
	NoLock bool

	// Key is the lock to take, and what joblock.FromContext returns. Build it with
	// joblock.Key behind a fixed first part: joined by hand, two different requests
	// can mean one key. A parameter of the route must be there already when the
	// middleware runs; see "Routers" in the package comment.
	Key string

	// Keys are further keys, taken together with Key: all of them or none.
	Keys []string

	// TTL is the length of the leases; 0 means the Locker's. The locks are renewed
	// while the request runs, so this bounds what a crash costs and not what a
	// request may take.
	TTL time.Duration

	// MaxWait is how long to wait for the locks; 0 means not at all. See MaxWaiting
	// for how many requests may.
	MaxWait time.Duration

	// MaxHold is how long the request may hold the locks. Then the handler's context
	// ends with cause ErrMaxHold, and the locks are renewed no more: one that the
	// handler does not release or hand over before its lease runs out is lost. So a
	// client that sends its body slowly, or a handler that hangs, keeps others out for
	// MaxHold and one TTL. What was handed over, or kept (Keep), by then does not count;
	// a lock that comes back later, since there is no job after all, has one lease left.
	// 0 means one minute; at most 366 days.
	MaxHold time.Duration

	// Holder is the label people see in Status; "" means the Locker's.
	Holder string
}

// ErrMaxHold is the cause with which a handler's context ends when the request has
// held its locks for Claim.MaxHold.
var ErrMaxHold = errors.New("handoff: the request has held its locks for Claim.MaxHold")

// check refuses a Claim that does not say what is to be locked. What the Locker is
// told, it checks itself.
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

// claimError is an ErrInvalid that the client cannot help: of a Claim's settings,
// about what the store keeps at the key, or of a call that the handler made.
type claimError struct{ err error }

func (e *claimError) Error() string { return e.err.Error() }
func (e *claimError) Unwrap() error { return e.err }

// blame marks err as a claimError if it is an ErrInvalid that is not about a key.
func blame(err error, keys ...string) error {
	if joblock.CodeOf(err) == joblock.CodeInvalid && !slices.ContainsFunc(keys, badKey) {
		return &claimError{err}
	}
	return err
}
