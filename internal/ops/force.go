package ops

import (
	"context"
	"math/rand/v2"
	"strconv"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Force frees the key of a joblock.Status that an operator has seen. If the key has another fence by now, Force changes
// nothing. With ifIdle, Force changes nothing while somebody runs under the lock. The reason has 1 to 256 bytes.
//
// Without ifIdle, a live holder is not stopped by Force: its contexts end at its next renewal, or at once with
// Config.WatchForced. Until then the fences protect the resource.
//
// Errors, with which nothing is freed:
//
//	ErrNotOwner  somebody else has the key by now, or the same owner in another step
//	ErrNotFound  the key is free
//	ErrBusy      with ifIdle: somebody runs under the lock
//	ErrInvalid   seen has no fence, or the reason is bad
//	ErrUnavailable, ErrClosed
func Force(ctx context.Context, locks *joblock.Locker, seen joblock.Status, ifIdle bool, reason string) error {
	op := forceName(ifIdle)
	in := door.Of(locks)
	if err := in.Check(op, seen.Key); err != nil {
		return err
	}
	if seen.Fence < 1 || seen.Fence > driver.MaxFence {
		return door.Invalid(op, seen.Key, "fence is %d, must be from 1 to %d", seen.Fence, int64(driver.MaxFence))
	}
	if err := door.CheckText(op, seen.Key, "reason", reason, 1, driver.MaxLabelBytes); err != nil {
		return err
	}
	req := driver.ReleaseRequest{
		Term: driver.Term{Key: seen.Key, Fence: seen.Fence}, Kind: driver.ReleaseForced, Reason: reason,
		Nonce: strconv.FormatUint(rand.Uint64(), 36), Retain: in.Settings().Retain,
	}
	if ifIdle {
		// With the job that the record had under this fence, which may be none.
		req.Kind, req.Job = driver.ReleaseForJob, seen.Job
	}
	r, err := send(ctx, in, op, seen.Key, driver.Store.Release, req)
	if r.Outcome == driver.OutcomeLapsed {
		r.Outcome = driver.OutcomeNotFound
		err = door.Refusal(op, seen.Key, r)
	}
	if err == nil {
		in.Tell(event.Event{Kind: event.Forced, Key: seen.Key, Job: seen.Job, Fence: seen.Fence, Reason: reason})
	}
	return err
}
