package core

import (
	"cmp"
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Resume resumes tokens, in batches of a bounded size. Locks and errors are in the order of the tokens: a token with an
// error has a nil lock. See joblock.Locker.Resume.
func (l *Locker) Resume(ctx context.Context, tokens []Token, with Options) (Locks, []error) {
	const op = "resume"
	locks, errs := make(Locks, len(tokens)), make([]error, len(tokens))
	if l.zero() {
		return locks, l.refuseAll(op, tokens, errs)
	}
	all, reqs := make([]Options, len(tokens)), make([]driver.ResumeRequest, len(tokens))
	for i, token := range tokens {
		o := &all[i]
		if errs[i] = l.checkToken(op, token); errs[i] == nil {
			*o = with
			errs[i] = o.complete(&l.cfg, op, token.key, token.ttl)
		}
		if errs[i] != nil {
			continue
		}
		o.Owner = token.owner.reveal()
		reqs[i] = driver.ResumeRequest{
			Key: token.key, Owner: o.Owner, Nonce: cmp.Or(o.Nonce, newNonce()),
			TTL: o.TTL, Retain: o.Retain, Holder: o.Holder, Job: o.Job, Reserve: o.Reserve,
			Grace: l.cfg.JobGrace, Fence: token.fence, Memo: o.Memo,
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

// resumed returns the lock for r, the answer to a resumption that was sent at sent, in ctx and with the span s.
func (l *Locker) resumed(ctx context.Context, s *span, op string, token Token, o *Options, sent time.Time, r driver.Reply) (*Lock, error) {
	if r.Outcome == driver.OutcomeBusy {
		l.emitContended(s, token.key, o.Owner, r)
	}
	if err := Refusal(op, token.key, r); err != nil {
		return nil, err
	}
	now := l.now()
	lock := l.newLock(token.key, o, sent, now, r, true)
	if lock.h.expired(now) {
		return nil, lateGrant(op, token.key)
	}
	if !o.Detached { // a detached lock has no holder that would end the span
		lock.traceHold(ctx)
	}
	e := lock.eventLocked(event.Resumed)
	s.AddEvent(e)
	lock.emit(lock.span, e) // before engine.add: see emitAcquired
	if !o.Detached {
		if err := l.engine.add(lock); err != nil {
			return nil, err
		}
	}
	return lock, nil
}

func resumedKey(req *driver.ResumeRequest) string { return req.Key }

// resume sends resumptions, and repeats those without an answer, under the same nonces, until ctx ends. Otherwise a
// resumption whose answer was lost would keep its job waiting for a TTL.
func (l *Locker) resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	replies, err := l.store.Resume(ctx, reqs)
	if len(replies) != len(reqs) {
		replies = make([]driver.Reply, len(reqs))
	}
	for pause := (pauses{10 * time.Millisecond}); err != nil && CodeOf(err) == "" && pause.wait(ctx); {
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
