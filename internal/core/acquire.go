package core

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// keptPolls is the number of polls for which a silent waiter keeps its place: one poll may be lost, and another
	// late.
	keptPolls = 3

	// leasePolls is the least number of polls in a lease, so the place of a dead waiter is kept for half a lease at
	// most. If the holder dies together with its waiters, at least two thirds of the holder's lease are left, so no
	// dead waiter gets a grant. If the holder lives, a grant to a dead waiter lasts as long as the place, if the store
	// knows that the grant reaches no process. If the store does not know, at most one dead waiter gets a grant, and
	// the lease of that grant outlasts the places of the other dead waiters. The price is that a waiter costs the store
	// twice as much as a holder, which renews every third of a lease.
	leasePolls = 2 * keptPolls

	// headOfLine is how many waiters watch for the end of the holder's lease. One waiter would do, but the first few
	// waiters may have died.
	headOfLine = 8

	// nearLine is how many waiters ask leasePolls times in a lease, even in a short lease.
	nearLine = 32
)

// TryAcquire is joblock.Locker.TryAcquire. With a MaxWait it returns ErrInvalid.
func (l *Locker) TryAcquire(ctx context.Context, key string, o Options) (*Lock, error) {
	if o.Bounded && o.Bad == "" {
		o.Bad = "MaxWait is for calls that wait"
	}
	a, err := newAcquisition(l, "acquire", key, o)
	if err == nil {
		err = a.checkCarried(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer a.abandon()
	a.o.MaxWait, a.o.Bounded = 0, true // so that wait asks once
	ctx = a.traced(ctx)
	lock, err := a.wait(ctx)
	a.span.End("", err)
	return lock, err
}

// Acquire is joblock.Locker.Acquire.
func (l *Locker) Acquire(ctx context.Context, key string, o Options) (*Lock, error) {
	a, err := newAcquisition(l, "acquire", key, o)
	if err == nil {
		err = a.checkCarried(ctx)
	}
	if err != nil {
		return nil, err
	}
	done, err := l.Enter("acquire", key)
	if err != nil {
		return nil, err
	}
	defer done()
	defer a.abandon()
	ctx = a.traced(ctx)
	lock, err := a.wait(ctx)
	if err != nil {
		a.emitGaveUp(err)
	}
	a.span.End("", err)
	return lock, err
}

// traced begins the span of the call, and returns a context with the span. A part of a larger acquisition has no span
// of its own.
func (a *acquisition) traced(ctx context.Context) context.Context {
	a.caller = ctx
	if a.l.cfg.Tracer != nil && !a.o.Part && !a.o.Silent {
		ctx, a.span = a.l.trace(ctx, event.Call{Op: event.OpAcquire, Keys: []string{a.req.Key}})
	}
	return ctx
}

// acquisition is one call of TryAcquire or Acquire.
type acquisition struct {
	l    *Locker
	o    Options // with their defaults
	req  driver.AcquireRequest
	last driver.Reply // the latest refusal
	sent time.Time    // when the request that got this refusal was sent

	caller context.Context // of the call, in whose trace the lock is held
	span   *span           // of the call; nil if it is not traced

	busySince time.Time // when the request that got the first refusal was sent

	// What the store may still have under the present nonce.
	unanswered bool // perhaps a grant: the answer to a request was lost
	queued     bool // a place in the queue

	pushes <-chan driver.Push // for the present nonce; nil before enqueue
}

func newAcquisition(l *Locker, op, key string, o Options) (*acquisition, error) {
	if err := l.Check(op, key); err != nil {
		return nil, err
	}
	a := &acquisition{l: l, o: o}
	if err := a.o.complete(&l.cfg, op, key, l.cfg.TTL); err != nil {
		return nil, err
	}
	if err := CheckTaken(op, key, a.o.OwnKey); err != nil {
		return nil, err
	}
	l.doubt(op, key)
	if a.o.Owner == "" {
		a.o.Owner = newOwner()
		if a.o.NoRenew {
			a.o.Owner = ByHand + a.o.Owner
		}
	}
	a.req = driver.AcquireRequest{
		Key: key, Owner: a.o.Owner, Nonce: cmp.Or(a.o.Nonce, newNonce()), TTL: a.o.TTL, Retain: a.o.Retain, Holder: a.o.Holder,
		Memo: a.o.Memo,
	}
	return a, nil
}

// checkCarried calls Locker.checkCarried, except for the toolkit's own calls: these take locks for work other than
// the work that runs under ctx.
func (a *acquisition) checkCarried(ctx context.Context) error {
	if a.o.OwnKey {
		return nil
	}
	return a.l.checkCarried(ctx, "acquire", a.req.Key)
}

// Asked returns o with its defaults, with an owner and its digest, or the error that Acquire of key with o would return
// before sending anything.
func (l *Locker) Asked(op, key string, o Options) (asked Options, digest string, err error) {
	a, err := newAcquisition(l, op, key, o)
	if err != nil {
		return Options{}, "", err
	}
	return a.o, Digest(a.o.Owner), nil
}

// next makes one attempt: it takes the grant in pushed, or asks the store. pushed is nil without a push.
func (a *acquisition) next(ctx context.Context, pushed *driver.Push) (*Lock, error) {
	if pushed != nil && believed(pushed.Grant, a.last.Fence, a.sent, a.l.now(), &a.o) {
		return a.take(a.sent, driver.Reply{Fence: pushed.Grant.Fence, Ended: pushed.Grant.Ended})
	}
	return a.try(ctx)
}

// believed reports whether a waiter accepts a grant that was pushed to it, without asking the store. refused is the
// fence in the waiter's latest refusal, or 0 if unknown. sent is when the waiter sent the request that was refused.
//
// Only a grant made after the refusal has a larger fence, so a late or repeated push of an earlier grant is not
// believed. The lease of the grant began after sent, and therefore counts from sent. The waiter asks the store instead
// if a lease counted from sent would already be due for renewal, or if it needs what a push does not carry: the memo,
// or the whole lease of a lock that is not renewed.
func believed(g *driver.Grant, refused int64, sent, now time.Time, o *Options) bool {
	return g != nil && refused > 0 && g.Fence > refused && g.Fence <= driver.MaxFence &&
		!o.Memo && !o.NoRenew && !past(now, sent.Add(o.TTL/3))
}

// try asks the store once. It returns nil, nil if another holder has the lock; a.last is then the refusal.
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
		a.emitContended()
		if a.o.Waits != nil && a.req.Inbox != "" && !a.o.Part {
			a.o.Waits(r.Ahead)
		}
		return nil, nil
	case driver.OutcomeOK:
		// The grant may be older than this attempt, so the lock gets only the rest of the lease. The store reports that
		// rest, rounded up by at most a millisecond, which is subtracted. The rest counts from sent, although the store
		// measured it later.
		return a.take(sent.Add(min(0, r.Lease-time.Millisecond-a.o.TTL)), r)
	}
	return nil, Refusal("acquire", a.req.Key, r)
}

