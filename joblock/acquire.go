package joblock

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// keptPolls is for how many polls a silent waiter keeps its place: one poll may be
	// lost, and one may be late.
	keptPolls = 3

	// leasePolls is the least number of polls in a lease. So the place of a dead waiter
	// is kept for half a lease at most. A dead holder's lease lasts longer, two thirds,
	// so waiters that died with it are not granted the key. Of other dead waiters at
	// most one is: its lease outlasts the others' places. The price: a waiter costs the
	// store twice as much as a holder, which renews every third of a lease.
	leasePolls = 2 * keptPolls

	// headOfLine is how many waiters watch for the end of the holder's lease. One
	// would do, but the first ones may have died.
	headOfLine = 8

	// nearLine is how many waiters ask leasePolls times in a lease, however short it is.
	nearLine = 32
)

// TryAcquire takes the lock on key if it is free, and does not wait. The lock is
// renewed until it is released, handed over or lost. ctx bounds this call only.
//
// Errors, with which the caller holds nothing:
//
//	ErrHeld         somebody else has it; the error says who, and what is left of the lease
//	ErrInvalid      a bad key or option, or the value at the key is no lock
//	ErrUnavailable  the store did not answer; what the call may have left behind is
//	                removed in the background
//	ErrClosed       the Locker was closed
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...TryOption) (*Lock, error) {
	a, err := newAcquisition(l, "acquire", key, opts)
	if err != nil {
		return nil, err
	}
	defer a.abandon()
	a.o.maxWait, a.o.hasWait = 0, true
	return a.wait(ctx)
}

