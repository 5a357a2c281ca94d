package core

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Release releases the lock; see joblock.Lock.Release.
func (k *Lock) Release(ctx context.Context, r Release) error {
	const op = "release"
	if err := r.check(op, k.Key()); err != nil {
		return err
	}
	if err := k.open(op); err != nil {
		return err
	}
	return k.end(ctx, op, r)
}

// GiveBack releases a lock that no caller has received, even while the Locker is closing, for waiters that leave their
// queues. After a failure the Locker retries in the background; if no try succeeds, the lock ends with its lease.
func (k *Lock) GiveBack(ctx context.Context, reason string) {
	_ = k.end(ctx, "release", Release{Reason: reason})
}

// end is Release without its checks.
func (k *Lock) end(ctx context.Context, op string, r Release) error {
	var errs [1]error
	k.l.endLocks(ctx, op, r, Locks{k}, errs[:])
	return errs[0]
}

// ending is a lock whose Release is under way.
type ending struct {
	releasing
	at     int // place of the lock in the batch
	report event.Event
	span   *span // of the holding
}

// endLocks ends locks of this Locker, in one batch. The errors go into errs, in the order of the locks.
func (l *Locker) endLocks(ctx context.Context, op string, how Release, locks Locks, errs []error) {
	reqs := make([]driver.ReleaseRequest, 0, len(locks))
	var few [2]ending // on the stack, because usually one lock is released
	ends := few[:0]
	for i, k := range locks {
		k.check()
		k.mu.Lock()
		r, err := k.h.releaseBegun(op, driver.ReleaseRequest{
			Nonce: newNonce(), Reason: how.Reason, Job: how.Job, Done: how.Done, Brief: l.cfg.brief(), Starts: how.Granted != nil, Grace: l.cfg.JobGrace,
		}, l.cfg.Reserve)
		if err != nil {
			k.mu.Unlock()
			errs[i] = err
			continue
		}
		e, s := k.eventLocked(event.Released), k.span
		k.unlock(step{moved: true})
		reqs, ends = append(reqs, r.req), append(ends, ending{r, i, e, s})
	}
	if len(reqs) == 0 {
		return
	}
	ctx, s := l.trace(ctx, event.Call{Op: event.OpRelease, Keys: keysOf(l, reqs, releasedKey), Job: how.Job})
	defer func() { s.End("", firstOf(errs)) }()
	release := how.Releaser
	if release == nil {
		release = l.store.Release
	}
	replies, failed := inBatches(l.contexts.detached(ctx), reqs, release)
	if failed != nil && how.Releaser != nil {
		for _, end := range ends {
			errs[end.at] = failed
			locks[end.at].undone()
		}
		return
	}
	for n, end := range ends {
		how.Granted.announce(reqs[n].Key, replies[n])
		errs[end.at] = locks[end.at].ended(op, how.Reason, end, replies[n], failed)
	}
}

// announce calls g with the waiting job that a call about key has granted the key to, if there is one.
func (g Granted) announce(key string, r driver.Reply) {
	if g != nil && r.Next != "" {
		g(key, r.Next)
	}
}

// ended applies the answer to a Release and returns the Release's error. failed is the error of the batch, which counts
// if there is no answer.
func (k *Lock) ended(op, reason string, end ending, reply driver.Reply, failed error) error {
	if reply.Outcome != driver.OutcomeUnknown {
		failed = nil
	} else if failed != nil {
		failed = k.l.unanswered(op, k.h.key, nil, failed)
	}
	if errors.Is(failed, ErrUnavailable) {
		end.req.Starts = false // the janitor's answer does not reach the caller
		k.l.janitor.add(cleanup{req: end.req, until: end.until, stray: end.stray})
	}
	k.mu.Lock()
	kind, why, err := k.h.releaseAnswered(op, end.releasing, reply, failed)
	k.mu.Unlock()
	if e := end.report; kind != 0 && e.Kind != 0 {
		e.Kind, e.Err, e.Reason = kind, why, reason
		k.emit(end.span, e)
	}
	return err
}

