package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// gateTTL bounds the lease of the gate: if the holder of the gate dies, the other waiters lose up to gateTTL. The bound
// does not hold for core.Options.LongGate.
const gateTTL = 5 * time.Second

// permits is one call that acquires a permit.
//
// A permit is a lock, and each permit has its own queue. One more lock, the gate, makes a single line of these queues:
// a waiter first waits for the gate, and only the waiter that holds the gate is in the queues of the permits. That
// waiter takes the first permit that the store grants, and releases the gate. A newcomer tries a permit at once only if
// the gate has neither a holder nor a waiter.
//
// A counter and one queue in a single record would take fewer commands. But leases, fences, Park and Resume would then
// have to be written twice: once for records, and once for the entries of that record.
type permits struct {
	*Limit
	key    string
	o      core.Options // of the call
	asked  core.Options // o with the defaults
	digest string       // of asked.Owner
	span   event.Span   // of the call

	soonest   *joblock.Error // the refusal with the least Remaining
	busySince time.Time      // when try found all permits taken; zero before then
}

// permit returns the options with which the call takes one permit, as a Part. The whole call bounds the wait and
// reports to the Observer.
func (p *permits) permit() core.Options {
	o := p.o
	o.OwnKey, o.Part, o.Since, o.Owner, o.Bounded = true, true, p.busySince, p.asked.Owner, false
	return o
}

// atOnce returns o for a call that does not wait.
func atOnce(o core.Options) core.Options {
	o.MaxWait, o.Bounded = 0, true
	return o
}

// gate returns the options for the gate. The lock of the gate has no events.
func (p *permits) gate() core.Options {
	ttl := p.locks.Settings().TTL
	if !p.asked.LongGate {
		ttl = min(gateTTL, ttl)
	}
	return core.Options{
		TTL: ttl, MaxRenew: driver.MaxPeriod, Holder: p.asked.Holder, OwnKey: true, Part: true, Silent: true,
	}
}

// try takes a permit without waiting, as TryAcquire does.
func (p *permits) try(ctx context.Context) (*core.Lock, error) {
	ours, err := p.nobodyWaits(ctx)
	if err != nil {
		return nil, err
	}
	// Trying any one permit first usually succeeds, which saves the call that reads which permits are free.
	numbers := jitter.Perm(p.n)
	if ours {
		lock, err := p.take(ctx, numbers[0])
		if !errors.Is(err, joblock.ErrHeld) {
			return lock, err
		}
		numbers = numbers[1:]
	}
	keys := []string{keyspace.Size(p.key)}
	for _, n := range numbers {
		keys = append(keys, keyspace.Permit(p.key, n+1))
	}
	recs, err := p.locks.Inspect(ctx, "acquire", p.key, driver.InspectRequest{Keys: keys})
	if err != nil {
		return nil, err
	}
	p.recordSize(ctx, recs[0])
	for i, rec := range recs[1:] {
		if st := core.StatusOf(rec); st.Locked() {
			p.refused(&joblock.Error{Holder: st.Holder, Job: st.Job, Remaining: cmp.Or(st.Lease, st.Reserved), State: st.State})
			continue
		}
		if ours {
			lock, err := p.take(ctx, numbers[i])
			if !errors.Is(err, joblock.ErrHeld) {
				return lock, err
			}
		}
	}
	held := p.held(joblock.ErrHeld)
	p.busySince = p.locks.Now()
	p.tell(event.Event{Kind: event.Contended, Remaining: held.Remaining})
	return nil, held
}

// take tries the permit with index i, from 0.
func (p *permits) take(ctx context.Context, i int) (*core.Lock, error) {
	lock, err := p.locks.Acquire(ctx, keyspace.Permit(p.key, i+1), atOnce(p.permit()))
	p.refused(err)
	return lock, err
}

// nobodyWaits reports whether the line was empty at some instant of the call. A waiter that comes after that instant
// is behind the caller.
func (p *permits) nobodyWaits(ctx context.Context) (bool, error) {
	key := keyspace.Gate(p.key)
	recs, err := p.locks.Inspect(ctx, "acquire", key, driver.InspectRequest{Keys: []string{key}})
	if err != nil || recs[0].State == driver.StateHeld {
		return false, err
	}
	if recs[0].State == driver.StateFree && recs[0].Waiters == 0 {
		return true, nil
	}
	// The holder of the gate has died. Other waiters may be in line, alive or dead. The next Acquire of the gate
	// makes the store grant the gate to the first waiter that is alive.
	lock, err := p.locks.Acquire(ctx, key, atOnce(p.gate()))
	if lock != nil {
		return true, lock.Release(ctx, core.Release{})
	}
	if errors.Is(err, joblock.ErrHeld) {
		err = nil
	}
	return false, err
}

