package joblock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// MaxLimit is the largest Limit.
const MaxLimit = 256

// gateTTL bounds the lease of the gate, and so how long a waiter that dies at the
// head of the line keeps those behind it from asking.
const gateTTL = 5 * time.Second

// Limit lets up to n have the key at a time, 1 to MaxLimit, instead of one. What
// the call returns is a permit: a Lock like any other, on a key of its own, that is
// renewed, handed over, resumed, lost and released by itself. Its Key is the
// limit's with "%#" and the permit's number behind it, and its fences grow from
// holder to holder of that very permit. A limit's own key is at most 506 bytes long.
//
// Waiters get permits in the order in which they came, and nobody overtakes them.
// A dead holder's permit can be had again one TTL later; a waiter that dies at the
// head of the line holds the others up for at most five seconds, and may take
// permits that come free shortly after it died with it for one TTL. ErrHeld and
// ErrTimeout tell of the holder whose lease ends first. Events about a wait have the
// limit's key, those about a permit have the permit's.
//
// Use one n for a key everywhere. Where n is being changed, while new code replaces
// old, there are at most as many holders as the larger one says. A lock taken on
// the same key without Limit is not counted.
//
// An acquire that finds a permit at its first look is two calls to the store, one of
// them a read. One that has to wait is about 3n more, in a few round trips, as it
// waits for all n permits at once: a limit of a hundred that is always reached is
// work for the store.
func Limit(n int) TryOption {
	return tryOption(func(o *options) { o.limit, o.hasLimit = n, true })
}

// checkLimit refuses a Limit out of bounds, or on a key too long for its permits.
func (o *options) checkLimit(op, key string) error {
	if !o.hasLimit {
		return nil
	}
	if o.limit < 1 || o.limit > MaxLimit {
		return invalid(op, key, "Limit is %d, must be from 1 to %d", o.limit, MaxLimit)
	}
	if most := driver.MaxKeyBytes - len(keyspace.Gate("")); len(key) > most {
		return invalid(op, key, "key has %d bytes, at most %d are allowed with Limit", len(key), most)
	}
	return nil
}

// permits is one acquisition under a Limit.
//
// A permit is a lock, and each has its own queue. One line for all of them comes
// from one more lock, the gate: a waiter first waits for the gate, and while it
// has that, it is the only one in the queues of all permits, takes the first that
// is granted to it, and lets the next one through the gate. Whoever comes meanwhile
// sees that the gate is held and lines up.
//
// A counter and one queue in a single record would take fewer commands. But then
// leases, fences, Park and Resume, whatever is true of a lock, would have to be
// true a second time of the entries of that record.
type permits struct {
	l    *Locker
	key  string
	o    options
	opts []AcquireOption // of the acquisition of each permit

	soonest   *Error    // of the refusals, the one with the least time left
	busySince time.Time // when there was no permit to be had; zero if there was
}

// permitsOf makes of a, which was made with opts, the acquisition of a permit.
func permitsOf[O AcquireOption](a *acquisition, opts []O) *permits {
	p := &permits{l: a.l, key: a.req.Key, o: a.o}
	for _, opt := range opts {
		p.opts = append(p.opts, opt)
	}
	p.opts = append(p.opts, Owner(a.o.owner), option(p.one))
	return p
}

// one is the option that makes an acquisition that of one lock.
func (p *permits) one(o *options) {
	o.limit, o.hasLimit, o.hasWait, o.part, o.own = 0, false, false, p, true
	o.shared = p.o.shared
}

func (p *permits) gateOptions() []AcquireOption {
	return []AcquireOption{
		TTL(min(gateTTL, p.l.cfg.TTL)), MaxRenew(driver.MaxPeriod), Holder(p.o.holder),
		option(p.one), option(func(o *options) { o.silent = true }),
	}
}

// try takes a permit without waiting. ErrHeld also when there are free permits but
// they are about to be given to those who wait.
func (p *permits) try(ctx context.Context) (*Lock, error) {
	ours, err := p.nobodyWaits(ctx)
	if err != nil {
		return nil, err
	}
	// Asking for any of them is a call less than finding out which are free, and
	// mostly enough.
	numbers := dice.Perm(p.o.limit)
	if ours {
		lock, err := p.take(ctx, numbers[0])
		if !errors.Is(err, ErrHeld) {
			return lock, err
		}
		numbers = numbers[1:]
	}
	keys := make([]string, len(numbers))
	for i, n := range numbers {
		keys[i] = keyspace.Permit(p.key, n+1)
	}
	recs, err := p.l.inspectAll(ctx, "acquire", p.key, driver.InspectRequest{Keys: keys})
	if err != nil {
		return nil, err
	}
	for i, rec := range recs {
		if st := statusOf(rec); st.Locked() {
			p.refused(&Error{Code: codeHeld, Holder: st.Holder, Job: st.Job, Remaining: cmp.Or(st.Remaining, st.Reserved)})
			continue
		}
		if ours {
			lock, err := p.take(ctx, numbers[i])
			if !errors.Is(err, ErrHeld) {
				return lock, err
			}
		}
	}
	held := p.held(codeHeld)
	p.busySince = p.l.now()
	p.l.tellContended(p.key, p.o.owner, driver.Reply{Holder: held.Holder, Job: held.Job, Remaining: held.Remaining})
	return nil, held
}

