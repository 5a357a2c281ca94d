package joblock

import (
	"runtime/debug"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// tell passes an event on, if there is one and somebody listens. The caller holds
// no lock.
func (l *Locker) tell(e event.Event) {
	if l.cfg.Observer != nil && e.Kind != 0 {
		l.tellObserver(e)
	}
}

func (l *Locker) tellObserver(e event.Event) {
	defer func() {
		if p := recover(); p != nil && !l.panicked.Swap(true) {
			l.cfg.Logger.Error("joblock: the Observer panicked; further panics are not logged",
				"event", e.Kind, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	l.cfg.Observer(e)
}

// eventLocked describes the lock as it is, to be told when k.mu is no longer held;
// nothing when nobody listens. The caller holds k.mu, or the only reference.
func (k *Lock) eventLocked(kind event.Kind) event.Event {
	if kind == 0 || k.l.cfg.Observer == nil || k.silent {
		return event.Event{}
	}
	e := event.Event{
		Kind: kind, Key: k.h.key, Owner: digest(*k.h.owner), Fence: k.h.fence, Holder: k.h.holder, Job: k.h.job,
	}
	switch kind {
	case event.Parked, event.Released, event.Lost:
		e.Held = k.l.now().Sub(k.h.since)
	}
	return e
}

// tellReleased tells what came of a release that was described by e before it was
// sent. A refusal means that the lock had been lost before, and nobody had noticed.
func (k *Lock) tellReleased(e event.Event, reason string, r driver.Reply, err error) {
	if e.Kind == 0 {
		return
	}
	e.Reason = reason
	switch {
	case err != nil:
		e.Err = err
	case r.Outcome != driver.OutcomeOK:
		e.Kind, e.Err = event.Lost, k.h.lostBy("release", r)
	}
	k.l.tell(e)
}

// tellAcquired is called before the engine knows of the lock: nothing can happen
// to it yet.
func (a *acquisition) tellAcquired(lock *Lock) {
	if a.l.cfg.Observer == nil {
		return
	}
	e := lock.eventLocked(event.Acquired)
	e.Prior, e.Waited = lock.prior, a.waited()
	a.l.tell(e)
}

// tellResumed is to a Resume what tellAcquired is to an Acquire.
func (k *Lock) tellResumed() {
	e := k.eventLocked(event.Resumed)
	e.Recovered = k.recovered
	k.l.tell(e)
}

// tellContended tells once that somebody is in the way, and notes since when.
func (a *acquisition) tellContended() {
	if !a.busySince.IsZero() {
		return
	}
	a.busySince = a.sent
	if a.o.part == nil {
		a.l.tellContended(a.req.Key, a.req.Owner, a.last)
	}
}

func (l *Locker) tellContended(key, owner string, r driver.Reply) {
	if l.cfg.Observer == nil {
		return
	}
	l.tell(event.Event{
		Kind: event.Contended, Key: key, Owner: digest(owner),
		Holder: r.Holder, Job: r.Job, Remaining: r.Remaining,
	})
}

// tellGaveUp tells of a wait that err has ended.
func (a *acquisition) tellGaveUp(err error) {
	if a.l.cfg.Observer == nil || a.busySince.IsZero() || a.o.part != nil || CodeOf(err) == codeHeld {
		return // it has not waited, or its whole has more to tell
	}
	a.l.tell(event.Event{
		Kind: event.GaveUp, Key: a.req.Key, Owner: digest(a.req.Owner),
		Holder: a.last.Holder, Job: a.last.Job, Waited: a.waited(), Err: err,
	})
}

func (a *acquisition) waited() time.Duration {
	since := a.busySince
	if a.o.part != nil {
		since = a.o.part.busySince
	}
	if since.IsZero() {
		return 0
	}
	return a.l.now().Sub(since)
}

// tellEnded tells of a lock that was ended from outside.
func (l *Locker) tellEnded(req driver.ReleaseRequest) {
	if l.cfg.Observer == nil {
		return
	}
	e := event.Event{Kind: event.ReleasedByToken, Key: req.Key, Owner: digest(req.Owner), Job: req.Job, Reason: req.Reason}
	switch req.Kind {
	case driver.ReleaseIdle, driver.ReleaseForJob:
		e.Kind = event.Freed
	case driver.ReleaseForced:
		e.Kind = event.Forced
	}
	l.tell(e)
}

// tellCleanupFailed tells of releases that are no longer repeated.
func (l *Locker) tellCleanupFailed(given []cleanup) {
	if l.cfg.Observer == nil {
		return
	}
	for _, c := range given {
		l.tell(event.Event{
			Kind: event.CleanupFailed, Key: c.req.Key, Owner: digest(c.req.Owner), Fence: c.req.Fence, Reason: c.req.Reason,
			Err: &Error{Code: codeUnavailable, Op: "clean up", Key: c.req.Key, Detail: "what was left of the lock runs out by itself"},
		})
	}
}
