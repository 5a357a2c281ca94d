package driver

import (
	"fmt"
	"time"
)

// Outcome is a Store's answer about one item of a call.
type Outcome uint8

// The outcomes. The transition table in the package comment says which call answers which Outcome, and when.
const (
	OutcomeUnknown  Outcome = iota // no answer: the Store may or may not have applied the item
	OutcomeOK                      // the Store has applied the item
	OutcomeHeld                    // refused: the key has a lease or a reservation
	OutcomeBusy                    // refused: a lease is alive
	OutcomeNotFound                // the key has no record; after a forced release: the key is free
	OutcomeNotOwner                // refused: another owner, or another term of the same owner, has the key
	OutcomeReleased                // refused: a release has ended this owner's ownership
	OutcomeLapsed                  // the lease had run out; after a Release: the reservation had run out
	OutcomeWrongJob                // refused: the record is bound to another job
	OutcomeForeign                 // refused: the value at the key is not a lock record
	OutcomeFull                    // refused: the queue has TakeRequest.Most places
)

var outcomeNames = [...]string{
	"unknown", "ok", "held", "busy", "not found", "not owner", "released", "lapsed", "wrong job", "foreign",
	"full",
}

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Reply is a Store's answer about one item of a call. The Outcome decides which fields are set; the other fields are
// zero. The comment of a field begins with the outcomes that set the field. If that comment also names calls, only
// those calls set the field. If the key is free, the State is StateFree, and Holder, Job and Remaining are zero,
// except the Job of OutcomeWrongJob: a previous owner is not shown.
type Reply struct {
	Outcome   Outcome
	Fence     int64         // OK of all calls except Release and Reserve; Held: the fence of the present term
	Memo      []byte        // OK of Acquire and Resume, if the request has Memo: the key's memo
	Ended     Ended         // OK of Acquire and Take: how the previous ownership ended. Released: how the caller's ended
	Reason    string        // Released: the reason that was given with the release
	Detail    string        // Foreign: what is at the key, for people; may be empty
	Recovered bool          // OK of Resume and Reserve: the reservation had run out, but the key had not been taken
	State     State         // Held, Full, Busy, NotOwner, WrongJob, OK of Reserve: the key's state after the call
	Holder    string        // as State: the label of the holder
	Job       string        // as State: the job that the record is bound to
	Remaining time.Duration // as State: what is left of the lease or, without a lease, of the reservation

	Lease time.Duration // OK of Acquire: what is left of the lease, up to a millisecond too much
	Ahead int           // Held with a place in the queue: the number of places before that place. Full: of all places

	// Now is the store's clock. Held with a place in the queue sets Now, and so does OK of Acquire if the request has
	// Memo. Places in the queue are in the order of their Now.
	Now   time.Time
	Since time.Time // Held of Take and Reserve, with a place: when the place was taken; equal to Now if the place is new

	Next string // any outcome of Release and Reserve: the waiting job that this call has granted the key to, or ""

	// Hint is for a later ReleaseRequest of the same term. It may be empty, and means nothing to any other Store. A
	// Hint has the owner in it: keep it out of logs. OK of Acquire and Resume.
	Hint string
}