// take asks for the permit with index i.
func (p *permits) take(ctx context.Context, i int) (*Lock, error) {
	lock, err := tryAcquire(ctx, p.l, keyspace.Permit(p.key, i+1), p.opts)
	p.refused(err)
	return lock, err
}

// nobodyWaits reports whether the line is empty at some instant of the call. Whoever
// lines up afterwards came later.
func (p *permits) nobodyWaits(ctx context.Context) (bool, error) {
	gate, err := p.l.inspect(ctx, "acquire", keyspace.Gate(p.key))
	if err != nil || gate.State == StateHeld {
		return false, err
	}
	if gate.State == StateFree && gate.Waiters == 0 {
		return true, nil
	}
	// The one at the gate has died. There may be others, alive or dead: who asks
	// serves the first who is alive.
	lock, err := tryAcquire(ctx, p.l, keyspace.Gate(p.key), p.gateOptions())
	if lock != nil {
		return true, lock.Release(ctx)
	}
	if errors.Is(err, ErrHeld) {
		err = nil
	}
	return false, err
}

// wait takes a permit, waiting for one as Acquire does.
func (p *permits) wait(ctx context.Context) (*Lock, error) {
	if p.o.hasWait && p.o.maxWait == 0 {
		return p.try(ctx)
	}
	lock, err := p.waitInLine(ctx)
	if err != nil {
		p.tellGaveUp(err)
	}
	return lock, err
}

func (p *permits) waitInLine(ctx context.Context) (*Lock, error) {
	if p.o.hasWait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.o.maxWait, errMaxWait)
		defer cancel()
	}
	lock, err := p.try(ctx)
	if err == nil {
		return lock, nil
	}
	if retry := errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable); !retry || ctx.Err() != nil {
		return nil, p.failed(ctx, err)
	}
	gate, err := p.l.Acquire(ctx, keyspace.Gate(p.key), p.gateOptions()...)
	if err != nil {
		return nil, p.failed(ctx, err)
	}
	return p.first(ctx, gate)
}

// first waits for all permits at once and returns the first that is granted. It
// leaves the queues of the others, and lets the next one through the gate, in the
// background. A gate that is lost meanwhile costs those behind it their order and
// nothing else, so nobody watches it.
func (p *permits) first(ctx context.Context, gate *Lock) (*Lock, error) {
	if err := p.l.enter("acquire", p.key); err != nil {
		p.giveBack(ctx, gate)
		return nil, err
	}
	type answer struct {
		lock *Lock
		err  error
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, p.o.limit)
	for i := range p.o.limit {
		go func() {
			lock, err := p.l.Acquire(waiting, keyspace.Permit(p.key, i+1), p.opts...)
			answers <- answer{lock, err}
		}()
	}
	leave := func(others int) {
		defer p.l.waiters.Done()
		var surplus sync.WaitGroup
		for range others {
			a := <-answers
			p.refused(a.err)
			if a.lock != nil {
				surplus.Go(func() { p.giveBack(ctx, a.lock) })
			}
		}
		surplus.Wait()
		p.giveBack(ctx, gate)
	}
	a := <-answers
	if a.lock != nil {
		go leave(p.o.limit - 1)
		return a.lock, nil
	}
	cancel()
	p.soonest = nil // what was seen before the wait is old
	p.refused(a.err)
	leave(p.o.limit - 1)
	return nil, p.failed(ctx, a.err)
}

// giveBack releases a lock that nobody has seen. That it fails concerns nobody
// here: it is repeated in the background, or the lease ends.
func (p *permits) giveBack(ctx context.Context, lock *Lock) {
	_ = lock.end(ctx, "release", "no longer waited for")
}

// refused notes who is in the way.
func (p *permits) refused(err error) {
	var e *Error
	if errors.As(err, &e) && e.Remaining > 0 && (p.soonest == nil || e.Remaining < p.soonest.Remaining) {
		p.soonest = e
	}
}

// held describes whose permit may be had first.
func (p *permits) held(code string) *Error {
	e := &Error{Code: code, Op: "acquire", Key: p.key}
	if p.soonest != nil {
		e.Holder, e.Job, e.Remaining = p.soonest.Holder, p.soonest.Job, p.soonest.Remaining
	}
	return e
}

// tellGaveUp is to a permit what it is to a lock.
func (p *permits) tellGaveUp(err error) {
	if p.l.cfg.Observer == nil || p.busySince.IsZero() {
		return
	}
	held := p.held(codeHeld)
	p.l.tell(event.Event{
		Kind: event.GaveUp, Key: p.key, Owner: digest(p.o.owner),
		Holder: held.Holder, Job: held.Job, Waited: p.l.now().Sub(p.busySince), Err: err,
	})
}

// failed is the error of a wait in which err was the first; ctx is the wait's.
func (p *permits) failed(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil, errors.Is(err, ErrUnavailable):
		return err
	case cause == errMaxWait:
		return p.held(codeTimeout)
	case errors.Is(cause, context.DeadlineExceeded) && p.soonest != nil:
		e := p.held(codeTimeout)
		e.Err = context.DeadlineExceeded
		return e
	}
	return ended("acquire", p.key, cause)
}
