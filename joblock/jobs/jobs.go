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

// MaxBatch is the most that Due returns at a time.
const MaxBatch = driver.MaxBatch

// Entry is an entry of the index: a key whose lock was bound to a job, "queue/taskID".
type Entry = driver.JobLock

// Due returns up to limit locks that a keeper should check now, the longest overdue
// first. limit is from 1 to MaxBatch. Fewer than limit means that no more are due.
//
// A lock is first due Config.JobGrace after its Park, or after half of its reservation
// if that is less. Until Forget removes it, each Due that returns it makes it due again
// after the parameter later, which is from a millisecond to 366 days. So only one caller
// gets an entry at a time, and the entry of a caller who has died comes back.
//
// After ErrUnavailable entries may have been put off without being returned.
func Due(ctx context.Context, locks *joblock.Locker, limit int, later time.Duration) ([]Entry, error) {
	const op = "due jobs"
	in := door.Of(locks)
	if err := in.Check(op); err != nil {
		return nil, err
	}
	if limit < 1 || limit > MaxBatch {
		return nil, door.Invalid(op, "", "limit is %d, must be from 1 to %d", limit, MaxBatch)
	}
	if err := door.CheckPeriod(op, "", "later", later, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return nil, err
	}
	var due []Entry
	err := in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		due, err = store.Due(ctx, driver.DueRequest{Limit: limit, Later: later})
		return err
	})
	if err != nil {
		return nil, err
	}
	// No Locker writes an invalid entry. Forget would refuse the whole batch because of it.
	return slices.DeleteFunc(due, func(e Entry) bool { return check(in, op, e.Key, e.Job) != nil }), nil
}

// Forget removes from the index entries that Due has returned. Use it for locks that are
// free or bound to another job. An entry stays if its lock was parked for the same job
// since that Due. Forget is safe to repeat; after an error some entries may be gone.
func Forget(ctx context.Context, locks *joblock.Locker, entries ...Entry) error {
	const op = "forget jobs"
	in := door.Of(locks)
	if err := in.Check(op); err != nil {
		return err
	}
	for _, e := range entries {
		if err := check(in, op, e.Key, e.Job); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(entries, MaxBatch) {
		err := in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) error { return store.Forget(ctx, part) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Reservation says for how long a key stays reserved for a job.
type Reservation struct {
	Key string
	Job string // "queue/taskID" that the lock is bound to
	// For is the least time, from now on, that the key is to stay reserved. Default
	// Config.Reserve; at most 366 days.
	For time.Duration
}

// Reserve keeps each key reserved for its job until at least Reservation.For from now. It
// changes neither holder nor fence: a live holder goes on, a token can be resumed. A
// reservation that has run out is restored if nobody has taken the key since.
//
// The errors are in the order of the reservations, nil for those that succeeded. Besides
// those of the package comment:
//
//	ErrNotOwner         the lock is bound to another job, or to none
//	ErrAlreadyReleased  it was released or forced
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
		return r.Key, driver.ReserveRequest{Key: r.Key, Job: r.Job, Reserve: r.For, Retain: settings.Retain}, err
	}, driver.Store.Reserve)
}

// Release says which lock Free frees, and why.
type Release struct {
	Key string
	Job string // "queue/taskID" that the lock is bound to
	// Fence is the lock's fence that Status showed before you looked the job up in the
	// queue. 0 accepts any.
	Fence  int64
	Reason string // for Status and errors, at most 256 bytes
}

// Free frees the locks of jobs that no longer exist or will not run again, whoever their
// owners are. The locks show as forced, with the reason. Free takes no lock from a
// running attempt, from another job or, given the Fence, from a later job of the same
// name. It is safe to repeat.
//
// The errors are in the order of the releases, nil for those that succeeded. Besides
// those of the package comment:
//
//	ErrBusy      a lease is alive
//	ErrNotOwner  the lock is bound to another job, or to none, or no longer has
//	             that Fence
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
			Term: driver.Term{Key: r.Key, Fence: r.Fence}, Job: r.Job, Reason: r.Reason, Kind: driver.ReleaseForJob,
			Nonce: strconv.FormatUint(rand.Uint64(), 36), Retain: settings.Retain,
		}, err
	}, freed)
	for i, r := range releases {
		if errs[i] == nil {
			in.Tell(event.Event{Kind: event.Freed, Key: r.Key, Job: r.Job, Reason: r.Reason})
		}
	}
	return errs
}

// freed calls store.Release. For a key that was free it returns OutcomeNotFound instead of
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

// inBatches turns items into requests and sends the valid ones, MaxBatch at a time. It
// returns an error or nil for each item, in the same order. A dead node of a cluster
// does not hide the answers of the others.
func inBatches[T, R any](
	ctx context.Context, in door.Locker, op string, items []T,
	request func(T) (key string, req R, err error),
	send func(driver.Store, context.Context, []R) ([]driver.Reply, error),
) []error {
	errs := make([]error, len(items))
	keys := make([]string, len(items))
	reqs := make([]R, 0, len(items))
	at := make([]int, 0, len(items)) // the item of each request
	for i, item := range items {
		var req R
		if keys[i], req, errs[i] = request(item); errs[i] == nil {
			reqs, at = append(reqs, req), append(at, i)
		}
	}
	for part := range slices.Chunk(reqs, MaxBatch) {
		var replies []driver.Reply
		key := ""
		if len(part) == 1 {
			key = keys[at[0]]
		}
		err := in.Call(ctx, op, key, func(ctx context.Context, store driver.Store) (err error) {
			replies, err = send(store, ctx, part)
			return err
		})
		for n := range part {
			i := at[n]
			var reply driver.Reply
			if n < len(replies) {
				reply = replies[n]
			}
			if errs[i] = err; err == nil || reply.Outcome != driver.OutcomeUnknown {
				errs[i] = door.Refusal(op, keys[i], reply)
			}
		}
		at = at[len(part):]
	}
	return errs
}

// check refuses a key or a job that no Locker can have parked.
func check(in door.Locker, op, key, job string) error {
	if err := in.Check(op, key); err != nil {
		return err
	}
	return door.CheckText(op, key, "job", job, 1, driver.MaxLabelBytes)
}
