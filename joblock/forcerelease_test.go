package joblock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// A ForceRelease can be bound to what its caller has seen.
func TestForceReleaseOfWhatWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, rec := observed(t, joblock.Config{})
		force := func(opts ...joblock.ReleaseOption) error { return k.locks.ForceRelease(t.Context(), "key", opts...) }
		lock, err := k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		seen := lock.Fence()
		for _, fence := range []int64{0, -1, driver.MaxFence + 1} {
			wantErr(t, force(joblock.IfFence(fence)), joblock.ErrInvalid)
		}
		wantErr(t, force(joblock.IfFence(seen-1)), joblock.ErrNotOwner)
		wantErr(t, force(joblock.IfJob("q/1")), joblock.ErrNotOwner)
		wantErr(t, force(joblock.IfIdle(), joblock.IfFence(seen)), joblock.ErrBusy)

		k.park(lock, joblock.ForJob("q/1"))
		wantErr(t, force(joblock.IfFence(seen)), joblock.ErrNotOwner)
		wantErr(t, force(joblock.IfIdle(), joblock.IfJob("q/2")), joblock.ErrNotOwner)
		rec.want(t)
		wantNil(t, "ForceRelease", force(joblock.IfIdle(), joblock.Reason("stuck")))
		rec.want(t, event.Event{Kind: event.Forced, Key: "key", Reason: "stuck"})
		wantErr(t, force(), joblock.ErrNotFound)

		lock, err = k.peer().TryAcquire(t.Context(), "key")
		wantNil(t, "TryAcquire", err)
		wantNil(t, "ForceRelease", force(joblock.IfFence(lock.Fence())))
		rec.want(t, event.Event{Kind: event.Forced, Key: "key", Fence: lock.Fence()})
	})
}

func TestReasonOfSeveralLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks, err := k.locks.AcquireAll(t.Context(), []string{"a", "b"}, joblock.Retain(time.Hour))
		wantNil(t, "AcquireAll", err)
		wantNil(t, "Release", locks.Release(t.Context(), joblock.Reason("deploy")))
		states, err := k.locks.Status(t.Context(), "a", "b")
		wantNil(t, "Status", err)
		for _, st := range states {
			if st.Reason != "deploy" {
				t.Errorf("%s: reason %q, want deploy", st.Key, st.Reason)
			}
		}
	})
}
