package keeper

import (
	"context"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// This file has all that the keeper asks of the locks' store for jobs.

// due returns up to limit locks that are to be checked, and puts each off until later.
func (k *Keeper) due(ctx context.Context, limit int, later time.Duration) ([]jobs.Entry, error) {
	return jobs.Due(ctx, k.cfg.Locks, limit, later)
}

// statuses reads the locks of entries, in their order.
func (k *Keeper) statuses(ctx context.Context, entries []jobs.Entry) ([]joblock.Status, error) {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return k.cfg.Locks.Status(ctx, keys...)
}

// extend prolongs reservations. The errors are in the order of list.
func (k *Keeper) extend(ctx context.Context, list []jobs.Reservation) []error {
	return jobs.Reserve(ctx, k.cfg.Locks, list...)
}

// release frees the locks of list, each only if nobody has taken it since it was read.
// The errors are in the order of list.
func (k *Keeper) release(ctx context.Context, list []candidate) []error {
	releases := make([]jobs.Release, len(list))
	for i, c := range list {
		releases[i] = jobs.Release{Key: c.Key, Job: c.Job, Fence: c.lock.Fence, Reason: c.verdict.reason}
	}
	return jobs.Free(ctx, k.cfg.Locks, releases...)
}

// drop ends the checks of entries.
func (k *Keeper) drop(ctx context.Context, entries []jobs.Entry) error {
	return jobs.Forget(ctx, k.cfg.Locks, entries...)
}
