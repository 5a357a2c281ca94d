package jobs

import (
	"context"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Entry is an entry of the index: a key and a job, "queue/taskID", that the key's lock was bound to.
type Entry = driver.Entry

// DueRequest asks for up to Limit entries of the part Part of the index, and claims them for the time Claim; see Due.
type DueRequest = driver.DueRequest

// DueReply has the Entries that Due has claimed, and Next, the time until another entry is due.
type DueReply = driver.DueReply

// Settlement says when an entry that Due has returned is due again.
type Settlement = driver.Settlement

// Parts returns the number of parts of the index: 1, or more where the locks are on several nodes. Each entry is in one
// part. The number does not change. Parts returns 0 for a Locker that joblock.New has not made.
func Parts(locks *joblock.Locker) int { return (*core.Locker)(locks).Parts() }

// Due claims up to req.Limit entries whose locks a keeper should check now, the longest overdue first. req.Part is from
// 0 to Parts-1, req.Limit from 1 to 1000, and req.Claim from a millisecond to 366 days. Until the claim has ended, no
// other Due returns these entries. Settle the entries before the claim ends: the entries of a claim that has ended are
// due. So several keepers share the work, and the entries of a keeper that has died come back.
//
// DueReply.Next is the time until another entry is due, one that Due has not returned: 0 if more entries are due now. A
// lock that is parked later may be due earlier: Config.JobGrace after its Park, or after half of its reservation if
// that is shorter. After ErrUnavailable, entries may be claimed although no Due has returned them.
func Due(ctx context.Context, locks *joblock.Locker, req DueRequest) (due DueReply, err error) {
	const op = "due jobs"
	in := (*core.Locker)(locks)
	if err := in.Check(op); err != nil {
		return DueReply{}, err
	}
	if req.Part < 0 || req.Part >= in.Parts() {
		return DueReply{}, core.Invalid(op, "", "part is %d, must be from 0 to %d", req.Part, in.Parts()-1)
	}
	if req.Limit < 1 || req.Limit > driver.MaxBatch {
		return DueReply{}, core.Invalid(op, "", "limit is %d, must be from 1 to %d", req.Limit, driver.MaxBatch)
	}
	if err := core.CheckPeriod(op, "", "claim", req.Claim, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return DueReply{}, err
	}
	err = in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		due, err = store.Due(ctx, req)
		return err
	})
	if err != nil {
		return DueReply{}, err
	}
	// No Locker writes an invalid entry, but another program may. Settle would refuse a whole batch because of one.
	due.Entries = slices.DeleteFunc(due.Entries, func(e Entry) bool { return in.CheckJob(op, e.Key, e.Job) != nil })
	return due, nil
}

// Settle removes entries that Due has returned, or sets when they are due again. Remove the entries of locks that are
// free or bound to another job: Settlement.Again is 0. For all other locks Again is the time until the next check, from
// a millisecond to 366 days. An entry stays as it is if a later Park bound the lock to the same job, or if the claim
// has ended and another Due has returned the entry. If Entry.Settled is set, the next Due may return the entry with
// Settled, which means that no Park has come in between. Repeating a Settle does no harm. After an error, some of the
// entries may be settled.
func Settle(ctx context.Context, locks *joblock.Locker, entries ...Settlement) error {
	const op = "settle jobs"
	in := (*core.Locker)(locks)
	if err := in.Check(op); err != nil {
		return err
	}
	for _, e := range entries {
		err := in.CheckJob(op, e.Key, e.Job)
		if err == nil && e.Again != 0 {
			err = core.CheckPeriod(op, e.Key, "Settlement.Again", e.Again, driver.MinPeriod, driver.MaxPeriod)
		}
		if err != nil {
			return err
		}
	}
	for part := range slices.Chunk(entries, driver.MaxBatch) {
		err := in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) error { return store.Settle(ctx, part) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Reservation says for how long a key stays reserved for a job.
type Reservation struct {
	Key string
	Job string        // "queue/taskID" that the lock is bound to
	For time.Duration // least length of the reservation, from now; at most 366 days; default Config.Reserve
}

// Reserve keeps each key reserved for its job until at least Reservation.For from now. Reserve changes neither the
// holder nor the fence: a holder keeps its lease, and the owner's token stays valid. Reserve restores a reservation
// that has run out if the key has not been taken since.
//
// If the job waits for the key, Reserve keeps the job's place in line for at least Reservation.For from now. If the key
// is free, Reserve gives the key to the first in line. If that is the job itself, the error is nil.
//
// The errors are in the order of the reservations; nil means success. In addition to the errors of the package comment,
// Reserve returns:
//
//	ErrHeld             the job waits, and its place is kept
//	ErrNotOwner         the lock is bound to another job, or to none
//	ErrAlreadyReleased  the lock was released or forced
//	ErrNotFound         there is no such lock
func Reserve(ctx context.Context, locks *joblock.Locker, reservations ...Reservation) []error {
	all := make([]core.Reservation, len(reservations))
	for i, r := range reservations {
		all[i] = core.Reservation(r)
	}
	return (*core.Locker)(locks).ReserveForJobs(ctx, nil, all)
}

// Release says which lock Free frees, and why.
type Release struct {
	Key    string
	Job    string // "queue/taskID" that the lock is bound to
	Fence  int64  // if not 0, the fence that Status showed before you looked the job up in the queue
	Reason string // for Status and errors, at most 256 bytes
}

// Free frees the locks of the given jobs, whichever owner has them, and takes waiting jobs out of line. Each job must
// be one that does not exist or will not run again: Free does not look the job up in the queue. Status shows these
// locks as forced, with the reason. Free takes no lock from an attempt that runs and none from another job. If
// Release.Fence is set, Free takes no lock from a later job of the same name either. Repeating a Free does no harm.
//
// The errors are in the order of the releases; nil means success. In addition to the errors of the package comment,
// Free returns:
//
//	ErrBusy      a lease is alive
//	ErrNotOwner  the lock is bound to another job or to none, or its fence is not Release.Fence
//	ErrNotFound  the key is free
func Free(ctx context.Context, locks *joblock.Locker, releases ...Release) []error {
	all := make([]core.JobRelease, len(releases))
	for i, r := range releases {
		all[i] = core.JobRelease(r)
	}
	return (*core.Locker)(locks).FreeJobs(ctx, nil, all)
}
