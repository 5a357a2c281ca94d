package joblock

import (
	"cmp"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Resume takes a lock by its token, mostly in another process. The lock is parked, or its holder has died. The lock
// gets a new fence and is renewed like any lock. A lock that is bound to a job needs ForJob with that job. A live
// holder is never pre-empted.
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
	if err := l.open("resume", token.key); err != nil {
		return nil, err
	}
	locks, errs := l.resumeTokens(ctx, []Token{token}, opts)
	return locks[0], errs[0]
}

// resumeTokens is Resume for several tokens, in one batch. Locks and errors are in the order of the tokens.
func (l *Locker) resumeTokens(ctx context.Context, tokens []Token, opts []ResumeOption) (Locks, []error) {
	const op = "resume"
	locks, errs := make(Locks, len(tokens)), make([]error, len(tokens))
	all, reqs := make([]options, len(tokens)), make([]driver.ResumeRequest, len(tokens))
	for i, token := range tokens {
		o := &all[i]
		if errs[i] = l.checkToken(op, token); errs[i] == nil {
			errs[i] = leaseOptions(&l.cfg, o, op, token.key, token.ttl, opts)
		}
		if errs[i] != nil {
			continue
		}
		o.owner = token.owner.reveal()
		reqs[i] = driver.ResumeRequest{
			Key: token.key, Owner: o.owner, Nonce: cmp.Or(o.door.Nonce, newNonce()),
			TTL: o.ttl, Retain: o.retain, Holder: o.holder, Job: o.job, Reserve: o.reserve,
			Grace: l.cfg.JobGrace, Fence: token.fence, Memo: o.door.Memo,
		}
	}
	sent := l.now()
	in, s := l.trace(ctx, event.Call{Op: event.OpResume, Keys: keysOf(l, reqs, resumedKey)})
	replies := askAll(in, l, op, reqs, errs, resumedKey, l.resume)
	for i, token := range tokens {
		if errs[i] == nil {
			locks[i], errs[i] = l.resumed(ctx, s, op, token, &all[i], sent, replies[i])
		}
	}
	s.End("", firstOf(errs))
	return locks, errs
}

// The method resumed returns the lock for the answer r to a resumption. That resumption was sent at the time in the
// parameter sent, in ctx and with the span s.
func (l *Locker) resumed(ctx context.Context, s *span, op string, token Token, o *options, sent time.Time, r driver.Reply) (*Lock, error) {
	if r.Outcome == driver.OutcomeBusy {
		l.tellContended(s, token.key, o.owner, r)
	}
	if err := errorOf(op, token.key, r); err != nil {
		return nil, err
	}
	now := l.now()
	lock := l.newLock(token.key, o, sent, now, r, true)
	if lock.h.expired(now) {
		return nil, lateGrant(op, token.key)
	}
	if !o.door.Detached { // else nobody would end the span
		lock.traceHold(ctx)
	}
	e := lock.eventLocked(event.Resumed)
	s.Tell(e)
	lock.tell(lock.span, e) // before the engine knows of the lock: see tellAcquired
	if !o.door.Detached {
		if err := l.engine.add(lock); err != nil {
			return nil, err
		}
	}
	return lock, nil
}

func resumedKey(req *driver.ResumeRequest) string { return req.Key }

// The method resume sends resumptions. It repeats the resumptions without an answer, under the same nonces, until ctx
// ends. Without the repeats, a resumption whose answer was lost would keep its job waiting for a TTL.
func (l *Locker) resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	replies, err := l.store.Resume(ctx, reqs)
	if len(replies) != len(reqs) {
		replies = make([]driver.Reply, len(reqs))
	}
	for pause := (backoff{10 * time.Millisecond}); err != nil && CodeOf(err) == "" && pause.wait(ctx); {
		var todo []driver.ResumeRequest // without an answer so far
		var at []int                    // the places of todo in reqs
		for i, r := range replies {
			if r.Outcome == driver.OutcomeUnknown {
				todo, at = append(todo, reqs[i]), append(at, i)
			}
		}
		var got []driver.Reply
		got, err = l.store.Resume(ctx, todo)
		for n, r := range got {
			replies[at[n]] = r
		}
	}
	return replies, err
}
