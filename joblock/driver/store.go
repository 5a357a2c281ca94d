package driver

import (
	"context"
	"fmt"
	"time"
)

// Store keeps lock records and moves them between states. It is the seam between
// this package and a back end; applications pass a Store to [New] and otherwise
// never call it. Package storetest is the conformance suite of the contract.
//
// Each method is one atomic step per item, judged by the store's own clock only.
// A Store does not retry and does not wait.
//
// An error means that at least one item has no answer, and that nothing is known
// about it: it may have been applied. In batch calls the items that do have an
// answer are still reported (Outcome other than OutcomeUnknown), so that one dead
// node of a cluster does not hide the others. Everything else, refusals
// included, is an Outcome.
//
// Calls are idempotent: an item that arrives a second time with the Nonce under
// which it was already applied gets the first answer again and changes nothing;
// of the answer only what the record still shows (not Recovered, not that a
// Release came late).
type Store interface {
	// Acquire takes a free key. OK with Fence, Memo, Ended (how the previous
	// ownership ended) and Lease; Held with State, Holder, Job and Remaining;
	// Foreign.
	//
	// With req.Inbox it also takes a place in the key's queue, or keeps the one it
	// has under the same Nonce, and Held comes with Ahead and Now. Whatever frees the key
	// (Release, or any Acquire that finds the time run out) makes the first waiter
	// whose place is still kept the owner in the same step, as if its Acquire had
	// come at that moment, and pushes its Nonce to its inbox. So a free key with
	// waiters is the first one's, and an Acquire that finds it free is answered Held
	// unless it is the first in line itself. A waiter finds its grant by asking again
	// under its Nonce, pushed to or not, and is told all that it would have been told
	// at once, but for the lease, of which it is told what is left. Parking frees
	// nothing.
	Acquire(ctx context.Context, req AcquireRequest) (Reply, error)

	// Resume continues a parked or orphaned lock of the same owner under a new
	// fence. OK with Fence, Memo, and Recovered when even the reservation had run
	// out but nobody took the key in between; Busy while another attempt holds
	// it; Released; NotOwner, also where the record is bound to no job and req.Fence
	// is of before Since; WrongJob when the record is bound to a job other than
	// req.Job; NotFound; Foreign. What it recovers of a job, or binds to req.Back, is
	// in the index again before, as with Park.
	Resume(ctx context.Context, req ResumeRequest) (Reply, error)

	// Park ends the term and leaves the key reserved for its owner. OK with the
	// new Fence; Lapsed when the lease had ended; Released; NotOwner; NotFound;
	// Foreign. The same Nonce with another Job, while the first Park stands, moves
	// the reservation to that job under a new fence: its caller had no answer.
	//
	// With req.Job the pair of key and job is in the index (see Due) before the
	// record is bound to the job, due req.Grace from then. An entry that cannot
	// be written is an error, and the record is not bound.
	Park(ctx context.Context, req ParkRequest) (Reply, error)

	// Renew extends leases, one reply per request in the same order. A lease
	// that has ended is never extended: Lapsed. A record that the unanswered
	// Park named by Term.Grant had parked is held again, and bound to req.Back; the
	// reply's Fence is then that of the Park. The index stays as it is. Otherwise like
	// Park.
	Renew(ctx context.Context, reqs []RenewRequest) ([]Reply, error)

	// Release ends ownerships, one reply per request in the same order. OK; Lapsed
	// when the reservation had run out untouched (the record is ended all the
	// same). The refusals, in the order in which they are looked for: Foreign;
	// NotFound, and with Force also when the key is free; NotOwner, with Force only for
	// another Fence than that of the record; without Force Released; WrongJob when req.Job is set and not the job of the record; Busy with
	// IdleOnly while a lease is alive. The Term.Grant of a waiting Acquire gives its
	// place in the queue up, whatever the answer. The index keeps its entry.
	Release(ctx context.Context, reqs []ReleaseRequest) ([]Reply, error)

	// Reserve keeps keys reserved for the jobs that their records are bound to,
	// whoever the owner is and whether or not somebody runs, one reply per request
	// in the same order. A reservation only ever becomes longer; owner, fence and
	// lease stay. OK with State, Holder, Job and Remaining, and with Recovered when
	// the reservation had run out but nobody took the key in between: it stands
	// again, parked or orphaned. The refusals, in the order in which they are looked
	// for: Foreign; NotFound; WrongJob, also of a record bound to no job; Released.
	Reserve(ctx context.Context, reqs []ReserveRequest) ([]Reply, error)

	// Due returns entries of the index whose time has come, earliest first, and puts
	// each off by req.Later in the same step, so that neither the next call nor
	// somebody else's gets it until then. Fewer than req.Limit are all there are. A
	// second run of a call whose answer was lost does not find the first one's.
	//
	// The index has an entry for every pair of a key and the job that its record is
	// bound to, and others: those of records that have ended, that have been bound
	// to another job, or that were never parked because Park was refused. It may
	// lose an entry only to Forget, or JobKeep after its time has come.
	Due(ctx context.Context, req DueRequest) ([]JobLock, error)

	// Forget takes entries out of the index, but for those that were written or
	// looked at after the look that JobLock.Mark is of: whoever parks a key for the
	// same job meanwhile keeps its entry.
	Forget(ctx context.Context, entries []JobLock) error

	// SealKeys returns the SealKeys of this Store, at least one, in the order of Since
	// and those of one instant in that of their secrets. Those of req.Known that are not
	// there are put back first, as they were. If there is none then, req.Fresh is made
	// one. Of more than MaxSealKeys the oldest are dropped. They are never listed, are no
	// lock's record, and do not end by themselves.
	SealKeys(ctx context.Context, req SealKeysRequest) ([]SealKey, error)

	// Listen has what is pushed to inbox delivered, in any order, until the returned
	// function is called; that waits for a delivery under way. A push is the Nonce of
	// an Acquire that has been granted, and a hint to ask, no more: it may be lost,
	// at any time and unnoticed, come late or more than once, or be somebody's
	// invention. deliver does not block. An error means that there is no subscription
	// yet.
	Listen(ctx context.Context, inbox string, deliver func(nonce string)) (stop func(), err error)

	// Watch has the Forced pushes of all keys delivered, hints like those of Listen.
	// A Release with Force that cuts a live lease short makes one.
	Watch(ctx context.Context, deliver func(Forced)) (stop func(), err error)

	// Inspect reads records, one per key in the same order. A key without a
	// record yields a Record with State StateFree and Fence 0.
	Inspect(ctx context.Context, req InspectRequest) ([]Record, error)

	// List reads one page of records, without their memos, in no particular order. A
	// record may be missing or repeated if it changes meanwhile.
	List(ctx context.Context, req ListRequest) (ListPage, error)

	// Close releases what the Store itself opened. It never closes what it was
	// given.
	Close() error
}