// Acquire takes the lock on key. While the key is held it waits, as long as ctx lasts
// or up to MaxWait. The package comment has more on waiting.
//
// Errors are those of TryAcquire, with which the caller holds nothing, but instead of
// ErrHeld:
//
//   - ErrTimeout when MaxWait or ctx's deadline has passed. In the second case the error
//     matches context.DeadlineExceeded too.
//   - The cause of ctx when it was cancelled.
//
// ErrUnavailable comes Config.CallTimeout after the first call without an answer; a
// shorter outage of the store only delays the lock.
//
// A push that is lost costs at most Config.Poll. Waiters that died cost one TTL and a
// poll, all together. If they were more than 32 and the leases are short, they cost
// perhaps three times Config.Poll instead.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	a, err := newAcquisition(l, "acquire", key, opts)
	if err != nil {
		return nil, err
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

// acquisition is one call of TryAcquire or Acquire.
type acquisition struct {
	l    *Locker
	o    options
	req  driver.AcquireRequest
	last driver.Reply // the latest refusal
	sent time.Time    // when the request that it answers was sent

	busySince time.Time // sent of the first refusal

	// What the store may still have under the present nonce.
	unanswered bool // a grant whose answer was lost
	queued     bool // a place in the queue

	pushes <-chan struct{} // for the present nonce; nil before enqueue
}

func newAcquisition[O AcquireOption](l *Locker, op, key string, opts []O) (*acquisition, error) {
	if err := l.check(op, key); err != nil {
		return nil, err
	}
	a := &acquisition{l: l}
	if err := leaseOptions(&l.cfg, &a.o, op, key, l.cfg.TTL, opts); err != nil {
		return nil, err
	}
	if err := checkTaken(op, key, a.o.door.OwnKey); err != nil {
		return nil, err
	}
	if !a.o.hasOwn {
		a.o.owner = newOwner()
	}
	a.req = driver.AcquireRequest{
		Key: key, Owner: a.o.owner, Nonce: newNonce(), TTL: a.o.ttl, Retain: a.o.retain, Holder: a.o.holder,
		Memo: a.o.door.Memo,
	}
	return a, nil
}

// try asks once. (nil, nil) means that another holds the lock: a.last says who.
func (a *acquisition) try(ctx context.Context) (*Lock, error) {
	sent := a.l.now()
	r, err := ask(ctx, a.l, "acquire", a.req.Key, a.l.store.Acquire, a.req)
	if err != nil {
		a.unanswered = a.unanswered || errors.Is(err, ErrUnavailable)
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
		// The grant may be older than this attempt. So only what the store says is left
		// of the lease counts, less the millisecond that stores round up by. It counts
		// from sent, which is before the store said so.
		return a.take(sent.Add(min(0, r.Lease-time.Millisecond-a.o.ttl)), r)
	}
	return nil, errorOf("acquire", a.req.Key, r)
}

// take makes a lock of a grant whose lease began at since or later. If the grant
// is too old to be trusted, take has it released and returns an error.
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

func (a *acquisition) held(code string) *Error {
	return &Error{Code: code, Op: "acquire", Key: a.req.Key,
		Holder: a.last.Holder, Job: a.last.Job, Remaining: a.last.Remaining}
}

// abandon removes, in the background, what the store may have under the present nonce,
// and draws a new one. If that fails the grant runs out, or the place is no longer
// kept.
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

// wait asks until the lock is granted or the time is up; "Waiting" in the package
// comment explains the queue. It asks without a push too, once per poll, to keep the
// place and to find a grant whose push was lost. The first in line also ask when the
// holder's lease ends, because the holder may have died.
//
// A push could carry the grant itself, and save that call. But whoever may publish and
// has read the record can forge a push, and then two would have the lock.
func (a *acquisition) wait(ctx context.Context) (*Lock, error) {
	if a.o.hasWait && a.o.maxWait == 0 {
		lock, err := a.try(ctx)
		if lock == nil && err == nil {
			err = a.held(codeHeld)
		}
		return lock, err
	}
	if a.o.hasWait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.o.maxWait, door.ErrMaxWait)
		defer cancel()
	}
	if a.l.inbox.ready() {
		a.enqueue() // the first attempt takes its place at once
	}
	defer func() { a.l.inbox.forget(a.req.Nonce) }()
	var failing time.Time // since when the store has not answered
	pause := newRetryPause()
	pushed := false                // a push is why the store is asked now
	var deafUntil time.Time        // pushes before it are not listened to
	falsePushes := newRetryPause() // grows with pushes that brought no grant
	for {
		nonce := a.req.Nonce
		lock, err := a.try(ctx)
		if lock != nil {
			return lock, nil
		}
		if err == nil && a.req.Inbox == "" {
			if err = a.l.inbox.open(ctx, a.req.Key); err == nil {
				a.enqueue()
				continue
			}
		}
		if pushed && err == nil {
			deafUntil = a.l.now().Add(falsePushes.next())
		}
		d := a.untilNextPoll()
		switch {
		case err == nil:
			failing, pause = time.Time{}, newRetryPause()
		case ctx.Err() != nil:
			if failing.IsZero() && a.last.Outcome == driver.OutcomeHeld && errors.Is(err, context.DeadlineExceeded) {
				err = nil // the store answers; the time was up in the middle of a call
			}
			return nil, a.ended(ctx, err)
		case !errors.Is(err, ErrUnavailable):
			return nil, err
		case failing.IsZero():
			failing = a.l.now()
			fallthrough
		default:
			if a.l.now().Sub(failing) >= a.l.cfg.CallTimeout {
				return nil, err
			}
			d = pause.next()
		}
		if a.req.Nonce != nonce { // the grant came too late and was given back
			a.l.inbox.forget(nonce)
			a.pushes = a.l.inbox.expect(a.req.Nonce)
			if pushed {
				pushed = false
				continue // it was the push that was late, and the store answers
			}
		}
		pushed = a.sleep(ctx, d, deafUntil)
		select {
		case <-ctx.Done():
			return nil, a.ended(ctx, err)
		case <-a.l.closing:
			return nil, &Error{Code: codeClosed, Op: "acquire", Key: a.req.Key}
		default:
		}
	}
}

