package joblock

import (
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Resume takes a parked lock, or one whose holder has died, by its token, mostly in another process. The lock gets a
// new fence and is renewed like any lock. A lock that is bound to a job needs ForJob with that job. A live holder is
// never pre-empted.
//
// Errors, with which the caller holds nothing:
//
//	ErrBusy             another attempt with this token holds the lock; the error says how much of its lease remains
//	ErrNotOwner         the key belongs to another owner, or the lock is bound to another job or to none,
//	                    or this owner has acquired the key again after the token was made
//	ErrAlreadyReleased  the lock was released; the error has the reason
//	ErrNotFound         the store does not remember the lock
//	ErrUnavailable      the store did not answer; if it did apply the call, the token can be resumed one TTL later
//	ErrInvalid, ErrClosed
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
	now := l.now()
	lock := l.newLock(token.key, &o, sent, now, r, true)
	if lock.h.expired(now) {
		return nil, lateGrant(op, token.key)
	}
	l.tell(lock.eventLocked(event.Resumed)) // before the engine knows of the lock: see tellAcquired
	if err := l.engine.add(lock); err != nil {
		return nil, err
	}
	return lock, nil
}

// resume sends a resumption. While the store does not answer, resume repeats the call under the same nonce, for
// Config.CallTimeout. Without the repeats, a resumption whose answer was lost would keep its job waiting for a TTL.
func (l *Locker) resume(ctx context.Context, op string, req driver.ResumeRequest) (driver.Reply, error) {
	pause := backoff{10 * time.Millisecond}
	rs, err := ask(ctx, l, op, req.Key, func(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
		for {
			rs, err := l.store.Resume(ctx, reqs)
			if err == nil || CodeOf(err) != "" || !pause.wait(ctx) {
				return rs, err
			}
		}
	}, []driver.ResumeRequest{req})
	return only(rs), err
}
