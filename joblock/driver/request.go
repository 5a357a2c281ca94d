package driver

import "time"

// Term names a term of a key by its Fence or by its Grant; one of the two is enough. A caller that did not get the
// reply with the fence uses Grant. Only Release accepts a Term with neither: such a Term names any term of the owner.
type Term struct {
	Key   string
	Owner string
	Fence int64
	Grant string // nonce of the Acquire, Take, Resume or Park that began the term
}

// AcquireRequest asks for a free key.
type AcquireRequest struct {
	Key      string
	Owner    string
	Nonce    string        // names this call; a repeated call has the same Nonce
	TTL      time.Duration // length of the lease, in whole milliseconds
	Retain   time.Duration // how long the record outlives the ownership
	Holder   string        // label for people
	Memo     bool          // asks for the memo in the reply
	Inbox    string        // if set, asks for a place in the queue; the Store pushes the grant to Inbox
	Patience time.Duration // with Inbox: how long the place lasts; each repeated call restarts Patience
}

// TakeRequest asks for a free key and parks the key for a job, in one step. If the key is not free, the job gets a place
// in the queue, or the Take is refused.
type TakeRequest struct {
	Key      string
	Owner    string
	Nonce    string        // names this call; a repeated call has the same Nonce
	Holder   string        // label for people
	Job      string        // as in ParkRequest
	Reserve  time.Duration // as in ParkRequest, from the grant on
	Retain   time.Duration // how long the record outlives the ownership
	Grace    time.Duration // as in ParkRequest
	Patience time.Duration // with Job: if not 0, asks for a place in the queue; how long the place lasts
	Most     int           // with Patience: a queue of Most places or more gets no new place; 0 means no bound
}

// ResumeRequest asks for a key that its owner has parked, or whose lease has run out.
type ResumeRequest struct {
	Key     string
	Owner   string
	Nonce   string
	TTL     time.Duration
	Retain  time.Duration
	Holder  string
	Job     string        // the job that the caller runs; a record bound to another job refuses the request
	Memo    bool          // asks for the memo in the reply
	Reserve time.Duration // least reservation beyond the lease; a longer reservation stays
	Grace   time.Duration // as in ParkRequest, for the entry that Resume may write to the index

	// Unpark says that the caller takes its own Park back. Back is the job that the record had before that Park. The
	// Store binds the record to Back again, even if the record is already bound to Back. A reservation as in Reserve
	// replaces the reservation that the Park made.
	Unpark bool
	Back   string

	// Fence is a fence of the ownership that the caller means; 0 means any ownership. If a later ownership of the same
	// owner, which may come from a late or repeated Acquire, has the key and is bound to no job, the Store refuses the
	// request. The Record.First of such an ownership is larger than Fence.
	Fence int64
}

// ParkRequest ends a live term and reserves the key for callers that have the owner's token.
type ParkRequest struct {
	Term
	Nonce   string
	Reserve time.Duration // length of the reservation, from now
	Retain  time.Duration
	Job     string        // binds the record to this job; "" binds the record to none
	Grace   time.Duration // with Job: from now until the entry in the index is due
}

// RenewRequest extends the lease of a live term.
type RenewRequest struct {
	Term
	TTL     time.Duration
	Retain  time.Duration
	Reserve time.Duration // as in ResumeRequest
	Back    string        // as in ResumeRequest, if Grant names a Park
	Memo    []byte        // nil leaves the memo unchanged; an empty Memo deletes the memo
}

// ReleaseKind says who ends an ownership, and when a Store refuses the release.
type ReleaseKind uint8

// The kinds of a release. A forced release needs no owner: of its Term, only Key and Fence count, and with
// ReleaseForcedIdle the Grant of the waiting job that the request names in Job.
const (
	ReleaseOwn        ReleaseKind = iota // by the owner
	ReleaseIdle                          // by the owner; refused while a lease is alive
	ReleaseForced                        // forced
	ReleaseForcedIdle                    // forced; refused while a lease is alive
)

// ByOwner reports whether only the owner can make a release of this kind.
func (k ReleaseKind) ByOwner() bool { return k == ReleaseOwn || k == ReleaseIdle }

// IfIdle reports whether a Store refuses a release of this kind while a lease is alive.
func (k ReleaseKind) IfIdle() bool { return k == ReleaseIdle || k == ReleaseForcedIdle }

// ReleaseRequest ends an ownership.
type ReleaseRequest struct {
	Term
	Nonce  string
	Kind   ReleaseKind
	Reason string        // stays in the record, for people and for a later Resume
	Job    string        // if set: must be the record's job
	Done   bool          // Job is done, so the record shows EndedDone; only with ReleaseOwn and ReleaseIdle
	Retain time.Duration // how long the record outlives its end
	Starts bool          // the caller starts the job in Reply.Next: there is no push to JobsInbox
	Grace  time.Duration // for the entry of a waiting job that gets a slot: see Slots in the package comment

	// Hint is Reply.Hint of the call that began the term, or "". It changes no answer: with it the release may cost the
	// store less. A Hint that is no longer true, because the lease was renewed since, does no harm.
	Hint string

	// Brief, if set, replaces Retain if the record has no memo. A caller that sets Brief states that every process that
	// may ask for this record knows of the end. For an exception, see Retention in the package comment.
	Brief time.Duration
}

// ReserveRequest asks the Store to keep a key reserved for the job that its record is bound to, or to keep the place of
// a job that waits.
type ReserveRequest struct {
	Key     string
	Job     string
	Nonce   string        // of the Take with which Job waits; "" if Job does not wait
	Reserve time.Duration // least reservation, or least time for which the place lasts, from now; a longer time stays
	Retain  time.Duration // how long the record outlives the reservation or the place
	Grace   time.Duration // as in ParkRequest, for the entry that Reserve may write to the index
	Starts  bool          // as in ReleaseRequest
}

// InspectRequest asks for the records of Keys.
type InspectRequest struct {
	Keys   []string
	Memo   bool     // asks for the memos too
	Places []string // unless nil, for each key the Nonce of a place that Record.Place is to show, or ""
}

// LineRequest asks for a page of the places in the queue of a key.
type LineRequest struct {
	Key    string
	Cursor string // "" for the first page, then the previous LinePage.Next
	Limit  int    // the most places of a page, from 1 to MaxBatch
}

// LinePage is a page of places, in the order in which the store serves them. Only the last page has an empty Next. Any
// page may have no places.
type LinePage struct {
	Places []Place
	Next   string
}

// ListRequest asks for a page of records.
type ListRequest struct {
	Prefix string // only keys that begin with Prefix
	Cursor string // "" for the first page, then one of ListPage.Next
	Count  int    // about how many keys the Store looks at for the page, whether or not these begin with Prefix
}

// ListPage is a page of records. Any page may have no records.
type ListPage struct {
	Records []Record

	// Next has the cursors of the pages that follow. After the first page, Next has at most one cursor.
	Next []string

	// Progress says how much of the whole list this page covers, from 0 to 1. The sum over all pages is about 1. If the
	// Store does not know, Progress is 0.
	Progress float64
}
