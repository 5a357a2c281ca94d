// Package sleep has a sleep that a context can end.
package sleep

import (
	"context"
	"time"
)

// For sleeps for d. If ctx ends first, For returns the cause of ctx at once.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