// wait takes a permit, and waits for a free permit as Acquire does.
func (p *permits) wait(ctx context.Context) (*core.Lock, error) {
	if p.asked.Bounded && p.asked.MaxWait == 0 {
		return p.try(ctx)
	}
	lock, err := p.waitInLine(ctx)
	if err != nil && !p.busySince.IsZero() {
		p.tell(event.Event{Kind: event.GaveUp, Waited: p.locks.Now().Sub(p.busySince), Err: err})
	}
	return lock, err
}

func (p *permits) waitInLine(ctx context.Context) (*core.Lock, error) {
	if p.asked.Bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.asked.MaxWait, core.ErrMaxWait)
		defer cancel()
	}
	lock, err := p.try(ctx)
	if err == nil {
		return lock, nil
	}
	if retry := errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrUnavailable); !retry || ctx.Err() != nil {
		return nil, p.failed(ctx, err)
	}
	gate, err := p.locks.Acquire(ctx, keyspace.Gate(p.key), p.gate())
	if err != nil {
		return nil, p.failed(ctx, err)
	}
	return p.anyPermit(ctx, gate)
}

// anyPermit waits for all permits at once and returns the permit that the store grants first. Then it leaves the other
// queues and releases the gate, in the background. It ignores a loss of the gate during the wait: only the order of the
// later waiters would be lost.
func (p *permits) anyPermit(ctx context.Context, gate *core.Lock) (*core.Lock, error) {
	done, err := p.locks.Enter("acquire", p.key)
	if err != nil {
		p.giveBack(ctx, gate)
		return nil, err
	}
	type answer struct {
		lock *core.Lock
		err  error
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, p.n)
	opts := p.permit()
	for i := range p.n {
		go func() {
			lock, err := p.locks.Acquire(waiting, keyspace.Permit(p.key, i+1), opts)
			answers <- answer{lock, err}
		}()
	}
	leave := func(others int) {
		defer done()
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
		go leave(p.n - 1)
		return a.lock, nil
	}
	cancel()
	p.soonest = nil // the refusals from before the wait are out of date
	p.refused(a.err)
	leave(p.n - 1)
	return nil, p.failed(ctx, a.err)
}

// giveBack releases a lock that the caller of Acquire never gets.
func (p *permits) giveBack(ctx context.Context, lock *core.Lock) {
	lock.GiveBack(ctx, "no longer waited for")
}

// refused stores err in p.soonest if err has a smaller Remaining than p.soonest.
func (p *permits) refused(err error) {
	var e *joblock.Error
	if errors.As(err, &e) && e.Remaining > 0 && (p.soonest == nil || e.Remaining < p.soonest.Remaining) {
		p.soonest = e
	}
}

// held returns an Error with the code of sentinel, which describes the holder whose lease ends first.
func (p *permits) held(sentinel error) *joblock.Error {
	e := &joblock.Error{Code: joblock.CodeOf(sentinel), Op: "acquire", Key: p.key}
	if p.soonest != nil {
		e.Holder, e.Job, e.Remaining, e.State = p.soonest.Holder, p.soonest.Job, p.soonest.Remaining, p.soonest.State
	}
	return e
}

// tell sets the key and the owner of e, sets its holder to the holder whose lease ends first, and passes e to the
// Observer.
func (p *permits) tell(e event.Event) {
	held := p.held(joblock.ErrHeld)
	e.Key, e.Owner, e.Holder, e.Job = p.key, p.digest, held.Holder, held.Job
	p.span.AddEvent(e)
	p.locks.Emit(e)
}

// failed returns the error for a wait that ended with err. ctx is the context of the wait.
func (p *permits) failed(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil, errors.Is(err, joblock.ErrUnavailable):
		return err
	case cause == core.ErrMaxWait:
		return p.held(joblock.ErrTimeout)
	case errors.Is(cause, context.DeadlineExceeded) && p.soonest != nil:
		e := p.held(joblock.ErrTimeout)
		e.Err = context.DeadlineExceeded
		return e
	}
	return fmt.Errorf("limit: acquire %q: %w", p.key, cause)
}
