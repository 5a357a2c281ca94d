package joblock

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Renew extends the lease now, by a full TTL, instead of waiting for the shared
// renewal. Errors: ErrLost when the store refuses, which ends the handle;
// ErrUnavailable, after which the lock is as it was; ErrAlreadyReleased,
// ErrNotOwner after Park; ErrInvalid for a nil lock.
func (k *Lock) Renew(ctx context.Context) error { return k.renewNow(ctx, "renew", nil) }

// SetMemo writes the memo of the key, at most MaxMemoBytes, and renews the lease
// in the same step; nil clears it. The memo outlives the lock: the next owner
// can have it with its grant (see WithMemo) as long as the store remembers the key (see
// Retain). Only the present fence can write it. Errors are those of Renew.
func (k *Lock) SetMemo(ctx context.Context, memo []byte) error {
	if len(memo) > driver.MaxMemoBytes {
		return invalid("set memo", k.Key(), "memo has %d bytes, at most %d are allowed", len(memo), driver.MaxMemoBytes)
	}
	return k.renewNow(ctx, "set memo", append([]byte{}, memo...))
}

func (k *Lock) renewNow(ctx context.Context, op string, memo []byte) error {
	if k.none() {
		return nilLock(op)
	}
	if err := k.l.open(op, k.key); err != nil {
		return err
	}
	k.check()
	sent := k.l.now()
	k.mu.Lock()
	err := k.overLocked(op)
	req := k.renewRequestLocked()
	k.mu.Unlock()
	if err != nil {
		return err
	}
	req.Memo = memo
	var r driver.Reply
	err = k.l.call(ctx, op, k.key, func(ctx context.Context) error {
		rs, err := k.l.store.Renew(ctx, []driver.RenewRequest{req})
		if len(rs) == 1 {
			r = rs[0]
		}
		return err
	})
	if err != nil {
		return err
	}
	if lerr := k.renewed(op, req.Term, sent, r); lerr != nil {
		return lerr
	}
	k.l.engine.reschedule(k)
	if err := errorOf(op, k.key, r); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if memo != nil {
		k.memo = memo
	}
	if k.state == lockLost {
		return k.overLocked(op) // the answer came after the trust deadline
	}
	return nil
}

// renewRequestLocked is the renewal of the present term. It names a Park that
// was never answered too: if that was applied, renewing takes it back.
func (k *Lock) renewRequestLocked() driver.RenewRequest {
	return driver.RenewRequest{
		Term:   driver.Term{Key: k.key, Owner: *k.owner, Fence: k.fence, Grant: k.parkNonce},
		TTL:    k.ttl,
		Retain: k.retain,
		Hold:   k.reserve,
		Back:   k.own,
	}
}

// renewed takes in the answer to a renewal of term sent at sent. A refusal loses
// the lock and is returned; no answer changes nothing, nor does the refusal of a
// term that is no longer the handle's.
func (k *Lock) renewed(op string, term driver.Term, sent time.Time, r driver.Reply) error {
	switch r.Outcome {
	case driver.OutcomeUnknown:
		return nil
	case driver.OutcomeOK:
		k.mu.Lock()
		var late event.Event
		if k.liveLocked() {
			if r.Fence > k.fence {
				k.fence, k.parkNonce = r.Fence, "" // the unanswered Park is taken back
			}
			if sent.Add(k.ttl - k.l.cfg.margin(k.ttl)).After(k.trust) { // not overtaken by a later one
				late = k.lateLocked()
				k.granted(sent, k.fence)
			}
		}
		k.mu.Unlock()
		k.l.tell(late)
		return nil
	}
	k.mu.Lock()
	// While Park is under way its own answer decides. And a refusal of a term that
	// has since been parked, perhaps without an answer, or reclaimed says nothing
	// of the present one: the next renewal names that.
	parking := k.state == lockParking || term.Fence != k.fence || term.Grant != k.parkNonce
	k.mu.Unlock()
	if parking {
		return nil
	}
	err := k.lost(op, r)
	k.lose(err)
	return err
}