// take returns a lock for a grant whose lease began at the time since, or later. A grant that is too old to be trusted
// is an error, and is released in the background.
func (a *acquisition) take(since time.Time, r driver.Reply) (*Lock, error) {
	now := a.l.now()
	lock := a.l.newLock(a.req.Key, &a.o, since, now, r, false)
	var err error
	if lock.h.expired(now) {
		err = lateGrant("acquire", a.req.Key)
	} else {
		if !a.o.Detached {
			lock.traceHold(a.caller)
		}
		a.emitAcquired(lock)
		if !a.o.Detached {
			err = a.l.engine.add(lock)
		}
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
		Holder: a.last.Holder, Job: a.last.Job, Remaining: a.last.Remaining, State: a.last.State}
}

// abandon removes, in the background, what the store may have under the present nonce, and draws a new nonce. If the
// removal fails, the grant's lease ends, or the place expires.
func (a *acquisition) abandon() {
	if !a.unanswered && !a.queued {
		return
	}
	c := cleanup{
		req: driver.ReleaseRequest{
			Term:  driver.Term{Key: a.req.Key, Owner: a.req.Owner, Grant: a.req.Nonce},
			Nonce: newNonce(), Reason: "no longer waited for",
			Retain: a.req.Retain, Brief: min(a.req.Retain, a.l.cfg.brief()),
		},
		until: a.l.now().Add(a.o.TTL + a.req.Patience),
		stray: a.unanswered,
	}
	if a.o.Nonce != "" {
		// A repeated call may have found the grant, which therefore stays until its lease ends. The lock is bound to no
		// such job, so this release ends nothing but the place.
		if c.req.Job, c.stray = "no job: "+newNonce(), false; a.queued {
			a.l.janitor.add(c)
		}
		a.unanswered, a.queued = false, false
		return
	}
	a.l.janitor.add(c)
	a.req.Nonce, a.unanswered, a.queued = newNonce(), false, false
}

