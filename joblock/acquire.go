package joblock

import (
	"context"
	"errors"
	"github.com/joblock/toolkit/joblock/driver"
	"time"
)

// TryAcquire takes the lock on key if it is free, and does not wait. Errors:
// ErrHeld with the holder and what is left of its lease; ErrInvalid for a bad
// key or option, or a foreign value at the key; ErrUnavailable when the store
// did not answer, in which case whatever the call left behind is removed in the
// background; ErrClosed. On error the caller holds nothing.
//
// The lock is renewed until it is released, handed over or lost, independently
// of ctx, which bounds this call only.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...TryOption) (*Lock, error) {
	return tryAcquire(ctx, l, key, opts)
}

func tryAcquire[O AcquireOption](ctx context.Context, l *Locker, key string, opts []O) (*Lock, error) {
	a, err := newAcquisition(l, "acquire", key, opts)
	if err != nil {
		return nil, err
	}
	if a.o.limit > 0 {
		return permitsOf(a, opts).try(ctx)
	}
	defer a.abandon()
	lock, err := a.try(ctx)
	if lock == nil && err == nil {
		err = a.held(CodeHeld)
	}
	return lock, err
}

// Acquire takes the lock on key, waiting while it is held: as long as ctx lasts,
// or up to MaxWait. Errors are those of TryAcquire, but instead of ErrHeld:
// ErrTimeout when MaxWait or ctx's deadline passed (the latter matches
// context.DeadlineExceeded too), and the cause of ctx when it was cancelled. An
// outage of the store is put up with until Config.CallTimeout after the first call
// that failed, then reported as ErrUnavailable. On error the caller holds nothing.
//
// With Limit the lock is a permit, one of several for the key.
//
// Waiters of all processes get the lock in the order in which they came; who
// frees it makes the first of them the owner in the same step and tells it so. A
// message that gets lost costs at most Config.Poll. Waiters that died cost one TTL and a
// poll, all together; if they were more than 32 and the leases are short, perhaps three
// times Config.Poll instead.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	a, err := newAcquisition(l, "acquire", key, opts)
	if err != nil {
		return nil, err
	}
	if a.o.limit > 0 {
		return permitsOf(a, opts).wait(ctx)
	}
	if err := l.enter("acquire", key); err != nil {
		return nil, err
	}
	defer l.waiters.Done()
	defer a.abandon()
	lock, err := a.wait(ctx)
	if err != nil {
		a.tellGaveUp(err)
	}
	return lock, err
}

// Do runs fn while holding the lock on key, waiting for it as Acquire does. fn's
// context carries the lock (see FromContext) and is cancelled with cause ErrLost
// when the lock is lost. The lock is released when fn returns or panics, unless
// fn has released it or handed it over.
//
// Do returns Acquire's error, or fn's. If the lock was lost while fn ran the
// result matches ErrLost, whatever fn returned; a failure to release is joined
// too, and the lock then runs out by itself.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	if fn == nil {
		return invalid("do", key, "the function is nil")
	}
	lock, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	fctx, stop := lock.Context(ctx)
	defer stop()
	defer func() {
		if lock.settled() {
			return // fn released it, or handed it over to a job
		}
		rerr := lock.Release(ctx)
		if CodeOf(rerr) == CodeAlreadyReleased { // not by fn: somebody forced it away
			e := *rerr.(*Error)
			e.Code, e.Detail = CodeLost, "it was taken away while the function ran"
			rerr = &e
		}
		if errors.Is(rerr, ErrClosed) {
			rerr = errors.Join(lock.Err(), rerr) // Close has lost it
		}
		if !errors.Is(err, ErrLost) || !errors.Is(rerr, ErrLost) {
			err = errors.Join(err, rerr)
		}
	}()
	return fn(fctx)
}

