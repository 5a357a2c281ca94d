package joblock

import (
	"context"
	"github.com/joblock/toolkit/joblock/driver"
	"slices"
	"time"
)

// JobReservation says for how long a key stays reserved for a job.
type JobReservation struct {
	Key string
	Job string // "queue/taskID", as in ParkOptions
	// Hold counts from now on. Default Config.Hold; at most MaxPeriod.
	Hold time.Duration
}

// DueJobs returns the locks of jobs that are to be looked at, those due for
// longest first and at most limit, from 1 to MaxBatch; fewer are all there are.
// A lock that was parked for a job is due Config.JobGrace after the Park, or after half
// of its reservation, whatever became of it, and again later than each look by later, until ForgetJobs. So
// every entry goes to one caller only, and one whose caller has died comes back.
//
// Errors: ErrInvalid, ErrUnavailable (what was due may have been put off by later
// without being returned), ErrClosed.
func (l *Locker) DueJobs(ctx context.Context, limit int, later time.Duration) ([]driver.JobLock, error) {
	const op = "due jobs"
	if err := l.open(op, ""); err != nil {
		return nil, err
	}
	if limit < 1 || limit > driver.MaxBatch {
		return nil, invalid(op, "", "limit is %d, must be from 1 to %d", limit, driver.MaxBatch)
	}
	if err := checkDuration(op, "", "later", later, MinTTL, driver.MaxPeriod); err != nil {
		return nil, err
	}
	var due []driver.JobLock
	err := l.call(ctx, op, "", func(ctx context.Context) (err error) {
		due, err = l.store.Due(ctx, driver.DueRequest{Limit: limit, Later: later})
		return err
	})
	if err != nil {
		return nil, err
	}
	// No Locker has written such an entry, and the calls that it is meant for would
	// refuse the whole batch for its sake.
	return slices.DeleteFunc(due, func(e driver.JobLock) bool { return checkJobKey(op, e.Key, e.Job) != nil }), nil
}

// ForgetJobs takes locks that DueJobs has returned off the list of those to look
// at: locks that were freed, or are bound to another job. One that was parked for
// the same job since that look stays on it. Errors: ErrInvalid, ErrUnavailable,
// ErrClosed; it is safe to repeat.
func (l *Locker) ForgetJobs(ctx context.Context, entries []driver.JobLock) error {
	const op = "forget jobs"
	if err := l.open(op, ""); err != nil {
		return err
	}
	for _, e := range entries {
		if err := checkJobKey(op, e.Key, e.Job); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(entries, driver.MaxBatch) {
		err := l.call(ctx, op, "", func(ctx context.Context) error { return l.store.Forget(ctx, part) })
		if err != nil {
			return err
		}
	}
	return nil
}

// ReserveForJob keeps keys reserved for jobs, each until its Hold from now at the
// least. It changes neither holder nor fence: a live holder goes on, a token can
// be resumed. A reservation that has run out stands again if nobody has taken the
// key since.
//
// There is one error per reservation, in the same order: nil; ErrNotOwner when the
// lock is bound to another job or to none; ErrAlreadyReleased; ErrNotFound;
// ErrInvalid; ErrUnavailable; ErrClosed.
func (l *Locker) ReserveForJob(ctx context.Context, reservations []JobReservation) []error {
	const op = "reserve for job"
	errs := make([]error, len(reservations))
	reqs := make([]driver.ReserveRequest, 0, len(reservations))
	index := make([]int, 0, len(reservations)) // of each request among the reservations
	for i, r := range reservations {
		if errs[i] = l.checkReservation(op, &r); errs[i] == nil {
			reqs = append(reqs, driver.ReserveRequest{Key: r.Key, Job: r.Job, Reserve: r.Hold, Retain: l.cfg.Retain})
			index = append(index, i)
		}
	}
	for part := range slices.Chunk(reqs, driver.MaxBatch) {
		var replies []driver.Reply
		err := l.call(ctx, op, "", func(ctx context.Context) (err error) {
			replies, err = l.store.Reserve(ctx, part)
			return err
		})
		for i, req := range part {
			switch {
			case i < len(replies) && replies[i].Outcome != driver.OutcomeUnknown:
				errs[index[i]] = errorOf(op, req.Key, replies[i])
			case err != nil:
				errs[index[i]] = err
			default:
				errs[index[i]] = errorOf(op, req.Key, driver.Reply{})
			}
		}
		index = index[len(part):]
	}
	return errs
}

func (l *Locker) checkReservation(op string, r *JobReservation) error {
	if err := l.open(op, r.Key); err != nil {
		return err
	}
	if err := checkJobKey(op, r.Key, r.Job); err != nil {
		return err
	}
	if r.Hold == 0 {
		r.Hold = l.cfg.Hold
	}
	return checkDuration(op, r.Key, "JobReservation.Hold", r.Hold, MinTTL, driver.MaxPeriod)
}

// ReleaseForJob frees the lock of a job that no longer exists or will not run
// again, whoever its owner is, and shows as forced with that reason, at most
// MaxLabelBytes. It never takes it from an attempt at work, nor from another job,
// nor from a later one of the same name: fence is the lock's as Status showed it
// before it was found out that the job is gone. 0 stands for whatever it is now.
//
// Errors: ErrBusy while a lease is alive; ErrNotOwner when the lock is bound to
// another job or to none, or has been parked or resumed since it had that fence;
// ErrNotFound when the key is free; ErrInvalid; ErrUnavailable (safe to repeat);
// ErrClosed.
func (l *Locker) ReleaseForJob(ctx context.Context, key, job string, fence int64, reason string) error {
	const op = "release for job"
	if err := checkJob(op, key, job); err != nil {
		return err
	}
	if fence < 0 {
		return invalid(op, key, "fence is %d, must not be negative", fence)
	}
	return l.end(ctx, op, driver.ReleaseRequest{
		Term: driver.Term{Key: key, Fence: fence}, Job: job, Reason: reason, Kind: driver.ReleaseForJob,
	})
}

func checkJobKey(op, key, job string) error {
	if err := checkKey(op, key); err != nil {
		return err
	}
	return checkJob(op, key, job)
}

func checkJob(op, key, job string) error {
	return checkText(op, key, "job", job, 1, driver.MaxLabelBytes)
}
