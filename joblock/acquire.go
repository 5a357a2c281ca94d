package joblock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// TryAcquire takes the lock on key if it is free, and does not wait. Errors:
// ErrHeld with the holder and what is left of its lease; ErrInvalid for a bad
// key or option, or a foreign value at the key; ErrUnavailable when the store
// did not answer, in which case whatever the call left behind is removed in the
// background; ErrClosed. On error the caller holds nothing.
//
// The lock is renewed until it is released, handed over or lost, independently
// of ctx, which bounds this call only.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	a, err := l.newAcquisition("acquire", key, opts)
	if err != nil {
		return nil, err
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
// outage of the store is put up with for Config.CallTimeout, then reported as
// ErrUnavailable. On error the caller holds nothing.
//
// Waiters poll; who of them gets a freed lock is not determined.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	a, err := l.newAcquisition("acquire", key, opts)
	if err != nil {
		return nil, err
	}
	defer a.abandon()
	return a.wait(ctx)
}

// Do runs fn while holding the lock on key, waiting for it as Acquire does. fn's
// context carries the lock (see FromContext) and is cancelled with cause ErrLost
// when the lock is lost. The lock is released when fn returns or panics, unless
// fn has released it or handed it over.
//
// Do returns Acquire's error, or fn's. If the lock was lost while fn ran the
// result matches ErrLost, whatever fn returned; a failure to release is joined
// too, and the lock then runs out by itself.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...Option) (err error) {
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
	req  AcquireRequest
	last Reply // the latest refusal

	// Set while an earlier attempt under the present nonce has an unknown
	// outcome: when it was sent. A grant found later may date from then.
	unknownSince time.Time
}

func (l *Locker) newAcquisition(op, key string, opts []Option) (*acquisition, error) {
	if err := l.open(op, key); err != nil {
		return nil, err
	}
	if err := checkKey(op, key); err != nil {
		return nil, err
	}
	o, err := l.cfg.options(op, key, l.cfg.TTL, opts)
	if err != nil {
		return nil, err
	}
	if !o.hasOwn {
		o.owner = uuid.NewString()
	}
	return &acquisition{l: l, o: o, req: AcquireRequest{
		Key: key, Owner: o.owner, Nonce: newNonce(), TTL: o.ttl, Retain: o.retain, Holder: o.holder,
	}}, nil
}

// try asks once. (nil, nil) means held by another, told in a.last.
func (a *acquisition) try(ctx context.Context) (*Lock, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("joblock: acquire %q: %w", shorten(a.req.Key, 80), err)
	}
	sent := a.l.now()
	if !a.unknownSince.IsZero() {
		sent = a.unknownSince
	}
	var r Reply
	err := a.l.call(ctx, "acquire", a.req.Key, func(ctx context.Context) (err error) {
		r, err = a.l.store.Acquire(ctx, a.req)
		return err
	})
	if err != nil {
		if errors.Is(err, ErrUnavailable) {
			a.unknownSince = sent
		}
		return nil, err
	}
	if r.Outcome == OutcomeHeld {
		a.last = r
		a.abandon() // an earlier attempt may still be on its way: never trust a grant of its
		return nil, nil
	}
	if err := r.errorOf("acquire", a.req.Key); err != nil {
		a.abandon()
		return nil, err
	}
	if a.l.cfg.late(sent, a.o.ttl, a.l.now()) {
		a.unknownSince = sent
		a.abandon()
		return nil, lateGrant("acquire", a.req.Key)
	}
	a.unknownSince = time.Time{}
	lock := a.l.newLock(a.req.Key, a.o, sent, r)
	if err := a.l.engine.add(lock); err != nil {
		a.unknownSince = sent // give it back
		return nil, err
	}
	return lock, nil
}

// wait asks until the lock is granted or the time is up.
func (a *acquisition) wait(ctx context.Context) (*Lock, error) {
	if a.o.hasWait && a.o.maxWait == 0 {
		lock, err := a.try(ctx)
		if lock == nil && err == nil {
			err = a.held(CodeHeld)
		}
		return lock, err
	}
	var enough <-chan time.Time
	if a.o.hasWait {
		t := time.NewTimer(a.o.maxWait)
		defer t.Stop()
		enough = t.C
	}
	pause := newBackoff(a.l.cfg.Poll/20, a.l.cfg.Poll)
	var failing time.Time // since when the store has not answered
	for {
		lock, err := a.try(ctx)
		switch {
		case lock != nil:
			return lock, nil
		case err == nil:
			failing = time.Time{}
		case ctx.Err() != nil:
			if failing.IsZero() && a.last.Outcome == OutcomeHeld && errors.Is(err, context.DeadlineExceeded) {
				err = nil // the store answers; the time was up in the middle of a call
			}
			return nil, a.ended(ctx, err)
		case !errors.Is(err, ErrUnavailable):
			return nil, err
		case failing.IsZero():
			failing = a.l.now()
		}
		if err != nil && a.l.now().Sub(failing) >= a.l.cfg.CallTimeout {
			return nil, err
		}
		d := pause.next()
		if err == nil {
			// The holder's lease may end sooner; a millisecond is the store's grain.
			d = min(d, a.last.Remaining+time.Millisecond)
		}
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-enough:
			t.Stop()
			if err != nil {
				return nil, err
			}
			return nil, a.held(CodeTimeout)
		case <-ctx.Done():
			t.Stop()
			return nil, a.ended(ctx, err)
		case <-a.l.closing:
			t.Stop()
			return nil, &Error{Code: CodeClosed, Op: "acquire", Key: a.req.Key}
		}
	}
}

// ended is the error of a wait that ctx ended; err is the latest attempt's.
func (a *acquisition) ended(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && a.last.Outcome == OutcomeHeld {
		e := a.held(CodeTimeout)
		e.Err = context.DeadlineExceeded
		return e
	}
	return fmt.Errorf("joblock: acquire %q: %w", shorten(a.req.Key, 80), context.Cause(ctx))
}

// held describes who is in the way.
func (a *acquisition) held(code Code) *Error {
	return &Error{Code: code, Op: "acquire", Key: a.req.Key,
		Holder: a.last.Holder, Job: a.last.Job, Remaining: a.last.Remaining}
}

// abandon has what an attempt of unknown outcome may have left removed in the
// background: at the latest it runs out with its lease. Attempts after it are
// new ones.
func (a *acquisition) abandon() {
	if a.unknownSince.IsZero() {
		return
	}
	a.l.janitor.add(ReleaseRequest{
		Term:   Term{Key: a.req.Key, Owner: a.req.Owner, Grant: a.req.Nonce},
		Nonce:  newNonce(),
		Retain: a.req.Retain,
		Reason: "acquire had no answer",
	}, a.l.now().Add(a.o.ttl))
	a.req.Nonce, a.unknownSince = newNonce(), time.Time{}
}

// backoff yields growing, jittered pauses.
type backoff struct{ cur, max time.Duration }

func newBackoff(first, most time.Duration) *backoff {
	return &backoff{cur: max(first, time.Millisecond), max: max(most, time.Millisecond)}
}

// next returns a pause between half of the present step and the whole, and
// makes the step half as long again.
func (b *backoff) next() time.Duration {
	d := b.cur/2 + time.Duration(rand.Int64N(int64(b.cur/2)+1))
	b.cur = min(b.cur+b.cur/2, b.max)
	return d
}
