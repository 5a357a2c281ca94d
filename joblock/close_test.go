package joblock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

func TestCloseLosesHeldLocksAndLeavesThemToTheirLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		ctx, stop := lock.Context(t.Context())
		defer stop()
		// A renewal that hangs without a look at its context must not delay the news.
		k.store.Set(faultstore.Fault{Mode: faultstore.Late, Times: 1, Delay: 5 * time.Second}, faultstore.Renew)
		time.Sleep(11 * time.Second)
		start := time.Now()
		go func() { _ = k.locks.Close(context.Background()) }()
		<-ctx.Done()
		if d := time.Since(start); d > 0 {
			t.Errorf("loss was signalled %s after Close", d)
		}
		wantErr(t, context.Cause(ctx), joblock.ErrLost)
		wantErr(t, lock.Err(), joblock.ErrLost)
		wantNil(t, "second Close", k.locks.Close(t.Context()))
		k.wantState("key", joblock.StateHeld)
		time.Sleep(joblock.DefaultTTL + 5*time.Second) // that renewal was applied
		k.wantState("key", joblock.StateFree)

		_, err := k.locks.TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrClosed)
		_, err = k.locks.AcquireAll(t.Context(), []string{"key"})
		wantErr(t, err, joblock.ErrClosed)
		_, err = testkit.One(k.locks.Status(t.Context(), "key"))
		wantErr(t, err, joblock.ErrClosed)
		_, err = k.locks.Resume(t.Context(), lock.Token())
		wantErr(t, err, joblock.ErrClosed)
		_, due := jobs.Due(t.Context(), k.locks, jobs.DueRequest{Limit: 1, Claim: time.Second})
		_, all := k.locks.Status(t.Context())
		for what, err := range map[string]error{
			"Do":           k.locks.Do(t.Context(), "key", func(context.Context) error { return nil }),
			"Release":      releaseOf(t.Context(), k.locks, "key", "owner"),
			"Force":        k.locks.ForceRelease(t.Context(), "key"),
			"jobs.Due":     due,
			"Status":       all,
			"jobs.Settle":  jobs.Settle(t.Context(), k.locks),
			"jobs.Reserve": jobs.Reserve(t.Context(), k.locks, jobs.Reservation{Key: "key", Job: "q/1"})[0],
			"jobs.Free":    jobs.Free(t.Context(), k.locks, jobs.Release{Key: "key", Job: "q/1"})[0],
			"Idle":         k.locks.Release(t.Context(), lock.Token(), joblock.IfIdle()),
			"Renew":        lock.Renew(t.Context()),
			"Reclaim":      lock.Reclaim(t.Context()),
			"LockRelease":  lock.Release(t.Context()),
		} {
			if !errors.Is(err, joblock.ErrClosed) {
				t.Errorf("%s after Close: %v", what, err)
			}
		}
		for _, err := range k.locks.List(t.Context(), joblock.ListOptions{}) {
			wantErr(t, err, joblock.ErrClosed)
		}
	})
}
