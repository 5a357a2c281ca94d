package joblock

import (
	"context"
	"errors"
	"github.com/joblock/toolkit/joblock/driver"
	"math/rand/v2"
	"time"
)

const (
	// keptPolls is for how many polls a waiter's place outlives its last sign of
	// life: one may be lost, and one be late.
	keptPolls = 3

	// leasePolls is how many polls there are in a lease at least. A place is then kept
	// for half a lease at most. A holder that dies has two thirds of one left, so of the
	// waiters that die with it none is given the key; and of those that die by
	// themselves one at most, as the lease that it is given outlives the others' places.
	// A waiter costs the store twice as much as a holder, which renews every third.
	leasePolls = 2 * keptPolls

	// headOfLine is how many waiters watch for the end of the holder's lease: those
	// before them may have died.
	headOfLine = 8

	// nearLine is how many waiters ask leasePolls times in a lease, however short it is.
	nearLine = 32
)

// errMaxWait is why a wait that MaxWait bounds is over.
var errMaxWait = errors.New("MaxWait is over")

// wait asks until the lock is granted or the time is up.
//
// The first time that the key is busy it takes a place in the queue. From then on
// a push tells it to ask, and its grant is what the store answers. It also asks
// without, for what pushes cannot do: keeping the place, finding a grant whose push
// was lost, and, for the first in line, noticing that a holder died; once per poll,
// and the first in line also when the holder's lease ends.
//
// A push could carry the grant itself, and save that call. But what is in a push
// anybody can have written who may publish and has read the record, and would be a
// lock for two.
func (a *acquisition) wait(ctx context.Context) (*Lock, error) {
	if a.o.hasWait && a.o.maxWait == 0 {
		lock, err := a.try(ctx)
		if lock == nil && err == nil {
			err = a.held(CodeHeld)
		}
		return lock, err
	}
	if a.o.hasWait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.o.maxWait, errMaxWait)
		defer cancel()
	}
	if a.l.inbox.ready() {
		a.enqueue() // the first attempt takes its place at once
	}
	defer func() { a.l.inbox.forget(a.req.Nonce) }()
	var failing time.Time // since when the store has not answered
	pause := newRetryPause()
	pushed := false          // what is asked now is asked because of a push
	var heed time.Time       // when pushes are heeded again
	doubt := newRetryPause() // grows with pushes that were false
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
			heed = a.l.now().Add(doubt.next())
		}
		d := a.untilNextLook()
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
			a.expectInsteadOf(nonce)
			if pushed {
				pushed = false
				continue // it was the push that was late, and the store answers
			}
		}
		pushed = a.sleep(ctx, d, heed)
		select {
		case <-ctx.Done():
			return nil, a.ended(ctx, err)
		case <-a.l.closing:
			return nil, &Error{Code: CodeClosed, Op: "acquire", Key: a.req.Key}
		default:
		}
	}
}

// sleep returns when it is time to ask: after d, or when there is a push, of which it
// reports true; no push is heeded before heed. It returns early when the wait is over.
func (a *acquisition) sleep(ctx context.Context, d time.Duration, heed time.Time) (pushed bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	pushes, deaf := a.pushes, (<-chan time.Time)(nil)
	if left := heed.Sub(a.l.now()); left > 0 {
		t := time.NewTimer(left)
		defer t.Stop()
		pushes, deaf = nil, t.C
	}
	for {
		select {
		case <-deaf:
			pushes, deaf = a.pushes, nil
			continue
		case <-pushes:
			return true
		case <-t.C:
		case <-ctx.Done():
		case <-a.l.closing:
		}
		return false
	}
}

// enqueue makes the attempts from here on ask for a place in the queue.
func (a *acquisition) enqueue() {
	a.req.Inbox, a.req.Patience = a.l.inbox.name, keptPolls*a.poll()
	a.pushes = a.l.inbox.expect(a.req.Nonce)
}

// expectInsteadOf follows the change of the nonce from an earlier one.
func (a *acquisition) expectInsteadOf(earlier string) {
	a.l.inbox.forget(earlier)
	a.pushes = a.l.inbox.expect(a.req.Nonce)
}

// poll is how often to ask although nothing was pushed. Those far back ask the less
// often the farther back they are: with short leases a crowd would do little else. By
// the time that the line comes to a place of somebody who died there it is mostly over.
func (a *acquisition) poll() time.Duration {
	poll, most := a.o.ttl/leasePolls, a.l.cfg.Poll
	if far := min(time.Duration(a.last.Ahead/nearLine), 1000); far > 0 && poll < most {
		poll += min(poll*far, most)
	}
	return max(min(poll, most), time.Millisecond)
}

// untilNextLook is how long to rely on pushes.
func (a *acquisition) untilNextLook() time.Duration {
	poll := a.poll()
	d := poll*3/4 + rand.N(poll/2)
	if ahead := a.last.Ahead; ahead < headOfLine {
		// The holder's lease may end sooner; a millisecond is the store's grain. Those
		// behind the first leave it the time to ask, as it may have died.
		d = min(d, a.last.Remaining+time.Millisecond+time.Duration(ahead)*poll/(4*headOfLine))
	}
	return max(d, time.Millisecond)
}

// ended is the error of a wait that ctx ended; err is the latest attempt's.
func (a *acquisition) ended(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) {
		if cause := context.Cause(ctx); cause != errMaxWait && !errors.Is(err, cause) {
			err = &Error{Code: CodeUnavailable, Op: "acquire", Key: a.req.Key, Err: errors.Join(cause, errors.Unwrap(err))}
		}
		return err
	}
	if context.Cause(ctx) == errMaxWait {
		return a.held(CodeTimeout)
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && a.last.Outcome == driver.OutcomeHeld {
		e := a.held(CodeTimeout)
		e.Err = context.DeadlineExceeded
		return e
	}
	return ended("acquire", a.req.Key, context.Cause(ctx))
}

// newRetryPause paces attempts while the store does not answer.
func newRetryPause() *backoff { return newBackoff(20*time.Millisecond, time.Second) }

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

// wait sleeps for the next pause, or until ctx ends, which it reports as false.
func (b *backoff) wait(ctx context.Context) bool {
	t := time.NewTimer(b.next())
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
