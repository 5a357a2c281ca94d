package event

import (
	"math"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Event is something that has happened to a lock in this process. The table in the package comment says which fields
// each Kind sets; the other fields are zero. An Event has no secrets. In events of kind Contended and GaveUp, the
// fields Holder and Job describe the holder in the way.
type Event struct {
	Kind   Kind
	Key    string
	Owner  string // digest of the owner token, as in joblock.Status
	Fence  int64  // fence of the holding
	Holder string // label of the lock's holder
	Job    string // "queue/taskID" that the lock is bound to
	Reason string // given with the release
	Err    error  // why the event happened

	Waited time.Duration // since the call found the key busy; 0 if the key was free at once
	Held   time.Duration // since this process acquired, resumed or reclaimed the lock; for Overran: since the function began
	Late   time.Duration // since the renewal was due; a renewal is due after a third of the lease

	// Remaining is what is left of the holder's lease or, without a lease, of the reservation. For RateLimited it is the
	// time until the start. For HeldBack it is the time until the pause ends by itself, or 0.
	Remaining time.Duration

	Prior     driver.Ended // how the previous ownership ended; EndedLapsed: its holder died or was cut off
	Recovered bool         // the lock was resumed although its reservation had run out
	Locks     int          // number of renewals that got no answer
}

// Kind says what has happened.
type Kind uint8

// The kinds of events. The table in the package comment describes each kind.
const (
	Acquired Kind = iota + 1
	Contended
	GaveUp
	Resumed
	Reclaimed
	Parked
	Released
	Lost
	RenewedLate
	RenewalUnanswered
	ReleasedByToken
	Freed
	Forced
	CleanupFailed
	FellBack
	Overran
	RateLimited
	HeldBack
)

var names = [...]string{
	Acquired: "acquired", Contended: "contended", GaveUp: "gave up", Resumed: "resumed", Reclaimed: "reclaimed",
	Parked: "parked", Released: "released", Lost: "lost", RenewedLate: "renewed late",
	RenewalUnanswered: "renewal unanswered", ReleasedByToken: "released by token", Freed: "freed", Forced: "forced",
	CleanupFailed: "cleanup failed", FellBack: "fell back", Overran: "overran",
	RateLimited: "rate limited", HeldBack: "held back",
}

// String returns the kind's name in lower case: "" for the zero Kind, "unknown" for an undefined Kind.
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// MarshalText returns the name that String returns.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the reverse of MarshalText. A name that this version does not know is not an error: the value is
// then none of the constants above, and its String is "unknown".
func (k *Kind) UnmarshalText(text []byte) error {
	*k = math.MaxUint8
	if i := slices.Index(names[:], string(text)); i >= 0 {
		*k = Kind(i)
	}
	return nil
}
