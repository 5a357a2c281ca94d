package handoff

import (
	"time"

	"github.com/joblock/toolkit/joblock"
)

// Claim says which locks a request needs. The zero Claim needs none: the request
// is served as if the middleware were not there. A Claim that has anything set
// but names no key is ErrInvalid and not a request without a lock.
//
// The keys are made of what the client sent, so a bad one is the client's fault
// and answered 400. The other fields are the application's own: one out of bounds
// is answered 500 and logged.
type Claim struct {
	// Key is the lock to take, and what joblock.FromContext returns. Build it with
	// joblock.Key behind a fixed first part: joined by hand, two different
	// requests can mean one key, and a bare empty parameter is the zero Claim.
	Key string

	// Keys are further keys, taken together with Key: all of them or none.
	Keys []string

	// TTL is the length of the leases; 0 means the Locker's. The locks are renewed
	// for as long as the request runs, so this bounds what a crash costs and not
	// what a request may take.
	TTL time.Duration

	// MaxWait is how long to wait for the locks; 0 means not at all.
	MaxWait time.Duration

	// Holder is the label people see in Status; "" means the Locker's.
	Holder string
}

// keys returns all keys of the claim, Key first.
func (c Claim) keys() []string {
	if c.Key == "" && len(c.Keys) > 0 {
		return c.Keys
	}
	return append([]string{c.Key}, c.Keys...)
}

// isZero reports whether the claim asks for nothing.
func (c Claim) isZero() bool {
	return c.Key == "" && len(c.Keys) == 0 && c.TTL == 0 && c.MaxWait == 0 && c.Holder == ""
}

// options returns the claim's settings as options of the Locker.
func (c Claim) options() []joblock.Option {
	opts := []joblock.Option{joblock.MaxWait(c.MaxWait)}
	if c.TTL != 0 {
		opts = append(opts, joblock.TTL(c.TTL))
	}
	if c.Holder != "" {
		opts = append(opts, joblock.Holder(c.Holder))
	}
	return opts
}
