package joblock

import (
	"cmp"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Park hands the lock over to its token in one atomic step. From then on this handle can neither renew nor release. The
// key is reserved, under a new fence, for whoever resumes the token, and with ForJob for that job only. The reservation
// lasts for Config.Reserve, or for the time in the option Reserve. Contexts of the lock are not cancelled.
//
// Errors, with which nothing was parked: ErrLost when the lock was lost before; ErrAlreadyReleased; ErrNotOwner for a
// second Park; ErrInvalid; ErrClosed. After ErrUnavailable the handle still holds the lock, and the caller can call
// Park again. If the store did apply the first Park, the next renewal undoes the Park.
func (k *Lock) Park(ctx context.Context, opts ...ParkOption) (Token, error) {
	const op = "park"
	if err := k.open(op); err != nil {
		return Token{}, err
	}
	o, err := optionsOf(op, k.h.key, opts)
	if err != nil {
		return Token{}, err
	}
	o.reserve = cmp.Or(o.reserve, k.l.cfg.Reserve)
	if err := checkDurations(op, k.h.key, duration{"Reserve", o.reserve, driver.MinPeriod, driver.MaxPeriod}); err != nil {
		return Token{}, err
	}
	req, err := k.beginPark(ctx, op, o.job, o.reserve)
	if err != nil {
		return Token{}, err
	}
	rs, failed := ask(ctx, k.l, op, k.h.key, k.l.store.Park, []driver.ParkRequest{req})
	r := only(rs)
	k.mu.Lock()
	s, err := k.h.parkAnswered(op, o.job, r)
	k.unlock(s)
	if err := cmp.Or(failed, err); err != nil {
		return Token{}, err
	}
	return k.tokenOf(r.Fence), nil
}

// beginPark returns the Park to send. If a renewal is under way that would undo the Park, beginPark first waits for the
// renewal's answer, at most for Config.CallTimeout.
func (k *Lock) beginPark(ctx context.Context, op, job string, reserve time.Duration) (req driver.ParkRequest, err error) {
	for nonce := newNonce(); ; {
		k.check()
		k.mu.Lock()
		req, wait, err := k.h.parkBegun(op, nonce, job, reserve, k.l.cfg.JobGrace)
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

// Reclaim undoes Park. Call Reclaim when the enqueue of the job has certainly failed. The handle holds the lock again,
// under a new fence. A lock that was acquired has no job and no reservation again. A lock that was resumed has the job
// and the reservation of its Resume again.
//
// Errors, with which the handle is still parked:
//
//	ErrBusy             a job has resumed the token since the Park
//	ErrAlreadyReleased  the lock was released
//	ErrNotOwner         another owner has the key
//	ErrNotFound         the store does not remember the lock
//	ErrUnavailable      the caller can call Reclaim again
//	ErrInvalid          the handle was not parked
//	ErrClosed
func (k *Lock) Reclaim(ctx context.Context) error {
	const op = "reclaim"
	if err := k.open(op); err != nil {
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
		return nil // another call of Reclaim has got the lock back
	}
	return k.l.engine.add(k)
}
