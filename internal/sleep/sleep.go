// Package sleep has waits that a context can end.
package sleep

import (
	"context"
	"time"
)

// For sleeps for d. If ctx ends first, it returns the cause of ctx at once.
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

// AtMost waits until done is closed, but at most d. It reports whether done is closed.
func AtMost(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-done:
		return true
	}
}

// Until waits until done is closed. If ctx ends first, it returns the cause of ctx at once.
func Until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// While calls wait and waits until it returns. If ctx ends first, While returns the cause of ctx at once and leaves wait
// running in its own goroutine.
func While(ctx context.Context, wait func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	return Until(ctx, done)
}