// StopRenewing lets the lease run out: the lock is lost at its trust deadline,
// unless it is released or handed over before. For a job's lock the reservation
// stands beyond that, so that the job's next attempt can resume it.
func (k *Lock) StopRenewing() {
	if k.none() {
		return
	}
	k.mu.Lock()
	k.renewing = false
	k.mu.Unlock()
}

// Release gives the lock back and ends the handle. It is detached from ctx's
// cancellation, so that it can be deferred, and bounded by Config.CallTimeout.
//
// Errors: ErrAlreadyReleased for a second call, or when somebody else released
// or forced it; ErrNotOwner after Park: nothing is freed then, so a deferred
// Release is harmless after a hand-over; ErrLost when the lock was lost before,
// whatever is left of it being released all the same; ErrUnavailable when the
// store did not answer: the handle is over, and the release is repeated in the
// background until the lease, and Config.Hold for a job's lock, has run out.
func (k *Lock) Release(ctx context.Context) error { return k.ReleaseWith(ctx, "") }

// ReleaseWith is Release with a reason, at most MaxLabelBytes long, that Status
// and later errors about this lock show.
func (k *Lock) ReleaseWith(ctx context.Context, reason string) error {
	const op = "release"
	if k.none() {
		return nilLock(op)
	}
	if err := checkText(op, k.key, "reason", reason, 0, driver.MaxLabelBytes); err != nil {
		return err
	}
	if err := k.l.open(op, k.key); err != nil {
		return err
	}
	return k.end(ctx, op, reason)
}

// end is ReleaseWith on a Locker that may be closing: for waiters that leave.
func (k *Lock) end(ctx context.Context, op, reason string) error {
	job, done := door.JobDone(ctx)
	how := EndedReleased
	if done {
		how = EndedDone
	}
	k.check()
	k.mu.Lock()
	if k.state == lockReleased || k.state == lockParked || k.state == lockParking {
		defer k.mu.Unlock()
		return k.overLocked(op)
	}
	lost := k.overLocked(op) // lost already: do not hold on to what may be left
	var e event.Event
	if lost == nil {
		e = k.eventLocked(event.Released)
		k.state = lockReleased
		k.err = &Error{Code: CodeAlreadyReleased, Key: k.key, Ended: how, Reason: reason}
	}
	if k.releaseNonce == "" {
		k.releaseNonce = newNonce()
	}
	req := driver.ReleaseRequest{
		Term:   driver.Term{Key: k.key, Owner: *k.owner, Fence: k.fence, Grant: k.parkNonce},
		Nonce:  k.releaseNonce,
		Retain: k.retain,
		Reason: reason,
		Job:    job,
		Done:   done,
	}
	if !k.shared && !k.reserved && k.parkNonce == "" {
		req.Brief = min(k.retain, k.l.cfg.brief())
	}
	until := k.trust.Add(k.l.cfg.margin(k.ttl))
	if k.reserved || k.parkNonce != "" {
		until = until.Add(max(k.l.cfg.Hold, k.parkHold))
	}
	k.mu.Unlock()
	k.l.engine.reschedule(k)

	r, err := k.l.release(k.l.bounds.detached(ctx), req)
	if err != nil {
		err = unanswered(op, k.key, nil, err)
	}
	if errors.Is(err, ErrUnavailable) {
		k.l.janitor.add(cleanup{req: req, until: until, stray: k.parkNonce != ""})
	}
	k.tellReleased(e, reason, r, err)
	switch {
	case lost != nil:
		return lost
	case err != nil:
		return err
	case r.Outcome == driver.OutcomeNotOwner, r.Outcome == driver.OutcomeNotFound, r.Outcome == driver.OutcomeLapsed:
		return k.lost(op, r)
	}
	return errorOf(op, k.key, r)
}

// release sends one release.
func (l *Locker) release(bounded context.Context, req driver.ReleaseRequest) (r driver.Reply, err error) {
	rs, err := l.store.Release(bounded, []driver.ReleaseRequest{req})
	if len(rs) == 1 {
		r = rs[0]
	}
	return r, err
}
