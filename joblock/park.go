package joblock

import (
	"context"
	"errors"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"time"
)

// ParkOptions says how long a lock stays reserved while nobody runs, and for
// which job. The zero value means Config.Hold and no job in particular.
type ParkOptions struct {
	// Hold is how long the key stays reserved, from now on: until the job has
	// started. Default Config.Hold; at most MaxPeriod.
	Hold time.Duration
	// Job, as "queue/taskID", binds the lock: only Resume with ForJob of the same
	// name gets it. At most MaxLabelBytes. "" lets every bearer of the token resume.
	Job string
}

// Park hands the lock over to its token in one atomic step: from then on this
// handle can neither renew nor release, and the key is reserved, under a new
// fence, for whoever resumes the token. Contexts of the lock are not cancelled.
//
// Errors: ErrLost when the lock was lost before, ErrAlreadyReleased, ErrNotOwner
// for a second Park, ErrInvalid. On these nothing was parked. After
// ErrUnavailable the handle is as before and goes on renewing, which takes a
// Park that did arrive back; calling Park again is safe.
func (k *Lock) Park(ctx context.Context, opts ParkOptions) (Token, error) {
	const op = "park"
	if k.none() {
		return Token{}, nilLock(op)
	}
	if err := k.l.open(op, k.key); err != nil {
		return Token{}, err
	}
	if opts.Hold == 0 {
		opts.Hold = k.l.cfg.Hold
	}
	if err := checkDuration(op, k.key, "ParkOptions.Hold", opts.Hold, MinTTL, driver.MaxPeriod); err != nil {
		return Token{}, err
	}
	if err := checkText(op, k.key, "ParkOptions.Job", opts.Job, 0, driver.MaxLabelBytes); err != nil {
		return Token{}, err
	}
	k.check()
	k.mu.Lock()
	err := k.awaitTakeBackLocked(ctx, op)
	if err == nil {
		err = k.overLocked(op)
	}
	if err != nil {
		k.mu.Unlock()
		return Token{}, err
	}
	// After a Park without an answer the same call is made again. The term is then
	// named by its nonce too, for a renewal may take that Park back meanwhile.
	grant := k.parkNonce
	if k.parkNonce == "" {
		k.parkNonce = newNonce()
	}
	k.parkHold = max(k.parkHold, opts.Hold)
	k.state = lockParking
	req := driver.ParkRequest{
		Term:   driver.Term{Key: k.key, Owner: *k.owner, Fence: k.fence, Grant: grant},
		Nonce:  k.parkNonce,
		Hold:   opts.Hold,
		Retain: k.retain,
		Job:    opts.Job,
		Grace:  max(MinTTL, min(k.l.cfg.JobGrace, opts.Hold/2)), // or it would lapse before the first look
	}
	k.mu.Unlock()

	var r driver.Reply
	err = k.l.call(ctx, op, k.key, func(ctx context.Context) (err error) {
		r, err = k.l.store.Park(ctx, req)
		return err
	})
	if err == nil && r.Outcome == driver.OutcomeOK {
		k.mu.Lock()
		if k.state == lockLost {
			k.done = nil // closed; the answer came late, and Reclaim may hold the lock again
		}
		k.state, k.fence, k.job, k.parkNonce = lockParked, r.Fence, opts.Job, ""
		k.err = k.handedOver("", opts.Job)
		k.shared = true // the token stays with the caller, also after a Reclaim
		token := Token{key: k.key, owner: newSecret(*k.owner), fence: r.Fence, ttl: k.ttl}
		e := k.eventLocked(event.Parked)
		k.mu.Unlock()
		k.l.engine.reschedule(k)
		k.l.tell(e)
		return token, nil
	}
	k.mu.Lock()
	if k.state == lockParking {
		k.state = lockHeld
	}
	k.mu.Unlock()
	k.l.engine.reschedule(k)
	if err != nil {
		return Token{}, err
	}
	lost := k.lost(op, r)
	k.lose(lost)
	return Token{}, lost
}

