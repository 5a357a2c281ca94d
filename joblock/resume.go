package joblock

import (
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Resume continues a parked lock, or one whose holder has died, from its token: in
// another process, under a new fence, renewed like any lock. A lock that is bound to a
// job is resumed only with ForJob for that job. A live holder is never pre-empted.
//
// Errors, with which the caller holds nothing:
//
//	ErrBusy             another attempt with this token holds the lock; the error says
//	                    what is left of its lease
//	ErrNotOwner         the key belongs to another owner, the lock to another job or to
//	                    none, or this owner has acquired it again since
//	ErrAlreadyReleased  it was released; the error has the reason
//	ErrNotFound         the store does not remember it
//	ErrInvalid, ErrClosed
//	ErrUnavailable      the store did not answer; a resumption that took effect runs out
//	                    one TTL later, and then the lock can be resumed again
func (l *Locker) Resume(ctx context.Context, token Token, opts ...ResumeOption) (*Lock, error) {
	const op = "resume"
	if err := l.checkToken(op, token); err != nil {
		return nil, err
	}
	var o options
	if err := leaseOptions(&l.cfg, &o, op, token.key, token.ttl, opts); err != nil {
		return nil, err
	}
	o.owner = token.owner.reveal()
	sent := l.now()
	r, err := l.resume(ctx, op, driver.ResumeRequest{
		Key: token.key, Owner: o.owner, Nonce: newNonce(),
		TTL: o.ttl, Retain: o.retain, Holder: o.holder, Job: o.job, Reserve: o.reserve,
		Grace: l.cfg.JobGrace, Fence: token.fence, Memo: o.door.Memo,
	})
	if r.Outcome == driver.OutcomeBusy {
		l.tellContended(token.key, o.owner, r)
	}
	if err == nil {
		err = errorOf(op, token.key, r)
	}
	if err != nil {
		return nil, err
	}
	lock := l.newLock(token.key, &o, sent, r, true)
	if lock.h.expired(l.now()) {
		return nil, lateGrant(op, token.key)
	}
	l.tell(lock.eventLocked(event.Resumed)) // before the engine knows of the lock, as tellAcquired
	if err := l.engine.add(lock); err != nil {
		return nil, err
	}
	return lock, nil
}

// resume sends a resumption. While the store does not answer it is repeated under the
// same nonce, for Config.CallTimeout: left alone it would keep its job waiting for a
// TTL.
func (l *Locker) resume(ctx context.Context, op string, req driver.ResumeRequest) (driver.Reply, error) {
	pause := newBackoff(10*time.Millisecond, time.Second)
	return ask(ctx, l, op, req.Key, func(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
		for {
			r, err := l.store.Resume(ctx, req)
			if err == nil || CodeOf(err) != "" || !pause.wait(ctx) {
				return r, err
			}
		}
	}, req)
}
