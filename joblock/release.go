package joblock

import (
	"cmp"
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Release gives the lock back and ends the handle. Cancelling ctx does not stop Release, so callers can defer Release.
// Config.CallTimeout bounds the call. Reason is the only option.
//
//	ErrAlreadyReleased  a second call, or somebody else has released the lock or forced its release
//	ErrNotOwner         after Park; nothing is freed, so a deferred Release is harmless
//	ErrLost             the lock was lost before; what the store still has of the lock is released
//	ErrUnavailable      the store did not answer; the handle is over, and the release is repeated in the background
//	ErrInvalid, ErrClosed
func (k *Lock) Release(ctx context.Context, opts ...ReasonOption) error {
	const op = "release"
	o, err := optionsOf(op, k.Key(), opts)
	if err != nil {
		return err
	}
	if err := k.open(op); err != nil {
		return err
	}
	return k.end(ctx, op, o.why)
}

// end is Release without checks. end works while the Locker is closing, for waiters that leave their queues.
func (k *Lock) end(ctx context.Context, op, reason string) error {
	job, done := door.JobDone(ctx)
	k.check()
	k.mu.Lock()
	r, err := k.h.releaseBegun(op, driver.ReleaseRequest{
		Nonce: newNonce(), Reason: reason, Job: job, Done: done, Brief: k.l.cfg.brief(),
	}, k.l.cfg.Reserve)
	if err != nil {
		k.mu.Unlock()
		return err
	}
	e := k.eventLocked(event.Released)
	k.unlock(step{moved: true})

	replies, failed := k.l.store.Release(k.l.bounds.detached(ctx), []driver.ReleaseRequest{r.req})
	if failed != nil {
		failed = unanswered(op, k.h.key, nil, failed)
	}
	if errors.Is(failed, ErrUnavailable) {
		k.l.janitor.add(cleanup{req: r.req, until: r.until, stray: r.stray})
	}
	k.mu.Lock()
	kind, why, err := k.h.releaseAnswered(op, r, only(replies), failed)
	k.mu.Unlock()
	if kind != 0 && e.Kind != 0 {
		e.Kind, e.Err, e.Reason = kind, why, reason
		k.l.tell(e)
	}
	return err
}

// Release releases the lock of token, whichever holder in the owner's chain has the lock. A holder that is alive finds
// out at its next renewal. The option Reason gives the reason.
//
// IfIdle frees the lock only while nobody runs under the lock. Use IfIdle when a job will not run again, but an attempt
// may still be at work. ForJob frees the lock only while the lock is bound to that job, because the lock may have been
// handed on.
//
// Errors, with which nothing is released: ErrNotOwner; ErrAlreadyReleased; ErrNotFound when there is no such lock or
// its lease has ended; ErrBusy with IfIdle while a lease is alive; ErrInvalid; ErrClosed. After ErrUnavailable the
// outcome is unknown.
func (l *Locker) Release(ctx context.Context, token Token, opts ...ReleaseOption) error {
	const op = "release"
	if err := l.checkToken(op, token); err != nil {
		return err
	}
	o, err := optionsOf(op, token.key, opts)
	if err != nil {
		return err
	}
	job, done := door.JobDone(ctx)
	return l.end(ctx, op, driver.ReleaseRequest{
		Term: driver.Term{Key: token.key, Owner: token.owner.reveal()}, Job: cmp.Or(job, o.job), Done: done,
		Reason: o.why, Kind: o.kind,
	})
}

// ForceRelease frees key, whoever owns the key. Use ForceRelease only after a look at the Status. A live holder's
// contexts end with ErrLost at its next renewal, or at once if its Locker has Config.WatchForced. Until then two
// callers may hold the lock, with different fences. Status shows the reason, which has at most 256 bytes.
//
// Errors: ErrNotFound when the key is free, ErrInvalid, ErrClosed. After ErrUnavailable the outcome is unknown.
func (l *Locker) ForceRelease(ctx context.Context, key, reason string) error {
	const op = "force release"
	if err := l.check(op, key); err != nil {
		return err
	}
	if err := checkText(op, key, "reason", reason, 0, driver.MaxLabelBytes); err != nil {
		return err
	}
	return l.end(ctx, op, driver.ReleaseRequest{Term: driver.Term{Key: key}, Reason: reason, Kind: driver.ReleaseForced})
}

func (l *Locker) end(ctx context.Context, op string, req driver.ReleaseRequest) error {
	req.Nonce, req.Retain = newNonce(), l.cfg.Retain
	replies, err := ask(ctx, l, op, req.Key, l.store.Release, []driver.ReleaseRequest{req})
	if err != nil {
		return err
	}
	r := only(replies)
	if r.Outcome == driver.OutcomeLapsed {
		r.Outcome = driver.OutcomeNotFound
	}
	if r.Outcome == driver.OutcomeOK && l.cfg.Observer != nil {
		kind := event.ReleasedByToken
		switch req.Kind {
		case driver.ReleaseIdle, driver.ReleaseForJob:
			kind = event.Freed
		case driver.ReleaseForced:
			kind = event.Forced
		}
		l.tell(event.Event{Kind: kind, Key: req.Key, Owner: digest(req.Owner), Job: req.Job, Reason: req.Reason})
	}
	return errorOf(op, req.Key, r)
}