// AcquireRequest asks for a free key.
type AcquireRequest struct {
	Key    string
	Owner  string
	Nonce  string        // identifies this call across re-sends
	TTL    time.Duration // length of the lease, whole milliseconds
	Retain time.Duration // how long the record outlives the ownership
	Holder string        // human label
	Memo   bool          // the answer is to have the memo

	// Inbox, if set, asks for a place in the queue and names where to push the
	// grant. Patience is how long the place is kept unless it is asked for again.
	Inbox    string
	Patience time.Duration
}

// Forced is pushed when a live holder is deprived of its lock.
type Forced struct {
	Key   string
	Fence int64 // of the holder's term
}

// ResumeRequest asks for a key that the owner has parked, or lost to a crash.
type ResumeRequest struct {
	Key    string
	Owner  string
	Nonce  string
	TTL    time.Duration
	Retain time.Duration
	Holder string
	Job    string // who asks; a record bound to a job answers only to it
	Memo   bool   // the answer is to have the memo

	// Hold keeps the reservation at least this long beyond the lease; 0 leaves it
	// as it is, but never shorter than the lease.
	Hold time.Duration

	Grace time.Duration // as with ParkRequest, of what is recovered for a job, or bound to Back

	// Unpark says that it is the Park's own caller who takes it back. The record is
	// bound to Back, the job of before that Park, and of the reservation nothing stays
	// but Hold beyond the lease. A record that is bound to Back already answers too.
	Unpark bool
	Back   string

	// Fence is one that the ownership had. A record whose Since is later, as fences in
	// microseconds count, is of another one: an Acquire of its owner that was long under
	// way, or that came again. That is refused unless the lock was bound to the job
	// since: then the job has taken its lock anew. 0 is of any.
	Fence int64
}

// Term names one holding of a key: by its fence or, where the reply that
// carried the fence was lost, by the nonce of the call that made it. A Term with
// neither names whatever holding the owner has.
type Term struct {
	Key   string
	Owner string
	Fence int64
	Grant string
}

// RenewRequest extends the lease of a live term.
type RenewRequest struct {
	Term
	TTL    time.Duration
	Retain time.Duration
	Hold   time.Duration // as with ResumeRequest
	Back   string        // as with ResumeRequest, where an unanswered Park is taken back
	Memo   []byte        // nil leaves the memo as it is
}

// ParkRequest hands a live term over to the owner token.
type ParkRequest struct {
	Term
	Nonce  string
	Hold   time.Duration // how long the key stays reserved
	Retain time.Duration
	Job    string        // binds the record to this job; "" binds it to none
	Grace  time.Duration // with Job: until its entry in the index is due
}

