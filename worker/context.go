package worker

import (
	"context"

	"github.com/joblock/toolkit/joblock"
)

type (
	retriesKey struct{}
	locksKey   struct{}
)

// retries is how often a task that carries locks is tried again: as its author asked
// for, and as asynq was told.
type retries struct{ budget, limit int }

func withLocks(ctx context.Context, locks joblock.Locks) context.Context {
	return context.WithValue(ctx, locksKey{}, locks)
}

// LockFrom returns the lock that the task being handled carries, or was given by
// WithoutOverlapping: the first of LocksFrom. The middleware settles it when the
// handler has ended; a handler may also release it early, or hand it over to
// another task.
func LockFrom(ctx context.Context) (*joblock.Lock, bool) {
	if locks := LocksFrom(ctx); len(locks) > 0 {
		return locks[0], true
	}
	return nil, false
}

// LocksFrom returns all locks of the task being handled: those that it carries, in
// the order of their keys, and then those of WithoutOverlapping, in the order in which
// they were taken; nil if it has none.
func LocksFrom(ctx context.Context) joblock.Locks {
	locks, _ := ctx.Value(locksKey{}).(joblock.Locks)
	return locks
}

// MaxRetry returns the retries that the author of the task asked for. Together
// with asynq.GetRetryCount it tells whether this attempt is the last. ok is
// false outside a task that carries locks; use asynq.GetMaxRetry there, which
// inside such a task gives the same number as MaxRetry.
func MaxRetry(ctx context.Context) (n int, ok bool) {
	r, ok := ctx.Value(retriesKey{}).(retries)
	return r.budget, ok
}
