package jobs

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Entry is an entry of the index: a key and a job, "queue/taskID", that the key's lock was bound to.
type Entry = driver.Entry

// DueRequest asks for up to Limit entries of one Part of the index, and claims them for the time Claim; see Due.
type DueRequest = driver.DueRequest

// DueReply has the Entries that Due has claimed, and Next, the time until another entry is due.
type DueReply = driver.DueReply

// Settlement says when an entry that Due has returned is due again.
type Settlement = driver.Settlement

// Parts returns the number of parts of the index: 1, or more where the locks are on several nodes. Each entry is in one
// part. The number does not change. Parts returns 0 for a Locker that joblock.New has not made.
func Parts(locks *joblock.Locker) int { return door.Of(locks).Parts() }

// Due claims up to req.Limit entries whose locks a keeper should check now, the longest overdue first. The Part is from
// 0 to Parts-1, and the Limit from 1 to 1000. Until the claim has ended, no other Due returns these entries. The
// Claim is from a millisecond to 366 days. Settle the entries before the claim ends: the entries of a claim that has
// ended are due. So several keepers share the work, and the entries of a keeper that has died come back.
//
// DueReply.Next is the time until the first entry is due that Due has not returned: 0 if more entries are due now. A
// lock that is parked later may be due earlier: Config.JobGrace after its Park, or after half of its reservation if that half is
// shorter. After ErrUnavailable, entries may be claimed although no Due has returned them.
func Due(ctx context.Context, locks *joblock.Locker, req DueRequest) (due DueReply, err error) {
	const op = "due jobs"
	in := door.Of(locks)
	if err := in.Check(op); err != nil {
		return DueReply{}, err
	}
	if req.Part < 0 || req.Part >= in.Parts() {
		return DueReply{}, door.Invalid(op, "", "part is %d, must be from 0 to %d", req.Part, in.Parts()-1)
	}
	if req.Limit < 1 || req.Limit > driver.MaxBatch {
		return DueReply{}, door.Invalid(op, "", "limit is %d, must be from 1 to %d", req.Limit, driver.MaxBatch)
	}
	if err := door.CheckPeriod(op, "", "claim", req.Claim, driver.MinPeriod, driver.MaxPeriod); err != nil {
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
	due.Entries = slices.DeleteFunc(due.Entries, func(e Entry) bool { return check(in, op, e.Key, e.Job) != nil })
	return due, nil
}

// Settle removes entries that Due has returned, or sets when they are due again. Remove the entries of locks that are
// free or bound to another job: Settlement.Again is 0. For all other locks Again is the time until the next check, from
// a millisecond to 366 days. An entry stays as it is if a later Park bound the lock to the same job, or if the claim
// has ended and another Due has returned the entry. With Entry.Settled, the next Due may tell that no Park came between.
// Repeating a Settle does no harm. After an error, some of the
// entries may be settled.
func Settle(ctx context.Context, locks *joblock.Locker, entries ...Settlement) error {
	const op = "settle jobs"
	in := door.Of(locks)
	if err := in.Check(op); err != nil {
		return err
	}
	for _, e := range entries {
		err := check(in, op, e.Key, e.Job)
		if err == nil && e.Again != 0 {
			err = door.CheckPeriod(op, e.Key, "Settlement.Again", e.Again, driver.MinPeriod, driver.MaxPeriod)
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
// that has run out if nobody has taken the key since.
//
// If the job waits for the key, Reserve keeps the job's place in line for at least Reservation.For from now. If the key
// is free, Reserve gives the key to the first in line. If that is the job itself, the error is nil.
//
// The errors are in the order of the reservations; nil means success. Besides the errors of the package comment,
// Reserve returns:
//
//	ErrHeld             the job waits, and its place is kept
//	ErrNotOwner         the lock is bound to another job, or to none
//	ErrAlreadyReleased  the lock was released or forced
//	ErrNotFound         there is no such lock
func Reserve(ctx context.Context, locks *joblock.Locker, reservations ...Reservation) []error {
	const op = "reserve for job"
	in := door.Of(locks)
	settings := in.Settings()
	return inBatches(ctx, in, op, reservations, func(r Reservation) (key string, req driver.ReserveRequest, err error) {
		if r.For == 0 {
			r.For = settings.Reserve
		}
		if err = check(in, op, r.Key, r.Job); err == nil {
			err = door.CheckPeriod(op, r.Key, "Reservation.For", r.For, driver.MinPeriod, driver.MaxPeriod)
		}
		return r.Key, driver.ReserveRequest{
			Key: r.Key, Job: r.Job, Nonce: door.PlaceOf(r.Job), Reserve: r.For, Retain: settings.Retain,
			Grace: max(driver.MinPeriod, min(settings.JobGrace, r.For/2)), Starts: door.Starter(ctx) != nil,
		}, err
	}, driver.Store.Reserve)
}

// Release says which lock Free frees, and why.
type Release struct {
	Key    string
	Job    string // "queue/taskID" that the lock is bound to
	Fence  int64  // if not 0, the fence that Status showed before you looked the job up in the queue
	Reason string // for Status and errors, at most 256 bytes
}

// Free frees the locks of the given jobs, whoever owns the locks, and takes those jobs out of line that wait. Each job must be one that does not exist or will not
// run again: Free does not look the job up in the queue. Status shows these locks as forced, with the reason. Free
// takes no lock from an attempt that runs and none from another job. If Release.Fence is set, Free takes no lock from
// a later job of the same name either. Repeating a Free does no harm.
//
// The errors are in the order of the releases; nil means success. Besides the errors of the package comment, Free
// returns:
//
//	ErrBusy      a lease is alive
//	ErrNotOwner  the lock is bound to another job or to none, or has another fence than Release.Fence
//	ErrNotFound  the key is free
func Free(ctx context.Context, locks *joblock.Locker, releases ...Release) []error {
	const op = "free"
	in := door.Of(locks)
	settings := in.Settings()
	errs := inBatches(ctx, in, op, releases, func(r Release) (key string, req driver.ReleaseRequest, err error) {
		if err = check(in, op, r.Key, r.Job); err == nil && r.Fence < 0 {
			err = door.Invalid(op, r.Key, "fence is %d, must not be negative", r.Fence)
		}
		if err == nil {
			err = door.CheckText(op, r.Key, "reason", r.Reason, 0, driver.MaxLabelBytes)
		}
		return r.Key, driver.ReleaseRequest{
			Term: driver.Term{Key: r.Key, Fence: r.Fence, Grant: door.PlaceOf(r.Job)}, Job: r.Job, Reason: r.Reason,
			Kind: driver.ReleaseForcedIdle, Nonce: strconv.FormatUint(rand.Uint64(), 36), Retain: settings.Retain,
			Starts: door.Starter(ctx) != nil, Grace: settings.JobGrace,
		}, err
	}, freed)
	for i, r := range releases {
		if errs[i] == nil {
			in.Tell(event.Event{Kind: event.Freed, Key: r.Key, Job: r.Job, Reason: r.Reason})
		}
	}
	return errs
}

// freed calls store.Release. For a key whose ownership had run out, freed returns OutcomeNotFound instead of
// OutcomeLapsed.
func freed(store driver.Store, ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	replies, err := store.Release(ctx, reqs)
	for i := range replies {
		if replies[i].Outcome == driver.OutcomeLapsed {
			replies[i].Outcome = driver.OutcomeNotFound
		}
	}
	return replies, err
}

// inBatches turns items into requests and sends the valid requests, 1000 at a time. inBatches returns an error or
// nil for each item, in the order of items. If some nodes of a cluster reply and another node fails, only the items
// without a reply get the error.
func inBatches[T, R any](
	ctx context.Context, in door.Locker, op string, items []T,
	request func(T) (key string, req R, err error),
	send func(driver.Store, context.Context, []R) ([]driver.Reply, error),
) []error {
	errs := make([]error, len(items))
	start := door.Starter(ctx)
	keys := make([]string, 0, len(items)) // the key of each request
	reqs := make([]R, 0, len(items))
	at := make([]int, 0, len(items)) // the item of each request
	for i, item := range items {
		key, req, err := request(item)
		if errs[i] = err; err == nil {
			keys, reqs, at = append(keys, key), append(reqs, req), append(at, i)
		}
	}
	for part := range slices.Chunk(reqs, driver.MaxBatch) {
		replies := make([]driver.Reply, len(part)) // OutcomeUnknown
		about := ""
		if len(part) == 1 {
			about = keys[0]
		}
		err := in.Call(ctx, op, about, func(ctx context.Context, store driver.Store) error {
			got, err := send(store, ctx, part)
			copy(replies, got)
			return err
		})
		for n, reply := range replies {
			if start != nil && reply.Next != "" {
				start(keys[n], reply.Next)
			}
			if errs[at[n]] = err; err == nil || reply.Outcome != driver.OutcomeUnknown {
				errs[at[n]] = door.Refusal(op, keys[n], reply)
			}
		}
		keys, at = keys[len(part):], at[len(part):]
	}
	return errs
}

// check returns ErrInvalid for a key or a job that no Locker accepts.
func check(in door.Locker, op, key, job string) error {
	if err := in.Check(op, key); err != nil {
		return err
	}
	return door.CheckText(op, key, "job", job, 1, driver.MaxLabelBytes)
}
