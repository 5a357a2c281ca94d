//go:build servers && unix

package torture

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// keep is what a keeper does, but for the dice that say which jobs are still there. So
// it also says of jobs that they are gone while they run.
func (u *user) keep(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, u.upTo(2*later)) {
		part := u.dice.IntN(jobs.Parts(u.locks))
		due, err := jobs.Due(ctx, u.locks, jobs.DueRequest{Part: part, Limit: 20, Claim: later})
		if err != nil {
			continue
		}
		var names []string
		for _, d := range due.Entries {
			names = append(names, d.Key)
		}
		locks, err := u.locks.Status(ctx, names...)
		if err != nil {
			continue
		}
		var seen []jobs.Settlement
		for i, d := range due.Entries {
			switch gone := u.look(ctx, d, locks[i]); {
			case gone:
				seen = append(seen, jobs.Settlement{Entry: d})
			case u.oneIn(2):
				seen = append(seen, jobs.Settlement{Entry: d, Again: later / 2})
			}
		}
		_ = jobs.Settle(ctx, u.locks, seen...) // or they come again
	}
}

// awaitAttempt waits until the lock was resumed and given back since it had this fence, for a TTL at most. By chance
// alone a keeper would seldom come that late.
func (u *user) awaitAttempt(ctx context.Context, d jobs.Entry, fence int64) {
	ctx, cancel := context.WithTimeout(ctx, u.TTL)
	defer cancel()
	for ctx.Err() == nil {
		locks, err := u.locks.Status(ctx, d.Key)
		if err == nil && locks[0].Fence != fence && locks[0].Job == d.Job && locks[0].State != joblock.StateHeld {
			return
		}
		pause(ctx, 2*time.Millisecond)
	}
}

// lookInLine is look for a job that does not have the lock, and may wait for it.
func (u *user) lookInLine(ctx context.Context, d jobs.Entry) (over bool) {
	if u.granted = nil; !u.oneIn(3) {
		u.granted = u.deliver
		defer func() { u.granted = nil }()
	}
	err := u.rec.Reserve(ctx, u.locks, jobs.Reservation{Key: d.Key, Job: d.Job, For: u.Hold}, u.granted)
	if err == nil || errors.Is(err, joblock.ErrUnavailable) {
		return false
	}
	return !errors.Is(err, joblock.ErrHeld) || u.oneIn(6) && u.rec.Free(ctx, u.locks, d.Key, d.Job, 0, u.granted) == nil
}

// look decides about one lock, and reports whether there is nothing more to be done.
func (u *user) look(ctx context.Context, d jobs.Entry, lock joblock.Status) bool {
	if lock.Job != d.Job {
		return u.lookInLine(ctx, d)
	}
	if !lock.Locked() && lock.Ended != driver.EndedLapsed {
		return true
	}
	switch { // it is asked whether the job is there
	case u.oneIn(3):
		pause(ctx, u.upTo(20*time.Millisecond))
	case u.oneIn(2): // which may take as long as its next attempt
		u.awaitAttempt(ctx, d, lock.Fence)
		return u.rec.Free(ctx, u.locks, d.Key, d.Job, lock.Fence, u.granted) == nil
	}
	switch {
	case u.oneIn(8): // whatever it is now
		return u.rec.Free(ctx, u.locks, d.Key, d.Job, 0, u.granted) == nil
	case u.oneIn(3):
		return u.rec.Free(ctx, u.locks, d.Key, d.Job, lock.Fence, u.granted) == nil
	case u.oneIn(2):
		_ = u.rec.Reserve(ctx, u.locks, jobs.Reservation{Key: d.Key, Job: d.Job, For: u.Hold}, u.granted)
	}
	return !lock.Locked()
}
