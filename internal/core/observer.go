package core

import (
	"runtime/debug"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Emit passes e to the Observer, if e has a Kind and there is an Observer. The caller must not hold a mutex.
func (l *Locker) Emit(e event.Event) {
	if l.cfg.Observer == nil || e.Kind == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil && !l.panicked.Swap(true) {
			l.cfg.Logger.Error("joblock: the Observer panicked; further panics are not logged",
				"event", e.Kind, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	l.cfg.Observer(e)
}

// emitContended reports event.Contended to the Observer and to s, the span of the call that found the key busy.
func (l *Locker) emitContended(s *span, key, owner string, r driver.Reply) {
	if l.cfg.Observer == nil && s == nil {
		return
	}
	e := event.Event{
		Kind: event.Contended, Key: key, Owner: Digest(owner),
		Holder: r.Holder, Job: r.Job, Remaining: r.Remaining,
	}
	s.AddEvent(e)
	l.Emit(e)
}
