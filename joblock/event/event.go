package event

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Event is something that has happened to a lock in this process. The package comment
// has a table of the fields that each Kind sets; the others are zero. It has no secrets.
type Event struct {
	Kind   Kind
	Key    string
	Owner  string // digest of the owner token, as in joblock.Status
	Fence  int64  // of the holding
	Holder string // label of the lock's holder; Contended and GaveUp: of who has the key
	Job    string // "queue/taskID" that the lock is bound to; Contended and GaveUp: as Holder
	Reason string // given with the release
	Err    error  // why

	Waited    time.Duration // since the key was found busy; 0 when it was free at once
	Held      time.Duration // since this process acquired, resumed or reclaimed the lock
	Late      time.Duration // since the renewal was due, which is after a third of the lease
	Remaining time.Duration // what is left of the lease of who has the key, or of the reservation without a lease

	Prior     driver.Ended // how the previous ownership ended; Lapsed: its holder died or was cut off
	Recovered bool         // resumed although even the reservation had run out
	Locks     int          // how many renewals had no answer
}

// Kind says what has happened.
type Kind uint8

// The kinds of events, as in the table of the package comment.
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
)

var names = [...]string{
	Acquired:          "acquired",
	Contended:         "contended",
	GaveUp:            "gave up",
	Resumed:           "resumed",
	Reclaimed:         "reclaimed",
	Parked:            "parked",
	Released:          "released",
	Lost:              "lost",
	RenewedLate:       "renewed late",
	RenewalUnanswered: "renewal unanswered",
	ReleasedByToken:   "released by token",
	Freed:             "freed",
	Forced:            "forced",
	CleanupFailed:     "cleanup failed",
}

// String returns the kind's name in lower case: "" for the zero Kind, "unknown" for one
// that is not among the constants.
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}
