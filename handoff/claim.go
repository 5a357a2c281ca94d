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
// An invalid key is answered with 400: most likely the client sent it. A Claim without a
// key, or with a field out of bounds, is the application's fault: it is answered with 500
// and logged. In neither case does the handler run.
type Claim struct {
	// NoLock says that the request needs no lock: it is served without one. No other field
	// may be set with it.
	NoLock bool

	// Key names the lock to take, and joblock.FromContext returns that lock. Build it with
	// joblock.Key and a fixed first part: if parts are joined by hand, two different
	// requests can end up with one key. A parameter of the route must be known when the
	// middleware runs; see "Routers" in the package comment.
	Key string

	// Keys are further keys, taken together with Key: all of them or none.
	Keys []string

	// TTL is the length of the leases; 0 means the Locker's. The locks are renewed while
	// the request runs. So TTL does not limit the request, only how long its locks outlive
	// a crash.
	TTL time.Duration

	// MaxWait is how long to wait for the locks; 0 means not at all. MaxWaiting bounds how
	// many requests wait.
	MaxWait time.Duration

	// MaxHold is how long the request may hold the locks: at most 366 days; 0 means one
	// minute. When it is up, the handler's context ends with cause ErrMaxHold, and the
	// locks are no longer renewed: one that is not released or handed over before its lease
	// runs out is lost. So a slow client, or a handler that hangs, keeps others out for
	// MaxHold and one TTL. Locks that were handed over or kept (Keep) by then are not
	// affected. A lock whose enqueue fails later comes back with one lease left.
	MaxHold time.Duration

	// Holder is the label people see in Status; "" means the Locker's.
	Holder string
}

// ErrMaxHold is the cause with which a handler's context ends when Claim.MaxHold is up.
var ErrMaxHold = errors.New("handoff: the request has held its locks for Claim.MaxHold")

// check refuses a Claim that does not say what to lock. The Locker checks its options
// itself.
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

// badKey reports whether no application may use key. "" is not bad: nobody has named a key.
func badKey(key string) bool {
	if key == "" {
		return false
	}
	_, err := joblock.NewToken(key, "owner", time.Second)
	return err != nil || keyspace.CheckApplication(key) != ""
}

// claimError is an ErrInvalid that is not the client's fault. It is about a Claim's
// settings or about what the store keeps at the key, or a handler got it from a call of its
// own and passed it to Refuse.
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
