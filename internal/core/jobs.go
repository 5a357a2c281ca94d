package core

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Reservation is jobs.Reservation: the fields are the same.
type Reservation struct {
	Key string
	Job string
	For time.Duration
}

// ReserveForJobs is jobs.Reserve. granted receives each job that the call has granted a key to; see Release.Granted.
func (l *Locker) ReserveForJobs(ctx context.Context, granted Granted, reservations []Reservation) []error {
	const op = "reserve for job"
	settings := l.Settings()
	return inJobBatches(ctx, l, op, granted, reservations, func(r Reservation) (key string, req driver.ReserveRequest, err error) {
		if r.For == 0 {
			r.For = settings.Reserve
		}
		if err = l.CheckJob(op, r.Key, r.Job); err == nil {
			err = CheckPeriod(op, r.Key, "Reservation.For", r.For, driver.MinPeriod, driver.MaxPeriod)
		}
		return r.Key, driver.ReserveRequest{
			Key: r.Key, Job: r.Job, Nonce: PlaceOf(r.Job), Reserve: r.For, Retain: settings.Retain,
			Grace: max(driver.MinPeriod, min(settings.JobGrace, r.For/2)), Starts: granted != nil,
		}, err
	}, driver.Store.Reserve)
}

// JobRelease is jobs.Release: the fields are the same.
type JobRelease struct {
	Key    string
	Job    string
	Fence  int64
	Reason string
}

// FreeJobs is jobs.Free. granted receives each job that the call has granted a key to; see Release.Granted.
func (l *Locker) FreeJobs(ctx context.Context, granted Granted, releases []JobRelease) []error {
	const op = "free"
	settings := l.Settings()
	errs := inJobBatches(ctx, l, op, granted, releases, func(r JobRelease) (key string, req driver.ReleaseRequest, err error) {
		if err = l.CheckJob(op, r.Key, r.Job); err == nil && r.Fence < 0 {
			err = Invalid(op, r.Key, "fence is %d, must not be negative", r.Fence)
		}
		if err == nil {
			err = CheckText(op, r.Key, "reason", r.Reason, 0, driver.MaxLabelBytes)
		}
		return r.Key, driver.ReleaseRequest{
			Term: driver.Term{Key: r.Key, Fence: r.Fence, Grant: PlaceOf(r.Job)}, Job: r.Job, Reason: r.Reason,
			Kind: driver.ReleaseForcedIdle, Nonce: strconv.FormatUint(rand.Uint64(), 36), Retain: settings.Retain,
			Starts: granted != nil, Grace: settings.JobGrace,
		}, err
	}, freed)
	for i, r := range releases {
		if errs[i] == nil {
			l.Emit(event.Event{Kind: event.Freed, Key: r.Key, Job: r.Job, Reason: r.Reason})
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

// inJobBatches turns items into requests and sends the valid requests, 1000 at a time. It returns an error or
// nil for each item, in the order of items. If some nodes of a cluster reply and another node fails, only the items
// without a reply get the error.
func inJobBatches[T, R any](
	ctx context.Context, l *Locker, op string, granted Granted, items []T,
	request func(T) (key string, req R, err error),
	send func(driver.Store, context.Context, []R) ([]driver.Reply, error),
) []error {
	errs := make([]error, len(items))
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
		err := l.Call(ctx, op, about, func(ctx context.Context, store driver.Store) error {
			got, err := send(store, ctx, part)
			copy(replies, got)
			return err
		})
		for n, reply := range replies {
			granted.announce(keys[n], reply)
			if errs[at[n]] = err; err == nil || reply.Outcome != driver.OutcomeUnknown {
				errs[at[n]] = Refusal(op, keys[n], reply)
			}
		}
		keys, at = keys[len(part):], at[len(part):]
	}
	return errs
}

// CheckJob returns ErrInvalid for a key or a job that no Locker accepts, and ErrClosed after Close.
func (l *Locker) CheckJob(op, key, job string) error {
	if err := l.Check(op, key); err != nil {
		return err
	}
	return CheckText(op, key, "job", job, 1, driver.MaxLabelBytes)
}
