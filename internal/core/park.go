package core

import (
	"cmp"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Park parks locks of this Locker, in batches of a bounded size. Tokens and errors are in the order of the locks. of(i)
// returns the options for locks[i]. See joblock.Lock.Park.
func (l *Locker) Park(ctx context.Context, locks Locks, of func(i int) Park) ([]Token, []error) {
	const op = "park"
	tokens, errs := make([]Token, len(locks)), make([]error, len(locks))
	reqs := make([]driver.ParkRequest, len(locks)) // a request without a Key is not sent
	for i, k := range locks {
		if errs[i] = l.open(op, k.h.key); errs[i] == nil {
			reqs[i], errs[i] = k.parkRequest(ctx, op, of(i))
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

// parkRequest checks p and returns the Park to send.
func (k *Lock) parkRequest(ctx context.Context, op string, p Park) (req driver.ParkRequest, err error) {
	if p.Bad != "" {
		return req, Invalid(op, k.h.key, "%s", p.Bad)
	}
	if err := CheckText(op, k.h.key, "job", p.Job, 0, driver.MaxLabelBytes); err != nil {
		return req, err
	}
	p.Reserve = cmp.Or(p.Reserve, k.l.cfg.Reserve)
	if err := CheckPeriod(op, k.h.key, "Reserve", p.Reserve, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return req, err
	}
	return k.beginPark(ctx, op, p.Job, p.Reserve)
}

// Park parks one lock.
func (k *Lock) Park(ctx context.Context, p Park) (Token, error) {
	if k.none() {
		return Token{}, nilLock("park")
	}
	tokens, errs := k.l.Park(ctx, Locks{k}, func(int) Park { return p })
	return tokens[0], errs[0]
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

// Reclaim is joblock.Lock.Reclaim.
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
