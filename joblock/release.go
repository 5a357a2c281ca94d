package joblock

import (
	"cmp"
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Release gives the lock back and ends the handle. Cancelling ctx does not stop Release, so callers can defer Release.
// Config.CallTimeout bounds the call. Reason is the only option.
//
//	ErrAlreadyReleased  a second call, or somebody else has released the lock or forced its release
//	ErrNotOwner         after Park; nothing is freed, so a deferred Release is harmless
//	ErrLost             the lock was lost before; what the store still has of the lock is released
//	ErrUnavailable      the store did not answer; the handle is over, and the release is repeated in the background
//	ErrInvalid, ErrClosed
func (k *Lock) Release(ctx context.Context, opts ...LockReleaseOption) error {
	const op = "release"
	o, err := optionsOf(op, k.Key(), opts)
	if err != nil {
		return err
	}
	if err := k.open(op); err != nil {
		return err
	}
	return k.end(ctx, op, o.why)
}

// The method end is Release without checks. It works while the Locker is closing, for waiters that leave their queues.
func (k *Lock) end(ctx context.Context, op, reason string) error {
	var errs [1]error
	k.l.endLocks(ctx, op, reason, Locks{k}, errs[:])
	return errs[0]
}

// The type ending is a lock whose Release is under way.
type ending struct {
	releasing
	at   int // place of the lock in the batch
	told event.Event
	span *span // of the holding
}

// endLocks ends locks of this Locker, in one batch. The errors go into errs, in the order of the locks.
func (l *Locker) endLocks(ctx context.Context, op, reason string, locks Locks, errs []error) {
	job, done := door.JobDone(ctx)
	start := door.Starter(ctx)
	reqs := make([]driver.ReleaseRequest, 0, len(locks))
	var few [2]ending // on the stack, because mostly one lock is released
	ends := few[:0]
	for i, k := range locks {
		k.check()
		k.mu.Lock()
		r, err := k.h.releaseBegun(op, driver.ReleaseRequest{
			Nonce: newNonce(), Reason: reason, Job: job, Done: done, Brief: l.cfg.brief(), Starts: start != nil, Grace: l.cfg.JobGrace,
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
	ctx, s := l.trace(ctx, event.Call{Op: event.OpRelease, Keys: keysOf(l, reqs, releasedKey), Job: job})
	defer func() { s.End("", firstOf(errs)) }()
	release := door.ReleaserOf(ctx)
	if release == nil {
		release = l.store.Release
	}
	replies, failed := inBatches(l.bounds.detached(ctx), reqs, release)
	if failed != nil && door.ReleaserOf(ctx) != nil {
		for _, end := range ends {
			errs[end.at] = failed
			locks[end.at].undone()
		}
		return
	}
	for n, end := range ends {
		startNext(start, reqs[n].Key, replies[n])
		errs[end.at] = locks[end.at].ended(op, reason, end, replies[n], failed)
	}
}

// startNext tells the function start of the waiting job that a call about key has granted the key to.
func startNext(start func(key, job string), key string, r driver.Reply) {
	if start != nil && r.Next != "" {
		start(key, r.Next)
	}
}

// The method ended takes the answer to a Release, and returns the error of the Release. The parameter failed is the
// error of the batch, which counts if there is no answer.
func (k *Lock) ended(op, reason string, end ending, reply driver.Reply, failed error) error {
	if reply.Outcome != driver.OutcomeUnknown {
		failed = nil
	} else if failed != nil {
		failed = k.l.unanswered(op, k.h.key, nil, failed)
	}
	if errors.Is(failed, ErrUnavailable) {
		end.req.Starts = false // the caller will not hear the janitor's answer
		k.l.janitor.add(cleanup{req: end.req, until: end.until, stray: end.stray})
	}
	k.mu.Lock()
	kind, why, err := k.h.releaseAnswered(op, end.releasing, reply, failed)
	k.mu.Unlock()
	if e := end.told; kind != 0 && e.Kind != 0 {
		e.Kind, e.Err, e.Reason = kind, why, reason
		k.tell(end.span, e)
	}
	return err
}

// The method undone takes back the begin of a Release.
func (k *Lock) undone() {
	k.mu.Lock()
	held := k.h.releaseUndone()
	k.mu.Unlock()
	if held {
		_ = k.l.engine.add(k) // after Close the lock is lost, and the next call on the lock says so
	}
}

// Release releases the lock of token, whichever holder in the owner's chain has the lock. A holder that is alive finds
// out at the next renewal of its lock. The option Reason gives the reason.
//
// IfIdle frees the lock only while nobody runs under the lock. Use IfIdle when a job will not run again, but an attempt
// may still be at work. ForJob frees the lock only while the lock is bound to that job, because the lock may have been
// handed on.
//
// Errors, with which nothing is released: ErrNotOwner; ErrAlreadyReleased; ErrNotFound when there is no such lock or
// its lease has ended; ErrBusy with IfIdle while a lease is alive; ErrInvalid; ErrClosed. After ErrUnavailable the
// outcome is unknown.
func (l *Locker) Release(ctx context.Context, token Token, opts ...ReleaseOption) error {
	if err := l.open("release", token.key); err != nil {
		return err
	}
	return l.releaseTokens(ctx, []Token{token}, opts)[0]
}

// releaseTokens is Release for several tokens, in one batch. The errors are in the order of the tokens.
func (l *Locker) releaseTokens(ctx context.Context, tokens []Token, opts []ReleaseOption) []error {
	const op = "release"
	job, done := door.JobDone(ctx)
	reqs, errs := make([]driver.ReleaseRequest, len(tokens)), make([]error, len(tokens))
	for i, token := range tokens {
		var o options
		if errs[i] = l.checkToken(op, token); errs[i] == nil {
			o, errs[i] = releaseOptions(op, token.key, opts)
		}
		reqs[i] = driver.ReleaseRequest{
			Term: driver.Term{Key: token.key, Owner: token.owner.reveal()}, Job: cmp.Or(job, o.job), Done: done,
			Reason: o.why, Kind: o.kind,
		}
	}
	l.end(ctx, op, reqs, errs)
	return errs
}

// releaseOptions is optionsOf for a call that frees a key by its name or its token. An empty job is most often a variable
// that was not set, and without a job the call would free the lock of any job.
func releaseOptions[O applier](op, key string, opts []O) (options, error) {
	o, err := optionsOf(op, key, opts)
	if err == nil && o.hasJob && o.job == "" {
		err = invalid(op, key, "the job of ForJob is empty, must have 1 to %d bytes; leave out ForJob to free the lock of any job", driver.MaxLabelBytes)
	}
	return o, err
}

// ForceRelease frees key, whoever owns the key. Use ForceRelease only after a look at the Status, and give IfFence the
// fence that you saw: else a holder that has come since loses the lock. IfIdle frees the key only while nobody runs under
// the lock, ForJob only while the lock is bound to that job. Reason gives the reason.
//
// The contexts of a live holder end with ErrLost at the holder's next renewal, or at once if the holder's Locker has
// Config.WatchForced. Until then two callers may hold the lock, with different fences.
//
// Errors, with which nothing is freed: ErrNotFound when the key is free; ErrNotOwner when the key has another fence than
// IfFence or another job than ForJob; ErrBusy with IfIdle while a lease is alive; ErrInvalid; ErrClosed. After
// ErrUnavailable the outcome is unknown.
func (l *Locker) ForceRelease(ctx context.Context, key string, opts ...ForceOption) error {
	const op = "force release"
	if err := l.check(op, key); err != nil {
		return err
	}
	o, err := releaseOptions(op, key, opts)
	if err != nil {
		return err
	}
	if o.hasFence && (o.fence < 1 || o.fence > driver.MaxFence) {
		return invalid(op, key, "fence is %d, must be from 1 to %d", o.fence, int64(driver.MaxFence))
	}
	req := driver.ReleaseRequest{
		Term: driver.Term{Key: key, Fence: o.fence}, Job: o.job, Reason: o.why, Kind: driver.ReleaseForced,
	}
	if o.kind.IfIdle() {
		req.Kind = driver.ReleaseForcedIdle
	}
	errs := make([]error, 1)
	l.end(ctx, op, []driver.ReleaseRequest{req}, errs)
	return errs[0]
}

// The method end ends ownerships for callers that have no Lock. The errors go into errs. A request that has an error
// already is not sent.
func (l *Locker) end(ctx context.Context, op string, reqs []driver.ReleaseRequest, errs []error) {
	start := door.Starter(ctx)
	for i := range reqs {
		reqs[i].Nonce, reqs[i].Retain, reqs[i].Starts, reqs[i].Grace = newNonce(), l.cfg.Retain, start != nil, l.cfg.JobGrace
	}
	ctx, s := l.trace(ctx, event.Call{Op: event.OpRelease, Keys: keysOf(l, reqs, releasedKey)})
	defer func() { s.End("", firstOf(errs)) }()
	replies := askAll(ctx, l, op, reqs, errs, releasedKey, l.store.Release)
	for i, req := range reqs {
		if errs[i] != nil {
			continue
		}
		r := replies[i]
		startNext(start, req.Key, r)
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
			l.tell(event.Event{Kind: kind, Key: req.Key, Owner: digest(req.Owner), Fence: req.Fence, Job: req.Job, Reason: req.Reason})
		}
		errs[i] = errorOf(op, req.Key, r)
	}
}

func releasedKey(req *driver.ReleaseRequest) string { return req.Key }
