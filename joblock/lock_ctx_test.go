package joblock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/joblock/toolkit/joblock"
)

// wantLocks checks the two look-ups against the keys of the locks, outermost first,
// and the key of the present one.
func wantLocks(t *testing.T, ctx context.Context, present string, keys ...string) {
	t.Helper()
	lock, ok := joblock.FromContext(ctx)
	if ok != (len(keys) > 0) || lock.Key() != present {
		t.Errorf("FromContext gives %v, %t; want the lock on %q", lock, ok, present)
	}
	var got []string
	for _, lock := range joblock.LocksFromContext(ctx) {
		got = append(got, lock.Key())
	}
	if !slices.Equal(got, keys) {
		t.Errorf("LocksFromContext gives %q, want %q", got, keys)
	}
}

// Of locks that were taken together the first that was asked for is the present one,
// of locks within one another the innermost.
func TestContextOfSeveralLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		wantLocks(t, t.Context(), "")
		empty, stop := joblock.Locks{}.Context(t.Context())
		defer stop()
		wantLocks(t, empty, "")

		locks, err := k.locks.AcquireAll(t.Context(), []string{"z", "a", "m"})
		wantNil(t, "AcquireAll", err)
		ctx, stop := locks.Context(t.Context())
		defer stop()
		wantLocks(t, ctx, "z", "z", "a", "m")
		locks[0], locks[1] = locks[1], locks[0] // the caller's slice is the caller's
		wantLocks(t, ctx, "z", "z", "a", "m")
		wantLocks(t, context.WithoutCancel(ctx), "z", "z", "a", "m")

		err = k.locks.Do(ctx, "inner", func(ctx context.Context) error {
			wantLocks(t, ctx, "inner", "z", "a", "m", "inner")
			joblock.LocksFromContext(ctx)[0] = nil // a copy
			again, stop := k.acquire("innermost").Context(ctx)
			defer stop()
			wantLocks(t, again, "innermost", "z", "a", "m", "inner", "innermost")
			return nil
		})
		wantNil(t, "Do", err)
		wantLocks(t, ctx, "z", "z", "a", "m")
		if err := ctx.Err(); err != nil {
			t.Errorf("the outer context has ended: %v", err)
		}
	})
}

// A context of several ends with the loss of any of them; one that is nil makes it
// come cancelled, and is not among those that it carries.
func TestContextOfSeveralLocksEndsWithAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		for _, lost := range []string{"a", "b", "c"} {
			locks, err := k.locks.AcquireAll(t.Context(), []string{"a", "b", "c"})
			wantNil(t, "AcquireAll", err)
			ctx, stop := locks.Context(t.Context())
			wantNil(t, "Err", ctx.Err())
			wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), lost))
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), joblock.ErrLost)
			var e *joblock.Error
			if !errors.As(context.Cause(ctx), &e) || e.Key != lost {
				t.Errorf("the cause is %v, want the loss of %s", context.Cause(ctx), lost)
			}
			stop()
			_ = locks.Release(t.Context()) // one is lost
		}
		ctx, stop := joblock.Locks{k.acquire("d"), nil}.Context(t.Context())
		defer stop()
		wantErr(t, context.Cause(ctx), joblock.ErrInvalid)
		wantLocks(t, ctx, "d", "d")
	})
}
