package keeper

import (
	"context"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// This file has all that the keeper asks of the locks' store for jobs.

// due returns up to limit locks that are to be checked, and puts each off until later.
func (k *Keeper) due(ctx context.Context, limit int, later time.Duration) ([]driver.JobLock, error) {
	return k.cfg.Locks.DueJobs(ctx, limit, later)
}

// statuses reads the locks of entries, in their order.
func (k *Keeper) statuses(ctx context.Context, entries []driver.JobLock) ([]joblock.Status, error) {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return k.cfg.Locks.StatusOf(ctx, keys)
}

// extend prolongs reservations. The errors are in the order of list.
func (k *Keeper) extend(ctx context.Context, list []joblock.JobReservation) []error {
	return k.cfg.Locks.ReserveForJob(ctx, list)
}

// release frees the locks of list, each only if nobody has taken it since it was read.
// The errors are in the order of list. When ctx ends first it returns its cause, and
// errs must not be read.
func (k *Keeper) release(ctx context.Context, list []candidate) (errs []error, err error) {
	errs = make([]error, len(list))
	err = each(ctx, len(list), func(i int) {
		c := list[i]
		errs[i] = k.cfg.Locks.ReleaseForJob(ctx, c.Key, c.Job, c.lock.Fence, c.verdict.reason)
	})
	return errs, err
}

// drop ends the checks of entries.
func (k *Keeper) drop(ctx context.Context, entries []driver.JobLock) error {
	return k.cfg.Locks.ForgetJobs(ctx, entries)
}
