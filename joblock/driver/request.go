package driver

import "time"

// Term names a term of a key by its Fence or, if the reply with the fence was lost, by the
// nonce of the call that began it. Either is enough. A Term with neither names whatever
// term the owner has; only Release accepts that.
type Term struct {
	Key   string
	Owner string
	Fence int64
	Grant string // nonce of the Acquire, Resume or Park that began the term
}

// AcquireRequest asks for a free key.
type AcquireRequest struct {
	Key    string
	Owner  string
	Nonce  string        // identifies this call across re-sends
	TTL    time.Duration // length of the lease, whole milliseconds
	Retain time.Duration // how long the record outlives the ownership
	Holder string        // label for people
	Memo   bool          // asks for the memo in the reply

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
	Job    string // the job that asks; a record bound to another job refuses it
	Memo   bool   // asks for the memo in the reply

	// Reserve keeps the key reserved for at least this long beyond the lease. It never
	// makes a reservation shorter.
	Reserve time.Duration
	// Grace is as in ParkRequest, for the entry that Resume may write to the index.
	Grace time.Duration

	// Unpark says that the caller takes its own Park back. The record is bound to Back
	// again, the job that it had before that Park. The field Reserve replaces
	// the reservation that the Park made. A record that is already bound to Back is not
	// refused.
	Unpark bool
	Back   string

	// Fence is a fence of the ownership that the caller means; 0 is any ownership. A
	// later ownership of the same owner has a larger Record.First, and is refused unless
	// it is bound to a job. It may come of an Acquire that was delayed or sent again.
	Fence int64
}

// ParkRequest ends a live term and keeps the key for whoever has the owner's token.
type ParkRequest struct {
	Term
	Nonce   string
	Reserve time.Duration // how long the key stays reserved, from now on
	Retain  time.Duration
	Job     string        // binds the record to this job; "" binds it to none
	Grace   time.Duration // with Job: from now until its entry in the index is due
}

// RenewRequest extends the lease of a live term.
type RenewRequest struct {
	Term
	TTL     time.Duration
	Retain  time.Duration
	Reserve time.Duration // as in ResumeRequest
	Back    string        // as in ResumeRequest, if Grant names a Park
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

// IfIdle reports whether a release of this kind is refused while a lease is alive.
func (k ReleaseKind) IfIdle() bool { return k == ReleaseIdle || k == ReleaseForJob }

// ReleaseRequest ends an ownership.
type ReleaseRequest struct {
	Term
	Nonce  string
	Kind   ReleaseKind
	Reason string // kept in the record, for people and for Resume

	// Job, if set, must be the job that the record is bound to. With ReleaseForJob it
	// must be so even if it is "".
	Job string
	// Done says that Job is done: the record shows EndedDone. Only with ReleaseOwn and
	// ReleaseIdle.
	Done bool

	// Retain is how long the record is remembered after its end.
	Retain time.Duration
	// Brief, if set, replaces Retain if the record has no memo. Who sets it states that
	// everybody who may ask has been told of the end. See "Retention" in the package
	// comment for when a store remembers a record longer.
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