// undone reverts a Release that was begun.
func (k *Lock) undone() {
	k.mu.Lock()
	held := k.h.releaseUndone()
	k.mu.Unlock()
	if held {
		_ = k.l.engine.add(k) // after Close the lock is lost, and the next call on the lock says so
	}
}

// Release releases the locks of tokens, in batches of a bounded size. The errors are in the order of the tokens, with
// the sentinels of joblock.Locker.Release.
func (l *Locker) Release(ctx context.Context, tokens []Token, r Release) []error {
	const op = "release"
	reqs, errs := make([]driver.ReleaseRequest, len(tokens)), make([]error, len(tokens))
	if l.zero() {
		return l.refuseAll(op, tokens, errs)
	}
	kind := driver.ReleaseOwn
	if r.IfIdle {
		kind = driver.ReleaseIdle
	}
	for i, token := range tokens {
		if errs[i] = l.checkToken(op, token); errs[i] == nil {
			errs[i] = r.check(op, token.key)
		}
		reqs[i] = driver.ReleaseRequest{
			Term: driver.Term{Key: token.key, Owner: token.owner.reveal(), Fence: r.Fence}, Job: r.Job, Done: r.Done, Reason: r.Reason, Kind: kind,
		}
	}
	l.end(ctx, op, r.Granted, reqs, errs)
	return errs
}

// ForceRelease is joblock.Locker.ForceRelease.
func (l *Locker) ForceRelease(ctx context.Context, key string, r Release) error {
	const op = "force release"
	if err := l.Check(op, key); err != nil {
		return err
	}
	if err := r.check(op, key); err != nil {
		return err
	}
	req := driver.ReleaseRequest{
		Term: driver.Term{Key: key, Fence: r.Fence}, Job: r.Job, Reason: r.Reason, Kind: driver.ReleaseForced,
	}
	if r.IfIdle {
		req.Kind = driver.ReleaseForcedIdle
	}
	errs := make([]error, 1)
	l.end(ctx, op, r.Granted, []driver.ReleaseRequest{req}, errs)
	return errs[0]
}

// end ends ownerships for callers that have no Lock. The errors go into errs; a request that already has an error is
// not sent.
func (l *Locker) end(ctx context.Context, op string, granted Granted, reqs []driver.ReleaseRequest, errs []error) {
	for i := range reqs {
		reqs[i].Nonce, reqs[i].Retain, reqs[i].Starts, reqs[i].Grace = newNonce(), l.cfg.Retain, granted != nil, l.cfg.JobGrace
	}
	ctx, s := l.trace(ctx, event.Call{Op: event.OpRelease, Keys: keysOf(l, reqs, releasedKey)})
	defer func() { s.End("", firstOf(errs)) }()
	replies := askAll(ctx, l, op, reqs, errs, releasedKey, l.store.Release)
	for i, req := range reqs {
		if errs[i] != nil {
			continue
		}
		r := replies[i]
		granted.announce(req.Key, r)
		if r.Outcome == driver.OutcomeLapsed {
			r.Outcome = driver.OutcomeNotFound
		}
		if r.Outcome == driver.OutcomeOK && l.cfg.Observer != nil {
			kind := event.ReleasedByToken
			switch req.Kind {
			case driver.ReleaseIdle:
				kind = event.Freed
			case driver.ReleaseForced, driver.ReleaseForcedIdle:
				kind = event.Forced
			}
			l.Emit(event.Event{Kind: kind, Key: req.Key, Owner: Digest(req.Owner), Fence: req.Fence, Job: req.Job, Reason: req.Reason})
		}
		errs[i] = Refusal(op, req.Key, r)
	}
}

func releasedKey(req *driver.ReleaseRequest) string { return req.Key }
