package joblock

import (
	"encoding/json"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
)

// State is the state of a key at an instant of the store's clock. The package comment has the states.
type State = driver.State

// The states of a key.
const (
	StateFree     = driver.StateFree
	StateHeld     = driver.StateHeld
	StateParked   = driver.StateParked
	StateOrphaned = driver.StateOrphaned
	StateForeign  = driver.StateForeign
)

// Status is the public part of a key's record. A Status contains no secrets.
type Status struct {
	Key      string        `json:"key"`
	State    State         `json:"state"`
	Owner    string        `json:"owner,omitempty"` // a digest; see Token.Digest
	Holder   string        `json:"holder,omitempty"`
	Job      string        `json:"job,omitempty"` // the job that the lock is bound to, as "queue/taskID"
	Fence    int64         `json:"fence,omitempty"`
	First    int64         `json:"first,omitempty"`   // the fence of the Acquire; tokens made before the Acquire have smaller fences
	Since    time.Time     `json:"since,omitzero"`    // when the key was acquired, by the store's clock, as all times here
	Changed  time.Time     `json:"changed,omitzero"`  // time of the last Acquire, Park, Reclaim, Resume or end of the ownership
	Renewed  time.Time     `json:"renewed,omitzero"`  // when the lease began or was last renewed; zero while parked and after a release
	TTL      time.Duration `json:"-"`                 // the length of that lease
	EndedAt  time.Time     `json:"ended_at,omitzero"` // when the last ownership of a free key ended, also by lapsing
	Now      time.Time     `json:"-"`                 // when the store read the key; zero if the store does not know the key
	Age      time.Duration `json:"-"`                 // time since Since; 0 unless owned
	Lease    time.Duration `json:"-"`                 // what is left of the lease; 0 unless held
	Reserved time.Duration `json:"-"`                 // time until another owner can get the key; 0 when free
	Ended    driver.Ended  `json:"ended,omitempty"`   // how the last ownership of a free key ended
	Reason   string        `json:"reason,omitempty"`  // the reason that was given with the release
	Waiters  int           `json:"waiters,omitempty"` // calls and jobs in the queue; a dead waiter counts for a while; see jobs.Line

	// ByHand means that the holder renews its lease by hand, if at all: a script, a client of the lock server, or a program
	// with NoRenew.
	ByHand bool `json:"-"`
}

// MarshalJSON writes durations as whole milliseconds, in ttl_ms, age_ms, lease_ms and reserved_ms.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status // without this method
	return json.Marshal(struct {
		plain
		TTL      int64 `json:"ttl_ms,omitempty"`
		Age      int64 `json:"age_ms,omitempty"`
		Lease    int64 `json:"lease_ms,omitempty"`
		Reserved int64 `json:"reserved_ms,omitempty"`
	}{plain(s), s.TTL.Milliseconds(), s.Age.Milliseconds(), s.Lease.Milliseconds(), s.Reserved.Milliseconds()})
}

// Locked reports whether the key is owned: held, parked or orphaned.
func (s Status) Locked() bool { return core.Status(s).Locked() }

// ListOptions narrows List. The zero value lists every key that is owned.
type ListOptions struct {
	// Prefix restricts the list to keys that begin with Prefix.
	Prefix string

	// Ended includes free keys that the store still remembers.
	Ended bool

	// Share bounds how much of the time List occupies one server of the store with its calls. After a page that took
	// the time t, List leaves that server alone for t*(1/Share-1). The loop's body runs in that time. A
	// smaller Share leaves more of the server to other clients. From 0.001 to 1; with 1 List does not rest. Default
	// 0.25.
	Share float64

	// Progress is called before the locks of each page, and at the end of a complete walk, with the part of the walk
	// that is done: from 0 to 1. A store may know only 0 and 1. List calls Progress in the goroutine of the loop.
	// Default: none.
	Progress func(done float64)
}
