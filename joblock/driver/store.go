package driver

import "context"

// Store keeps lock records and moves them between states.
//
// What each call does to a record is in the transition table of the package comment.
// A Store judges by its own clock only. It does not wait, and it does not retry.
//
// An error means that at least one item has no answer. Nothing is known about such an
// item: it may have been applied. Its Outcome is OutcomeUnknown. In a batch the other
// items are answered all the same, so that one dead node of a cluster does not hide the
// rest. A refusal is an Outcome, not an error. Methods return ctx's error when ctx has
// ended, and may be called by several goroutines at a time.
type Store interface {
	// Acquire takes a free key, or a place in the queue of those who wait for it.
	Acquire(ctx context.Context, req AcquireRequest) (Reply, error)

	// Resume continues an ownership that was parked or whose lease has run out.
	Resume(ctx context.Context, req ResumeRequest) (Reply, error)

	// Park ends a term and leaves the key reserved for its owner.
	Park(ctx context.Context, req ParkRequest) (Reply, error)

	// Renew extends leases: one reply per request, in the same order.
	Renew(ctx context.Context, reqs []RenewRequest) ([]Reply, error)

	// Release ends ownerships: one reply per request, in the same order.
	Release(ctx context.Context, reqs []ReleaseRequest) ([]Reply, error)

	// Reserve keeps keys reserved for the jobs that their records are bound to,
	// whoever the owner is and whether or not somebody runs: one reply per request, in
	// the same order.
	Reserve(ctx context.Context, reqs []ReserveRequest) ([]Reply, error)

	// Due returns at most req.Limit entries of the index that are due, earliest first.
	// In the same step it makes each due again after req.Later; no other call gets it
	// until then, even if the answer is lost. Fewer than req.Limit entries are all that
	// are due.
	Due(ctx context.Context, req DueRequest) ([]JobLock, error)

	// Forget removes entries from the index. An entry stays if it was written again, or
	// returned by another Due, after the Due that gave it this Mark.
	Forget(ctx context.Context, entries []JobLock) error

	// SealKeys returns the seal keys of this Store, at least one, in the order of Since
	// and then of Secret. See the package comment.
	SealKeys(ctx context.Context, req SealKeysRequest) ([]SealKey, error)

	// Subscribe delivers what is pushed to inbox until stop is called; ForcedInbox gets
	// the pushes of forced releases. The end of ctx does not end the subscription. stop
	// waits for a delivery under way. deliver does not block. An error means that there
	// is no subscription.
	Subscribe(ctx context.Context, inbox string, deliver func(Push)) (stop func(), err error)

	// Inspect reads records: one per key, in the same order. A key without a record
	// has State StateFree and Fence 0.
	Inspect(ctx context.Context, req InspectRequest) ([]Record, error)

	// List reads one page of records, without their memos, in no particular order. A
	// record that changes meanwhile may be missing or repeated.
	List(ctx context.Context, req ListRequest) (ListPage, error)

	// Close releases what the Store itself opened, and never what it was given. The
	// second call does nothing and returns nil.
	Close() error
}

// Validator is a Store whose constructor returns no error. joblock.New calls Validate, and
// returns its error if the Store was given something that it cannot use.
type Validator interface {
	Validate() error
}