// acquisition is one call of TryAcquire or Acquire.
type acquisition struct {
	l    *Locker
	o    options
	req  driver.AcquireRequest
	last driver.Reply // the latest refusal
	sent time.Time    // when what it answers was sent

	busySince time.Time // when what the first refusal answers was sent

	// What the store may still have under the present nonce when the call ends
	// without the lock: a grant whose answer was lost, or a place in the queue.
	unanswered, queued bool

	pushes <-chan struct{} // to the present nonce; nil before enqueue
}

func newAcquisition[O AcquireOption](l *Locker, op, key string, opts []O) (*acquisition, error) {
	if err := l.open(op, key); err != nil {
		return nil, err
	}
	if err := checkKey(op, key); err != nil {
		return nil, err
	}
	a := &acquisition{l: l}
	if err := acquireOptions(&l.cfg, &a.o, op, key, opts); err != nil {
		return nil, err
	}
	if err := checkTaken(op, key, a.o.own); err != nil {
		return nil, err
	}
	if !a.o.hasOwn {
		a.o.owner = newOwner()
	}
	a.req = driver.AcquireRequest{
		Key: key, Owner: a.o.owner, Nonce: newNonce(), TTL: a.o.ttl, Retain: a.o.retain, Holder: a.o.holder,
		Memo: a.o.memo,
	}
	return a, nil
}

// try asks once. (nil, nil) means held by another, told in a.last.
func (a *acquisition) try(ctx context.Context) (*Lock, error) {
	sent := a.l.now()
	r, err := a.l.ask(ctx, "acquire", a.req.Key, func(ctx context.Context) (driver.Reply, error) {
		return a.l.store.Acquire(ctx, a.req)
	})
	if err != nil {
		if errors.Is(err, ErrUnavailable) {
			a.unanswered = true
		}
		return nil, err
	}
	switch r.Outcome {
	case driver.OutcomeHeld:
		a.last, a.sent = r, sent
		if a.req.Inbox != "" {
			a.req.Patience = keptPolls * a.poll()
		}
		a.queued = a.queued || a.req.Inbox != ""
		a.tellContended()
		return nil, nil
	case driver.OutcomeOK:
		// Of a grant made to an earlier attempt, or while this call waited, only
		// what is left counts, less the millisecond that stores round up by. It is
		// what was left when the store answered, and that was after sent.
		return a.take(sent.Add(min(0, r.Lease-time.Millisecond-a.o.ttl)), r)
	}
	return nil, errorOf("acquire", a.req.Key, r)
}

// take makes a lock of a grant whose lease began no earlier than since. A grant
// that is too old to be trusted is given back.
func (a *acquisition) take(since time.Time, r driver.Reply) (*Lock, error) {
	lock := a.l.newLock(a.req.Key, &a.o, since, r, false)
	var err error
	if lock.h.expired(a.l.now()) {
		err = lateGrant("acquire", a.req.Key)
	} else {
		a.tellAcquired(lock)
		err = a.l.engine.add(lock)
	}
	if err != nil {
		a.unanswered = true
		a.abandon()
		return nil, err
	}
	a.unanswered, a.queued = false, false
	return lock, nil
}

// held describes who is in the way.
func (a *acquisition) held(code Code) *Error {
	return &Error{Code: code, Op: "acquire", Key: a.req.Key,
		Holder: a.last.Holder, Job: a.last.Job, Remaining: a.last.Remaining}
}

// abandon has what the store may have under the present nonce removed in the
// background: at the latest it runs out with its lease, or when its place is no
// longer kept. Attempts after it are new ones.
func (a *acquisition) abandon() {
	if !a.unanswered && !a.queued {
		return
	}
	a.l.janitor.add(cleanup{
		req: driver.ReleaseRequest{
			Term:   driver.Term{Key: a.req.Key, Owner: a.req.Owner, Grant: a.req.Nonce},
			Nonce:  newNonce(),
			Retain: a.req.Retain,
			Brief:  min(a.req.Retain, a.l.cfg.brief()),
			Reason: "no longer waited for",
		},
		until: a.l.now().Add(a.o.ttl + a.req.Patience),
		stray: a.unanswered,
	})
	a.req.Nonce, a.unanswered, a.queued = newNonce(), false, false
}
