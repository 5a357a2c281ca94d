package worker

import "context"

type retriesKey struct{}

// retries is how often a task that carries locks is tried again: as its author asked
// for, and as asynq was told.
type retries struct{ budget, limit int }

// MaxRetry returns the retries that the author of the task asked for. Together
// with asynq.GetRetryCount it tells whether this attempt is the last. ok is
// false outside a task that carries locks; use asynq.GetMaxRetry there, which
// inside such a task gives the same number as MaxRetry.
func MaxRetry(ctx context.Context) (n int, ok bool) {
	r, ok := ctx.Value(retriesKey{}).(retries)
	return r.budget, ok
}
