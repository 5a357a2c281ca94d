package joblock

import (
	"cmp"
	"context"

	"github.com/joblock/toolkit/joblock/driver"
)

// Park hands the lock over to its token in one atomic step: from then on this
// handle can neither renew nor release, and the key is reserved, under a new
// fence, for whoever resumes the token: for Config.Reserve, or as long as Reserve says,
// and with ForJob for that job only. Contexts of the lock are not cancelled.
//
// Errors: ErrLost when the lock was lost before, ErrAlreadyReleased, ErrNotOwner
// for a second Park, ErrInvalid. On these nothing was parked. After
// ErrUnavailable the handle is as before and goes on renewing, which takes a
// Park that did arrive back; calling Park again is safe.
func (k *Lock) Park(ctx context.Context, opts ...ParkOption) (Token, error) {
	const op = "park"
	if k.none() {
		return Token{}, nilLock(op)
	}
	if err := k.l.open(op, k.h.key); err != nil {
		return Token{}, err
	}
	o, err := k.l.cfg.parkOptions(op, k.h.key, opts)
	if err != nil {
		return Token{}, err
	}
	req, err := k.beginPark(ctx, op, o)
	if err != nil {
		return Token{}, err
	}
	r, failed := k.l.ask(ctx, op, k.h.key, func(ctx context.Context) (driver.Reply, error) {
		return k.l.store.Park(ctx, req)
	})
	k.mu.Lock()
	s, err := k.h.parkAnswered(op, o.job, r)
	k.unlock(s)
	if err := cmp.Or(failed, err); err != nil {
		return Token{}, err
	}
	return Token{key: k.h.key, owner: newSecret(*k.h.owner), fence: r.Fence, ttl: k.h.ttl}, nil
}

// beginPark returns the Park to be sent. It waits while a renewal is under way that
// would undo it, for Config.CallTimeout at most.
func (k *Lock) beginPark(ctx context.Context, op string, o parkOptions) (req driver.ParkRequest, err error) {
	for nonce := newNonce(); ; {
		k.check()
		k.mu.Lock()
		req, wait, err := k.h.parkBegun(op, nonce, o.job, o.reserve, k.l.cfg.JobGrace)
		if !wait {
			k.mu.Unlock()
			return req, err
		}
		if k.answered == nil {
			k.answered = make(chan struct{})
		}
		answered := k.answered
		k.mu.Unlock()
		if err := k.l.call(ctx, op, k.h.key, func(ctx context.Context) error {
			select {
			case <-answered:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}); err != nil {
			return req, err
		}
	}
}

// Reclaim undoes Park: what to do when the enqueue that was to carry the token
// has failed for certain. The handle holds the lock again, under a new fence, and of
// the Park nothing stays: a lock that was acquired is bound to no job and reserved no
// longer than its lease; one that was resumed is bound to the job that it was resumed
// for, and reserved beyond its lease as Reserve said then.
//
// Errors, after which the handle is still parked: ErrBusy when a job has resumed
// the token meanwhile, ErrAlreadyReleased, ErrNotOwner, ErrNotFound when the
// lock is gone, ErrUnavailable (safe to repeat), ErrInvalid when the handle is
// not parked.
func (k *Lock) Reclaim(ctx context.Context) error {
	const op = "reclaim"
	if k.none() {
		return nilLock(op)
	}
	if err := k.l.open(op, k.h.key); err != nil {
		return err
	}
	k.mu.Lock()
	req, sent, err := k.h.reclaimBegun(op, newNonce(), k.l.now(), k.l.cfg.JobGrace)
	k.mu.Unlock()
	if err != nil {
		return err
	}
	r, failed := k.l.resume(ctx, op, req)
	now := k.l.now()
	k.mu.Lock()
	s, err := k.h.reclaimAnswered(op, sent, now, r)
	k.unlock(s)
	if err := cmp.Or(failed, err); err != nil {
		return err
	}
	if s.tell == 0 {
		return nil // a call beside this one got it back
	}
	return k.l.engine.add(k)
}
