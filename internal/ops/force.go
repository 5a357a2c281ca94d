package ops

import (
	"context"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Force frees the key of a joblock.Status that an operator has seen. If the key has another fence by now, Force changes
// nothing; with ifIdle, it also changes nothing while the lock is held. The reason must have 1 to 256 bytes.
//
// Without ifIdle, Force does not stop a live holder: its contexts end at its next renewal, or at once with
// Config.WatchForced. Until then the fences protect the resource.
//
// Errors, after which nothing is freed:
//
//	ErrNotOwner  another holder has the key by now, or the same owner in another step
//	ErrNotFound  the key is free
//	ErrBusy      with ifIdle: the lock is held
//	ErrInvalid   seen has no fence, or the reason is bad
//	ErrUnavailable, ErrClosed
func Force(ctx context.Context, locks *joblock.Locker, seen joblock.Status, ifIdle bool, reason string) error {
	op := ForceRelease{IfIdle: ifIdle}.Verb()
	if err := core.CheckText(op, seen.Key, "reason", reason, 1, driver.MaxLabelBytes); err != nil {
		return err
	}
	if seen.Fence == 0 {
		return core.Invalid(op, seen.Key, "fence is 0, must be at least 1")
	}
	err := (*core.Locker)(locks).ForceRelease(ctx, seen.Key, core.Release{
		Fence: seen.Fence, IfIdle: ifIdle, Reason: reason,
		Job: seen.Job, // the fence suffices; Job sets the job of the event
	})
	if e, ok := err.(*joblock.Error); ok {
		named := *e
		named.Op = op
		return &named
	}
	return err
}
