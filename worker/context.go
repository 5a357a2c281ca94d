package worker

import (
	"context"

	"github.com/joblock/toolkit/joblock"
)

type (
	budgetKey struct{}
	locksKey  struct{}
)

func withLocks(ctx context.Context, locks joblock.Locks) context.Context {
	return context.WithValue(ctx, locksKey{}, locks)
}

// LockFrom returns the lock that the task being handled carries; the first in
// the order of keys if there are several. The middleware settles it when the
// handler has ended; a handler may also release it early, or hand it over to
// another task.
func LockFrom(ctx context.Context) (*joblock.Lock, bool) {
	if locks := LocksFrom(ctx); len(locks) > 0 {
		return locks[0], true
	}
	return nil, false
}

// LocksFrom returns all locks that the task being handled carries, in the order
// of their keys; nil if it carries none.
func LocksFrom(ctx context.Context) joblock.Locks {
	locks, _ := ctx.Value(locksKey{}).(joblock.Locks)
	return locks
}

// MaxRetry returns the retries that the author of the task asked for. Together
// with asynq.GetRetryCount it tells whether this attempt is the last. ok is
// false outside a task that carries locks; use asynq.GetMaxRetry there, which
// inside such a task gives the same number as MaxRetry.
func MaxRetry(ctx context.Context) (n int, ok bool) {
	n, ok = ctx.Value(budgetKey{}).(int)
	return n, ok
}