// wait asks the store until the lock is granted or the time is up; see "Waiting" in the package comment. Once per poll
// wait asks without a push, to keep the place and to find a grant whose push was lost. The first few in line also ask
// when the holder's lease ends, because the holder may have died.
func (a *acquisition) wait(ctx context.Context) (*Lock, error) {
	if a.o.Bounded && a.o.MaxWait == 0 {
		lock, err := a.try(ctx)
		if lock == nil && err == nil {
			err = a.held(driver.CodeHeld)
		}
		return lock, err
	}
	if a.o.Bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.o.MaxWait, ErrMaxWait)
		defer cancel()
	}
	if a.l.inbox.ready() {
		a.enqueue() // then the first attempt takes a place in the queue
	}
	defer func() { a.l.inbox.forget(a.req.Nonce) }()
	var failing time.Time // when the outage of the store began; zero while the store answers
	pause := newPauses()
	var pushed *driver.Push    // what started this attempt; nil if not a push
	var deafUntil time.Time    // pushes are ignored until then
	falsePushes := newPauses() // after a push that brought no grant
	for {
		nonce := a.req.Nonce
		lock, err := a.next(ctx, pushed)
		if lock != nil {
			return lock, nil
		}
		if err == nil && a.req.Inbox == "" {
			if err = a.l.inbox.open(ctx, a.req.Key); err == nil {
				a.enqueue()
				continue
			}
		}
		if pushed != nil && err == nil {
			deafUntil = a.l.now().Add(falsePushes.next())
		}
		d := a.untilNextPoll()
		switch {
		case err == nil:
			failing, pause = time.Time{}, newPauses()
		case ctx.Err() != nil:
			if failing.IsZero() && a.last.Outcome == driver.OutcomeHeld && errors.Is(err, context.DeadlineExceeded) {
				err = nil // no outage: the wait ended in the middle of a call
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
		if a.req.Nonce != nonce { // the grant came too late, and was given back
			a.l.inbox.forget(nonce)
			a.pushes = a.l.inbox.expect(a.req.Nonce)
			if pushed != nil {
				pushed = nil
				continue // the push was slow, the store was not: ask again at once
			}
		}
		pushed = a.sleep(ctx, d, deafUntil)
		select {
		case <-ctx.Done():
			return nil, a.ended(ctx, err)
		case <-a.l.closing:
			return nil, &Error{Code: driver.CodeClosed, Op: "acquire", Key: a.req.Key}
		default:
		}
	}
}

// sleep returns after d, at a push, or when the wait ends. It returns the push that ended the sleep, or nil. A push
// before deafUntil does not end the sleep.
func (a *acquisition) sleep(ctx context.Context, d time.Duration, deafUntil time.Time) *driver.Push {
	over, pushes, deaf := time.After(d), a.pushes, (<-chan time.Time)(nil)
	if left := deafUntil.Sub(a.l.now()); left > 0 {
		pushes, deaf = nil, time.After(left)
	}
	for {
		select {
		case <-deaf:
			pushes, deaf = a.pushes, nil
			continue
		case p := <-pushes:
			return &p
		case <-over:
		case <-ctx.Done():
		case <-a.l.closing:
		}
		return nil
	}
}

// enqueue makes later attempts ask for a place in the queue.
func (a *acquisition) enqueue() {
	a.req.Inbox, a.req.Patience = a.l.inbox.name, keptPolls*a.poll()
	a.pushes = a.l.inbox.expect(a.req.Nonce)
}

// poll returns the time between two calls when no push comes. Waiters farther back ask less often, because with short
// leases a crowd of waiters would keep the store busy. If such a waiter dies, its place has usually expired before it
// becomes the first.
func (a *acquisition) poll() time.Duration {
	poll, most := a.o.TTL/leasePolls, a.l.cfg.Poll
	if far := min(time.Duration(a.last.Ahead/nearLine), 1000); far > 0 && poll < most {
		poll += min(poll*far, most)
	}
	return max(min(poll, most), time.Millisecond)
}

func (a *acquisition) untilNextPoll() time.Duration {
	poll := a.poll()
	d := poll*3/4 + jitter.N(poll/2)
	if ahead := a.last.Ahead; ahead < headOfLine {
		// The holder's lease may end before the next poll; a millisecond is the precision of stores. The first in line
		// may have died too, so the next waiters also ask, a little later.
		d = min(d, a.last.Remaining+time.Millisecond+time.Duration(ahead)*poll/(4*headOfLine))
	}
	return max(d, time.Millisecond)
}

// ended returns the error of a wait that ended with ctx. err is the error of the latest attempt.
func (a *acquisition) ended(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) {
		if cause := context.Cause(ctx); cause != ErrMaxWait && !errors.Is(err, cause) {
			err = &Error{Code: driver.CodeUnavailable, Op: "acquire", Key: a.req.Key, Err: errors.Join(cause, errors.Unwrap(err))}
		}
		return err
	}
	if context.Cause(ctx) == ErrMaxWait {
		return a.held(driver.CodeTimeout)
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && a.last.Outcome == driver.OutcomeHeld {
		e := a.held(driver.CodeTimeout)
		e.Err = context.DeadlineExceeded
		return e
	}
	return ended("acquire", a.req.Key, context.Cause(ctx))
}

// emitAcquired reports the grant. Call it before engine.add, so that no other event of the lock comes first.
func (a *acquisition) emitAcquired(lock *Lock) {
	e := lock.eventLocked(event.Acquired)
	e.Waited = a.waited()
	a.span.AddEvent(e)
	lock.emit(lock.span, e)
}

// emitContended reports, once per acquisition, that another holder has the lock, and sets busySince.
func (a *acquisition) emitContended() {
	if !a.busySince.IsZero() {
		return
	}
	a.busySince = a.sent
	if !a.o.Part {
		a.l.emitContended(a.span, a.req.Key, a.req.Owner, a.last)
	}
}

func (a *acquisition) emitGaveUp(err error) {
	if a.l.cfg.Observer == nil && a.span == nil || a.busySince.IsZero() || a.o.Part || CodeOf(err) == driver.CodeHeld {
		return // there was no wait, or the call that this acquisition is a part of reports its end
	}
	e := event.Event{
		Kind: event.GaveUp, Key: a.req.Key, Owner: Digest(a.req.Owner),
		Holder: a.last.Holder, Job: a.last.Job, Waited: a.waited(), Err: err,
	}
	a.span.AddEvent(e)
	a.l.Emit(e)
}

func (a *acquisition) waited() time.Duration {
	since := a.busySince
	if a.o.Part {
		since = a.o.Since
	}
	if since.IsZero() {
		return 0
	}
	return a.l.now().Sub(since)
}
