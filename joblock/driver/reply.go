package driver

import (
	"fmt"
	"time"
)

// Outcome is a Store's answer about one item.
type Outcome uint8

// The outcomes. The table in the package comment says which call gives which.
const (
	OutcomeUnknown Outcome = iota // no answer: it may or may not have been applied
	OutcomeOK
	OutcomeHeld     // owned by someone: a lease or a reservation stands
	OutcomeBusy     // refused while a lease is alive
	OutcomeNotFound // no record; of a forced release: the key is free
	OutcomeNotOwner // another owner, or another term of the same owner
	OutcomeReleased // this owner's ownership was ended by a release
	OutcomeLapsed   // the lease or, of Release, the reservation had run out
	OutcomeWrongJob // bound to another job
	OutcomeForeign  // the value at the key is no lock record
)

var outcomeNames = [...]string{
	"unknown", "ok", "held", "busy", "not found", "not owner", "released", "lapsed", "wrong job", "foreign",
}

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Reply is the answer about one item. Which fields are set depends on the Outcome; the
// others are zero.
type Reply struct {
	Outcome   Outcome
	Fence     int64         // OK, except of Release and Reserve: the term's fence
	Memo      []byte        // OK of Acquire and Resume, on request: what the last holder left
	Ended     Ended         // OK of Acquire: how the previous ownership ended; Released: how this one did
	Reason    string        // Released: the reason given with the release
	Detail    string        // Foreign: what is at the key, for people; may be empty
	Recovered bool          // OK of Resume and Reserve: the reservation had run out, but nobody had taken the key
	State     State         // Held, Busy, NotOwner, WrongJob; OK of Reserve
	Holder    string        // as State
	Job       string        // as State
	Remaining time.Duration // as State: of the lease, or of the reservation while nobody runs

	// Of Acquire.

	// OK: what is left of the lease; up to a millisecond too much. It is the whole TTL
	// unless the call finds an earlier grant.
	Lease time.Duration
	// Ahead is how many places in the queue are before the caller's. It is set with
	// OutcomeHeld if the caller waits.
	Ahead int
	// Held, while waiting, and OK if the request has Memo: the store's clock. Places in
	// the queue are in the order of these times.
	Now time.Time
}
