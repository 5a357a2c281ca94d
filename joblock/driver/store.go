package driver

import (
	"context"
	"errors"
)

// Store keeps lock records and moves them between states. The transition table in the package comment says what each
// call does to a record. A Store judges by its own clock only, and neither waits nor retries.
//
// An error means that at least one item has no answer. Such an item has OutcomeUnknown: the Store may or may not have
// applied the item. The other items of the batch have their answers, so that one dead node of a cluster does not hide
// the answers of other nodes. A refusal is an Outcome, not an error. If ctx has ended, a method returns ctx's error. A
// Store must be safe for concurrent use.
type Store interface {
	// Acquire takes a free key, or takes a place in the queue of a key that is not free.
	Acquire(ctx context.Context, req AcquireRequest) (Reply, error)

	// Take takes free keys and parks each for a job, or gives the jobs places in the queues. The replies are in the
	// order of reqs.
	Take(ctx context.Context, reqs []TakeRequest) ([]Reply, error)

	// Resume continues ownerships that were parked, or whose leases have run out. The replies are in the order of
	// reqs.
	Resume(ctx context.Context, reqs []ResumeRequest) ([]Reply, error)

	// Park ends terms and leaves the keys reserved for their owners. The replies are in the order of reqs.
	Park(ctx context.Context, reqs []ParkRequest) ([]Reply, error)

	// Renew extends leases. The replies are in the order of reqs.
	Renew(ctx context.Context, reqs []RenewRequest) ([]Reply, error)

	// Release ends ownerships. The replies are in the order of reqs.
	Release(ctx context.Context, reqs []ReleaseRequest) ([]Reply, error)

	// Reserve keeps keys reserved for the jobs that their records are bound to, and keeps the places of jobs that wait.
	// Neither the owner nor the lease matters to Reserve. The replies are in the order of reqs.
	Reserve(ctx context.Context, reqs []ReserveRequest) ([]Reply, error)

	// Parts returns the number of parts of the index, at least 1. Each call returns the same number, in every process
	// that has the same locks.
	Parts() int

	// Due claims and returns at most req.Limit entries of one part of the index that are due. In the same step Due
	// makes each returned entry due again after req.Claim. Until then no other Due returns the entry, even if the
	// answer is lost. DueReply.Next is 0 if more entries are due, and MaxPeriod if the part has no further entry or if
	// MaxPeriod would be exceeded. A Due that is called after Next has passed finds the entry that Next refers to.
	Due(ctx context.Context, req DueRequest) (DueReply, error)

	// Settle removes entries from the index, or sets when the entries are due. An entry stays as it is if, after the
	// Due that returned its Mark, the entry was written again, returned by another Due, or settled. After an error,
	// some of the entries may be settled.
	Settle(ctx context.Context, entries []Settlement) error

	// Entries reads one page of one part of the index, in no particular order, and claims nothing. An entry that is
	// there from before the first page until after the last page is on at least one page. Other entries may be missing
	// or come twice. Entries that are not due are included.
	Entries(ctx context.Context, req EntriesRequest) (EntriesPage, error)

	// SealKeys returns the seal keys of this Store, at least one, in the order of Since and then of Secret. See the
	// package comment.
	SealKeys(ctx context.Context, req SealKeysRequest) ([]SealKey, error)

	// Admit counts starts against the rates of keys, and keeps the lines of the IDs that wait for an opening. The
	// replies are in the order of reqs.
	Admit(ctx context.Context, reqs []AdmitRequest) ([]AdmitReply, error)

	// Subscribe calls deliver with each Push to inbox, until stop is called. Any other inbox belongs to one Store: if
	// an Acquire goes to another Store, this Store may miss the Push. ForcedInbox, JobsInbox and NotifyInbox belong to
	// all Stores that have the same locks. The end of ctx does not end the subscription. deliver must not block, and
	// stop waits for a running call of deliver. An error means that there is no subscription.
	Subscribe(ctx context.Context, inbox string, deliver func(Push)) (stop func(), err error)

	// Notify pushes key to NotifyInbox, so that the processes that work under the key check whether they may continue.
	// No record changes.
	Notify(ctx context.Context, key string) error

	// Inspect reads records, in the order of req.Keys. For a key without a record, Inspect returns StateFree and
	// Fence 0.
	Inspect(ctx context.Context, req InspectRequest) ([]Record, error)

	// Line reads one page of the places in the queue of a key. Places that have ended are left out. A place that is
	// taken or given up between two pages may be missing. A key without a record has an empty page.
	Line(ctx context.Context, req LineRequest) (LinePage, error)

	// List reads one page of records, without their memos, in no particular order. The package comment says how pages
	// follow one another. A record that changes between two pages may be missing or listed twice.
	List(ctx context.Context, req ListRequest) (ListPage, error)

	// Close releases what the Store itself opened, and nothing that its constructor was given. The second call does
	// nothing and returns nil.
	Close() error
}

// ErrRefused is in the chain of an error if the server has answered that it does not run the call, for example for lack
// of memory, and has changed nothing. The errors of package joblock then say "call refused" instead of "outcome
// unknown". In an error about several items, ErrRefused means that the server has refused each item that has no
// Outcome.
//
// A client of the server that sends calls again may get such an answer after an attempt without an answer. So
// ErrRefused is for people: whether an earlier attempt took effect is still unknown.
var ErrRefused = errors.New("the server has refused the call")