// ReleaseRequest ends an ownership. The record stays behind for Retain, so that
// fences keep growing and "already released" can be told from "not found". One with a
// memo stays for as long as it would have without the release, if that is longer: who
// ends a lock by force need not know how long its memo is to be kept.
type ReleaseRequest struct {
	Term
	Nonce  string
	Retain time.Duration

	// Brief, if set, is for how long the record is remembered instead if it has no memo:
	// its end has been told to all who may ask, but for those that send a call again. A
	// store remembers it longer where the next fence could be smaller otherwise: while
	// its clock, which was set back, is behind the record's fence.
	Brief time.Duration

	Reason   string // kept in the record for people and for Resume
	Force    bool   // whoever the owner is; of Term only Key and Fence, if set, are looked at
	IdleOnly bool   // leave it alone while a lease is alive
	Job      string // if set, leave it alone unless it is bound to this job
	Done     bool   // with Job and without Force: that job is done, see EndedDone
}

// InspectRequest asks for records.
type InspectRequest struct {
	Keys []string
	Memo bool // with their memos
}

// ListRequest asks for a page of records.
type ListRequest struct {
	Prefix string // only keys that begin with it
	Cursor string // "" for the first page, then ListPage.Next
	Count  int    // about how many records to look at
}

// ListPage is a page of records. The last page has an empty Next; a page before
// it may be empty.
type ListPage struct {
	Records []Record
	Next    string
}

// Outcome is a Store's answer about one item.
type Outcome uint8

// The outcomes. See the methods of Store for which call gives which.
const (
	OutcomeUnknown Outcome = iota // no answer: it may or may not have been applied
	OutcomeOK
	OutcomeHeld     // owned by someone: a lease or a reservation stands
	OutcomeBusy     // same owner, but a live lease is in the way
	OutcomeNotFound // no record
	OutcomeNotOwner // another owner, or another term of the same owner
	OutcomeReleased // this owner's ownership was ended by a release
	OutcomeLapsed   // the time ran out
	OutcomeWrongJob // bound to another job
	OutcomeForeign  // the value at the key is no lock record
)

var outcomeNames = [...]string{
	"unknown", "ok", "held", "busy", "not found", "not owner", "released", "lapsed", "wrong job", "foreign",
}

// String names the outcome for the reports of tests.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Reply is the answer about one item. Which fields are set depends on the
// Outcome; the others are zero.
type Reply struct {
	Outcome   Outcome
	Fence     int64         // OK: the term's fence
	Memo      []byte        // OK of Acquire and Resume, on request: what the last holder left
	Ended     Ended         // OK of Acquire: how the last ownership ended; Released
	Reason    string        // Released: what the release gave as its reason
	Detail    string        // Foreign: what is there instead, and where, for people; may be empty
	Recovered bool          // OK of Resume and Reserve
	State     State         // Held, Busy, NotOwner, WrongJob; OK of Reserve
	Holder    string        // as State
	Job       string        // as State
	Remaining time.Duration // as State: of the lease, or of the reservation while nobody runs

	// Of Acquire.
	Lease time.Duration // OK: what is left of the lease, up to a millisecond more; the whole of it unless the grant is an older one, found again
	Ahead int           // Held, when waiting: places in the queue before the caller's
	Now   time.Time     // Held, when waiting: the store's clock, in whose order the places are
}

// State is what a key is at an instant of the store's clock.
type State uint8

// The states of a key; the package comment explains them.
const (
	StateFree State = iota
	StateHeld
	StateParked
	StateOrphaned
	StateForeign // not a lock: a value of another kind stands at the key
)

var stateNames = [...]string{"free", "held", "parked", "orphaned", "foreign"}

// String returns the state's name in lower case.
func (s State) String() string { return nameOf(stateNames[:], int(s)) }

// MarshalText returns the same as String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Ended tells how the last ownership of a key came to its end.
type Ended uint8

// The ways an ownership ends.
const (
	EndedNone     Ended = iota // it has not, or there was none
	EndedReleased              // by its owner
	EndedForced                // by ForceRelease
	EndedLapsed                // its time ran out
	EndedDone                  // by package worker: the job that it was bound to is done
)

var endedNames = [...]string{"", "released", "forced", "lapsed", "done"}

// String returns the name in lower case, "" for EndedNone.
func (e Ended) String() string { return nameOf(endedNames[:], int(e)) }

// MarshalText returns the same as String.
func (e Ended) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

// Record is a lock record as read.
type Record struct {
	Key      string
	State    State
	Owner    string // a secret: see Status for what may be shown
	Fence    int64
	Lease    time.Duration // what is left of the lease; 0 unless held
	Reserved time.Duration // what is left until the key is anybody's; 0 when free
	Since    time.Time     // when the chain acquired it, by the store's clock
	Holder   string
	Job      string
	Ended    Ended
	Reason   string
	Memo     []byte    // on request
	Waiters  int       // places in the queue
	Now      time.Time // the store's clock at the read
}
