package joblock

import (
	"cmp"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Park hands the lock over to its token in one atomic step. From then on this handle can neither renew nor release. The
// key is reserved, under a new fence, for whoever resumes the token, and with ForJob for that job only. The reservation
// lasts for Config.Reserve, or for the time in the option Reserve. Contexts of the lock are not cancelled.
//
// Errors, with which nothing was parked: ErrLost when the lock was lost before; ErrAlreadyReleased; ErrNotOwner for a
// second Park; ErrInvalid; ErrClosed. After ErrUnavailable the handle still holds the lock, and the caller can call
// Park again. If the store did apply the first Park, the next renewal undoes the Park.
func (k *Lock) Park(ctx context.Context, opts ...ParkOption) (Token, error) {
	if k.none() {
		return Token{}, nilLock("park")
	}
	tokens, errs := k.l.parkLocks(ctx, Locks{k}, func(int) []ParkOption { return opts })
	return tokens[0], errs[0]
}

// parkLocks is Park for several locks of this Locker, in one batch. The function optsOf returns the options for the lock
// with the index i. Tokens and errors are in the order of the locks.
func (l *Locker) parkLocks(ctx context.Context, locks Locks, optsOf func(i int) []ParkOption) ([]Token, []error) {
	const op = "park"
	tokens, errs := make([]Token, len(locks)), make([]error, len(locks))
	reqs := make([]driver.ParkRequest, len(locks)) // a request without a Key is not sent
	for i, k := range locks {
		if errs[i] = l.open(op, k.h.key); errs[i] == nil {
			reqs[i], errs[i] = k.parkRequest(ctx, op, optsOf(i))
		}
	}
	parkedKey := func(req *driver.ParkRequest) string { return req.Key }
	ctx, s := l.trace(ctx, event.Call{Op: event.OpPark, Keys: keysOf(l, reqs, parkedKey)})
	defer func() { s.End("", firstOf(errs)) }()
	replies := askAll(ctx, l, op, reqs, errs, parkedKey, l.store.Park)
	for i, k := range locks {
		if reqs[i].Key == "" {
			continue
		}
		k.mu.Lock()
		s, err := k.h.parkAnswered(op, reqs[i].Job, replies[i])
		k.unlock(s)
		if errs[i] = cmp.Or(errs[i], err); errs[i] == nil {
			tokens[i] = k.tokenOf(replies[i].Fence)
		}
	}
	return tokens, errs
}

// parkRequest checks opts and returns the Park to send.
func (k *Lock) parkRequest(ctx context.Context, op string, opts []ParkOption) (req driver.ParkRequest, err error) {
	o, err := optionsOf(op, k.h.key, opts)
	if err != nil {
		return req, err
	}
	o.reserve = cmp.Or(o.reserve, k.l.cfg.Reserve)
	if err := checkDurations(op, k.h.key, duration{"Reserve", o.reserve, driver.MinPeriod, driver.MaxPeriod}); err != nil {
		return req, err
	}
	return k.beginPark(ctx, op, o.job, o.reserve)
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
// under a new fence. A lock that was acquired has neither a job nor a reservation, as before the Park. A lock that was
// resumed has the job and the reservation of its Resume, as before the Park.
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
	errs := make([]error, 1)
	in, traced := k.l.trace(ctx, event.Call{Op: event.OpReclaim, Keys: []string{k.h.key}})
	replies := askAll(in, k.l, op, []driver.ResumeRequest{req}, errs, resumedKey, k.l.resume)
	now := k.l.now()
	k.mu.Lock()
	s, err := k.h.reclaimAnswered(op, sent, now, replies[0])
	if s.tell != 0 && err == nil {
		k.traceHold(ctx)
	}
	k.unlock(s)
	err = cmp.Or(errs[0], err)
	traced.End("", err)
	if err != nil {
		return err
	}
	if s.tell == 0 {
		return nil // another call of Reclaim has got the lock back
	}
	return k.l.engine.add(k)
}
