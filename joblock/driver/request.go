package driver

import "time"

// Term names one holding of a key: by its fence or, where the reply that carried the
// fence was lost, by the nonce of the call that made it. Either is enough. A Term with
// neither names whatever term the owner has; only Release takes one.
type Term struct {
	Key   string
	Owner string
	Fence int64
	Grant string // nonce of the Acquire, Resume or Park that made the term
}

// AcquireRequest asks for a free key.
type AcquireRequest struct {
	Key    string
	Owner  string
	Nonce  string        // identifies this call across re-sends
	TTL    time.Duration // length of the lease, whole milliseconds
	Retain time.Duration // how long the record outlives the ownership
	Holder string        // label for people
	Memo   bool          // the reply is to have the memo

	// Inbox, if set, asks for a place in the queue and names where to push the grant.
	Inbox string
	// Patience is how long the place is kept. Asking again under the same Nonce
	// begins it anew.
	Patience time.Duration
}

// ResumeRequest asks for a key that its owner has parked, or lost to a crash.
type ResumeRequest struct {
	Key    string
	Owner  string
	Nonce  string
	TTL    time.Duration
	Retain time.Duration
	Holder string
	Job    string // who asks; a record that is bound to a job answers to no other
	Memo   bool   // the reply is to have the memo

	// Reserve keeps the key reserved for at least this long beyond the lease. It never
	// makes a reservation shorter.
	Reserve time.Duration
	// Grace is as in ParkRequest, for what Resume writes to the index.
	Grace time.Duration

	// Unpark says that the caller takes its own Park back. The record is bound to Back
	// again, the job of before that Park. The reservation that the Park made goes; only
	// Reserve is left of it. A record that is bound to Back already answers too.
	Unpark bool
	Back   string

	// Fence is one that the ownership has had, as the caller's token says. It tells the
	// ownership from a later one of the same owner, whose Acquire was long under way or
	// was sent again: that has a larger Record.First. 0 is any ownership.
	Fence int64
}

// ParkRequest hands a live term over to whoever has the owner's token.
type ParkRequest struct {
	Term
	Nonce   string
	Reserve time.Duration // how long the key stays reserved, from now on
	Retain  time.Duration
	Job     string        // binds the record to this job; "" binds it to none
	Grace   time.Duration // with Job: until its entry in the index is due
}

// RenewRequest extends the lease of a live term.
type RenewRequest struct {
	Term
	TTL     time.Duration
	Retain  time.Duration
	Reserve time.Duration // as in ResumeRequest
	Back    string        // as in ResumeRequest, where an unanswered Park is taken back
	Memo    []byte        // nil leaves the memo as it is, an empty one deletes it
}

// ReleaseKind says who ends an ownership.
type ReleaseKind uint8

// The kinds of a release.
const (
	ReleaseOwn    ReleaseKind = iota // the owner ends the term named
	ReleaseIdle                      // the owner, but only while no lease is alive
	ReleaseForced                    // anybody; of Term only Key and, if set, Fence count
	ReleaseForJob                    // as ReleaseForced, for Job, but only while no lease is alive
)

// ByOwner reports whether only the owner can make a release of this kind.
func (k ReleaseKind) ByOwner() bool { return k == ReleaseOwn || k == ReleaseIdle }

// IfIdle reports whether a release of this kind leaves a live lease alone.
func (k ReleaseKind) IfIdle() bool { return k == ReleaseIdle || k == ReleaseForJob }

// ReleaseRequest ends an ownership.
type ReleaseRequest struct {
	Term
	Nonce  string
	Kind   ReleaseKind
	Reason string // kept in the record, for people and for Resume

	// Job, if set, leaves a record alone that is bound to another job. ReleaseForJob
	// always compares it.
	Job string
	// Done says that Job is done: the record shows EndedDone. Only with ReleaseOwn and
	// ReleaseIdle.
	Done bool

	// Retain is how long the record is remembered after its end. A record with a memo
	// stays as long as it would have without the release, if that is longer.
	Retain time.Duration
	// Brief, if set, stands for Retain where the record has no memo: everybody who may
	// ask has been told of its end. See "Retention" in the package comment for when a
	// store has to remember it longer.
	Brief time.Duration
}

// ReserveRequest keeps a key reserved for the job that its record is bound to.
type ReserveRequest struct {
	Key     string
	Job     string
	Reserve time.Duration // from now on; a reservation that lasts longer stays
	Retain  time.Duration // how long the record outlives the reservation
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

// ListPage is a page of records. The last page has an empty Next. A page before it may
// have no records.
type ListPage struct {
	Records []Record
	Next    string
}