// awaitTakeBackLocked returns when no renewal of the engine's is under way that
// would take an unanswered Park back: it knows a repeated Park by the same nonce,
// and would undo that one too, after its caller was told that it is done. It gives
// k.mu free while it waits.
func (k *Lock) awaitTakeBackLocked(ctx context.Context, op string) error {
	underWay := func() bool { return k.parkNonce != "" && k.inFlight }
	if !underWay() {
		return nil
	}
	return k.l.call(ctx, op, k.key, func(ctx context.Context) error {
		for pause := newBackoff(time.Millisecond, 10*time.Millisecond); underWay(); {
			k.mu.Unlock()
			in := pause.wait(ctx)
			k.mu.Lock()
			if !in {
				return ctx.Err()
			}
		}
		return nil
	})
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
	if err := k.l.open(op, k.key); err != nil {
		return err
	}
	k.mu.Lock()
	if k.state != lockParked {
		k.mu.Unlock()
		return invalid(op, k.key, "the lock is not parked by this handle")
	}
	// A repeated call finds the grant of the one before, whose lease counts from
	// there; once that is over there is nothing to be found.
	if now := k.l.now(); k.reclaim.nonce == "" || now.Sub(k.reclaim.sent) >= k.ttl {
		k.reclaim = resumption{nonce: newNonce(), sent: now}
	}
	sent := k.reclaim.sent
	req := driver.ResumeRequest{
		Key: k.key, Owner: *k.owner, Nonce: k.reclaim.nonce,
		TTL: k.ttl, Retain: k.retain, Holder: k.holder, Job: k.job, Hold: k.reserve,
		Grace: k.l.cfg.JobGrace, Fence: k.fence, Unpark: true, Back: k.own,
	}
	k.mu.Unlock()

	r, err := k.l.resume(ctx, op, req)
	k.mu.Lock()
	if !errors.Is(err, ErrUnavailable) {
		k.reclaim = resumption{}
	}
	if err != nil {
		k.mu.Unlock()
		return err
	}
	if k.state != lockParked {
		defer k.mu.Unlock()
		return k.overLocked(op) // a call beside this one got it back, and may have ended it
	}
	if k.l.cfg.late(sent, k.ttl, k.l.now()) {
		k.mu.Unlock()
		return lateGrant(op, k.key)
	}
	k.state, k.err, k.job, k.parkHold, k.since = lockHeld, nil, k.own, 0, sent
	k.granted(sent, r.Fence)
	e := k.eventLocked(event.Reclaimed)
	k.mu.Unlock()
	k.l.tell(e)
	return k.l.engine.add(k)
}

// lateGrant is the error for a grant that can no longer be trusted when it comes.
func lateGrant(op, key string) *Error {
	return &Error{Code: CodeUnavailable, Op: op, Key: key, Detail: "the answer came when its own lease was over"}
}

// Resume continues a parked lock, or one whose holder has died, from its token:
// in another process, under a new fence, renewed like any lock. With ForJob it
// names the job that asks; a lock bound to a job answers to no other.
//
// Errors: ErrBusy while another attempt with this token holds the lock, with
// what is left of its lease: a live holder is never pre-empted. ErrNotOwner when
// the key belongs to another owner, or the lock to another job, or to no job but
// to a later acquisition of this owner than the token is of;
// ErrAlreadyReleased, with the reason given then; ErrNotFound when the store
// remembers nothing of it; ErrUnavailable; ErrInvalid; ErrClosed. On error the
// caller holds nothing; a resumption that took effect without an answer runs out
// one TTL later and can then be resumed again.
func (l *Locker) Resume(ctx context.Context, token Token, opts ...ResumeOption) (*Lock, error) {
	const op = "resume"
	if err := l.open(op, token.key); err != nil {
		return nil, err
	}
	if err := token.check(); err != nil {
		return nil, err
	}
	var o options
	if err := resumeOptions(&l.cfg, &o, op, token.key, token.ttl, opts); err != nil {
		return nil, err
	}
	o.owner = token.Owner()
	sent := l.now()
	r, err := l.resume(ctx, op, driver.ResumeRequest{
		Key: token.key, Owner: token.Owner(), Nonce: newNonce(),
		TTL: o.ttl, Retain: o.retain, Holder: o.holder, Job: o.job, Hold: o.reserve,
		Grace: l.cfg.JobGrace, Fence: token.taken(), Memo: o.memo,
	})
	if r.Outcome == driver.OutcomeBusy {
		l.tellContended(token.key, token.Owner(), r)
	}
	if err != nil {
		return nil, err
	}
	if l.cfg.late(sent, o.ttl, l.now()) {
		return nil, lateGrant(op, token.key)
	}
	lock := l.newLock(token.key, o, sent, r)
	lock.own, lock.reserved, lock.reserve = o.job, true, o.reserve
	lock.tellResumed()
	if err := l.engine.add(lock); err != nil {
		return nil, err
	}
	return lock, nil
}

// resume sends a resumption and, while the store does not answer, repeats it
// under the same nonce for Config.CallTimeout: a resumption left without an
// answer would keep its job waiting for a TTL.
func (l *Locker) resume(ctx context.Context, op string, req driver.ResumeRequest) (r driver.Reply, err error) {
	pause := newBackoff(10*time.Millisecond, time.Second)
	err = l.call(ctx, op, req.Key, func(ctx context.Context) error {
		for {
			var err error
			if r, err = l.store.Resume(ctx, req); err == nil {
				return nil
			}
			var own *Error
			if errors.As(err, &own) {
				return err
			}
			if !pause.wait(ctx) {
				return err
			}
		}
	})
	if err != nil {
		return r, err
	}
	return r, errorOf(op, req.Key, r)
}
