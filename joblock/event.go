package joblock

import "time"

// Event is something that has happened to a lock in this process. Which fields are
// set depends on the Kind; the others are zero. It has no secrets in it.
type Event struct {
	Kind   EventKind
	Key    string
	Owner  string // digest of the caller's owner token, as in Status
	Fence  int64  // of the holding that the event is about
	Holder string // label of the lock; of Contended and GaveUp that of whoever is in the way
	Job    string // "queue/taskID" that the lock is bound to; of Contended and GaveUp as Holder
	Reason string // given with the release
	Err    error  // why; see the Kinds

	Waited    time.Duration // since the key was found busy; 0 when it was free at once
	Held      time.Duration // since this process acquired, resumed or reclaimed the lock
	Late      time.Duration // since the renewal was due
	Remaining time.Duration // of the lease in the way, or of the reservation while nobody runs

	Prior     Ended // of Acquired: how the previous ownership ended
	Recovered bool  // of Resumed: even the reservation had run out
	Locks     int   // of RenewalUnanswered: how many
}

// EventKind says what has happened.
type EventKind uint8

// The kinds of events. Each holding in this process begins with one of Acquired,
// Resumed and Reclaimed, and ends with one of Parked, Released and Lost. (Park can
// find out late that it had parked a lock that was given up for lost meanwhile;
// then both are told.) There is no event for a renewal that went as it should.
const (
	// EventAcquired: a call got the lock. Waited; Prior, of which EndedLapsed means
	// that the previous holder died or was cut off.
	EventAcquired EventKind = iota + 1
	// EventContended: a call found the key busy, and returns that or begins to wait.
	// Once per call. Holder, Job and Remaining are of whoever is in the way.
	EventContended
	// EventGaveUp: a call that had begun to wait ended without the lock. Waited; Err
	// says why, ErrTimeout when the time was up; Holder and Job as last heard of.
	EventGaveUp
	// EventResumed: a token's lock is held again, under a new fence. Recovered.
	EventResumed
	// EventReclaimed: a Park was undone.
	EventReclaimed
	// EventParked: the lock was handed over to Job. Fence is that of the token; Held.
	EventParked
	// EventReleased: the lock was given back by its handle. Held, Reason. With an Err
	// the store has not answered: the release is being repeated in the background.
	EventReleased
	// EventLost: the lock is no longer held, or no longer to be trusted. Held; Err
	// says why and matches ErrLost.
	EventLost
	// EventRenewedLate: a renewal was answered when more than two thirds of the lease
	// were used up. Late, from the one third after which it was due.
	EventRenewedLate
	// EventRenewalUnanswered: renewals had no answer and are tried again; Locks says how many,
	// Err why. At most once a second.
	EventRenewalUnanswered
	// EventReleasedByToken: Locker.Release has ended the lock by its owner token.
	EventReleasedByToken
	// EventFreed: ReleaseIdle or ReleaseForJob has freed the lock of a job that will
	// not run again. Job, if it was named; Reason.
	EventFreed
	// EventForced: ForceRelease has freed the key. Reason.
	EventForced
	// EventCleanupFailed: what a call without an answer may have left behind could not
	// be removed before its time ran out, or before Close. Err.
	EventCleanupFailed
)

var eventNames = [...]string{
	EventAcquired:          "acquired",
	EventContended:         "contended",
	EventGaveUp:            "gave up",
	EventResumed:           "resumed",
	EventReclaimed:         "reclaimed",
	EventParked:            "parked",
	EventReleased:          "released",
	EventLost:              "lost",
	EventRenewedLate:       "renewed late",
	EventRenewalUnanswered: "renewal unanswered",
	EventReleasedByToken:   "released by token",
	EventFreed:             "freed",
	EventForced:            "forced",
	EventCleanupFailed:     "cleanup failed",
}

// String returns the kind's name in lower case, "" for the zero EventKind.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "unknown"
}