// sleep returns when it is time to ask: after d, or at a push, which it reports. It
// ignores pushes until deafUntil. It returns early when the wait is over.
func (a *acquisition) sleep(ctx context.Context, d time.Duration, deafUntil time.Time) (pushed bool) {
	over, pushes, deaf := time.After(d), a.pushes, (<-chan time.Time)(nil)
	if left := deafUntil.Sub(a.l.now()); left > 0 {
		pushes, deaf = nil, time.After(left)
	}
	for {
		select {
		case <-deaf:
			pushes, deaf = a.pushes, nil
			continue
		case <-pushes:
			return true
		case <-over:
		case <-ctx.Done():
		case <-a.l.closing:
		}
		return false
	}
}

// enqueue makes later attempts ask for a place in the queue.
func (a *acquisition) enqueue() {
	a.req.Inbox, a.req.Patience = a.l.inbox.name, keptPolls*a.poll()
	a.pushes = a.l.inbox.expect(a.req.Nonce)
}

// poll is the time between two calls when nothing is pushed. Waiters farther back ask
// less often: with short leases a crowd would do little else. If one of them dies, its
// place has mostly run out when its turn comes.
func (a *acquisition) poll() time.Duration {
	poll, most := a.o.ttl/leasePolls, a.l.cfg.Poll
	if far := min(time.Duration(a.last.Ahead/nearLine), 1000); far > 0 && poll < most {
		poll += min(poll*far, most)
	}
	return max(min(poll, most), time.Millisecond)
}

func (a *acquisition) untilNextPoll() time.Duration {
	poll := a.poll()
	d := poll*3/4 + dice.N(poll/2)
	if ahead := a.last.Ahead; ahead < headOfLine {
		// The holder's lease may end sooner; a millisecond is the store's grain. The
		// first in line may have died too: those behind it ask a little later.
		d = min(d, a.last.Remaining+time.Millisecond+time.Duration(ahead)*poll/(4*headOfLine))
	}
	return max(d, time.Millisecond)
}

// ended is the error of a wait that ctx ended; err is the latest attempt's.
func (a *acquisition) ended(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) {
		if cause := context.Cause(ctx); cause != door.ErrMaxWait && !errors.Is(err, cause) {
			err = &Error{Code: codeUnavailable, Op: "acquire", Key: a.req.Key, Err: errors.Join(cause, errors.Unwrap(err))}
		}
		return err
	}
	if context.Cause(ctx) == door.ErrMaxWait {
		return a.held(codeTimeout)
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && a.last.Outcome == driver.OutcomeHeld {
		e := a.held(codeTimeout)
		e.Err = context.DeadlineExceeded
		return e
	}
	return ended("acquire", a.req.Key, context.Cause(ctx))
}

// tellAcquired is called before the engine knows of the lock: nothing can happen
// to it yet.
func (a *acquisition) tellAcquired(lock *Lock) {
	e := lock.eventLocked(event.Acquired)
	e.Waited = a.waited()
	a.l.tell(e)
}

// tellContended tells once that somebody is in the way, and notes since when.
func (a *acquisition) tellContended() {
	if !a.busySince.IsZero() {
		return
	}
	a.busySince = a.sent
	if !a.o.door.Part {
		a.l.tellContended(a.req.Key, a.req.Owner, a.last)
	}
}

func (a *acquisition) tellGaveUp(err error) {
	if a.l.cfg.Observer == nil || a.busySince.IsZero() || a.o.door.Part || CodeOf(err) == codeHeld {
		return // it has not waited, or the call that it is part of tells
	}
	a.l.tell(event.Event{
		Kind: event.GaveUp, Key: a.req.Key, Owner: digest(a.req.Owner),
		Holder: a.last.Holder, Job: a.last.Job, Waited: a.waited(), Err: err,
	})
}

func (a *acquisition) waited() time.Duration {
	since := a.busySince
	if a.o.door.Part {
		since = a.o.door.Since
	}
	if since.IsZero() {
		return 0
	}
	return a.l.now().Sub(since)
}
