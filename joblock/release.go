package joblock

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Release gives the lock back and ends the handle. It is detached from ctx's
// cancellation, so that it can be deferred, and bounded by Config.CallTimeout.
//
// Errors: ErrAlreadyReleased for a second call, or when somebody else released
// or forced it; ErrNotOwner after Park: nothing is freed then, so a deferred
// Release is harmless after a hand-over; ErrLost when the lock was lost before,
// whatever is left of it being released all the same; ErrUnavailable when the
// store did not answer: the handle is over, and the release is repeated in the
// background until the lease, and Config.Reserve for a job's lock, has run out.
//
// Reason says why; there is no other option.
func (k *Lock) Release(ctx context.Context, opts ...ReasonOption) error {
	const op = "release"
	if k.none() {
		return nilLock(op)
	}
	o, err := releaseOptionsOf(op, k.h.key, opts)
	if err != nil {
		return err
	}
	if err := k.l.open(op, k.h.key); err != nil {
		return err
	}
	return k.end(ctx, op, o.reason)
}

// end is Release on a Locker that may be closing: for waiters that leave.
func (k *Lock) end(ctx context.Context, op, reason string) error {
	job, done := door.JobDone(ctx)
	k.check()
	k.mu.Lock()
	r, err := k.h.releaseBegun(release{
		op: op, nonce: newNonce(), reason: reason, job: job, done: done, brief: k.l.cfg.brief(), reserve: k.l.cfg.Reserve,
	})
	if err != nil {
		k.mu.Unlock()
		return err
	}
	e := k.eventLocked(event.Released)
	k.unlock(step{moved: true})

	reply, failed := k.l.release(k.l.bounds.detached(ctx), r.req)
	if failed != nil {
		failed = unanswered(op, k.h.key, nil, failed)
	}
	if errors.Is(failed, ErrUnavailable) {
		k.l.janitor.add(cleanup{req: r.req, until: r.until, stray: r.stray})
	}
	k.mu.Lock()
	kind, why, err := k.h.releaseAnswered(op, r, reply, failed)
	k.mu.Unlock()
	if kind != 0 && e.Kind != 0 {
		e.Kind, e.Err, e.Reason = kind, why, reason
		k.l.tell(e)
	}
	return err
}

// release sends one release.
func (l *Locker) release(bounded context.Context, req driver.ReleaseRequest) (driver.Reply, error) {
	return only(l.store.Release(bounded, []driver.ReleaseRequest{req}))
}
