package core

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Lock is joblock.Lock.
type Lock struct {
	l         *Locker
	prior     Ended
	recovered bool
	silent    bool // no events, no spans

	mu       sync.Mutex // guards what follows
	span     *span      // of the present holding; nil if the lock is not traced
	h        holding    // h.terms never changes, and is read without mu
	memo     []byte
	asOf     time.Time     // when memo was read, by the store's clock
	done     chan struct{} // made on demand, closed when the lock is lost
	watch    []*lockCtx    // the contexts to cancel when the lock is lost
	answered chan struct{} // made on demand, closed when a renewal is answered that names a Park

	// Guarded by engine.mu.
	next  time.Time // when the lock is due
	index int       // place in the engine's heap, -1 if the lock is not in the heap
}

// newLock returns the handle for the grant r, which reached this process at now. The lease counts from sent.
func (l *Locker) newLock(key string, o *Options, sent, now time.Time, r driver.Reply, resumed bool) *Lock {
	both := &struct {
		Lock
		owner, hint string
	}{owner: o.Owner, hint: r.Hint} // one allocation
	k := &both.Lock
	t := terms{key: key, owner: &both.owner, holder: o.Holder, ttl: o.TTL, margin: l.cfg.margin(o.TTL)}
	if o.MaxRenew > 0 {
		t.renewUntil = sent.Add(o.MaxRenew)
	}
	if resumed {
		t.resumed, t.resumedBy, t.reserve = true, o.Job, o.Reserve
	}
	k.l, k.prior, k.recovered, k.silent, k.memo, k.asOf, k.index = l, r.Ended, r.Recovered, o.Silent, r.Memo, r.Now, -1
	k.h = granted(t, sent, now, r.Fence, !o.NoRenew, o.Retain, &both.hint)
	if o.Shared || o.kept {
		k.h.ownerShared()
	}
	return k
}

// unlock unlocks k.mu and then carries out the step s.
func (k *Lock) unlock(s step) {
	if s == (step{}) {
		k.mu.Unlock()
		return
	}
	e := k.eventLocked(s.tell)
	e.Late = s.late
	var watch []*lockCtx
	switch {
	case s.lost != nil:
		if e.Kind != 0 {
			e.Err = s.lost
		}
		if k.done != nil {
			close(k.done)
		}
		watch, k.watch = k.watch, nil
	case s.found:
		k.done = nil // which is closed
	}
	fence, span := k.h.fence, k.span
	k.mu.Unlock()

	for _, c := range watch {
		c.cancel(s.lost)
	}
	if s.moved {
		k.l.engine.reschedule(k)
	}
	if s.lost != nil {
		k.l.cfg.Logger.Warn("joblock: lock lost", "key", k.h.key, "fence", fence, "owner", Digest(*k.h.owner), "cause", s.lost)
	}
	k.emit(span, e)
}

// eventLocked returns an event about the lock as it is now, without a Kind if there is neither an Observer nor a span.
// The caller holds k.mu, or the only reference to k, and reports the event after unlocking k.mu.
func (k *Lock) eventLocked(kind event.Kind) event.Event {
	if kind == 0 || k.l.cfg.Observer == nil && k.span == nil || k.silent {
		return event.Event{}
	}
	e := event.Event{Kind: kind, Key: k.h.key, Owner: Digest(*k.h.owner), Fence: k.h.fence, Holder: k.h.holder, Job: k.h.job}
	switch kind {
	case event.Acquired:
		e.Prior = k.prior
	case event.Resumed:
		e.Recovered = k.recovered
	case event.Parked, event.Released, event.Lost:
		e.Held = k.l.now().Sub(k.h.since)
	}
	return e
}

// none reports whether k is nil, or was not made by a Locker.
func (k *Lock) none() bool { return k == nil || k.l == nil }

// open returns ErrInvalid for a lock that no Locker made, and ErrClosed after Close of the lock's Locker.
func (k *Lock) open(op string) error {
	if k.none() {
		return nilLock(op)
	}
	return k.l.open(op, k.h.key)
}

// snapshot returns a copy of the holding, or the zero holding for a lock that no Locker made.
func (k *Lock) snapshot() holding {
	if k.none() {
		return holding{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.h
}

// Key returns the key.
func (k *Lock) Key() string { return k.snapshot().key }

func (k *Lock) share() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.h.ownerShared()
}

// Fence is joblock.Lock.Fence.
func (k *Lock) Fence() int64 { return k.snapshot().fence }

// ExpiresAt is joblock.Lock.ExpiresAt.
func (k *Lock) ExpiresAt() time.Time { return k.snapshot().trust }

// Prior is joblock.Lock.Prior.
func (k *Lock) Prior() Ended {
	if k.none() {
		return driver.EndedNone
	}
	return k.prior
}

// Done is joblock.Lock.Done.
func (k *Lock) Done() <-chan struct{} {
	if k.none() {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done == nil {
		k.done = make(chan struct{})
		if k.h.state == lockLost {
			close(k.done)
		}
	}
	return k.done
}

// Err returns nil while the lock is held and trusted, and otherwise the reason: ErrLost, ErrAlreadyReleased, or
// ErrNotOwner after Park. Err reads the clocks itself, so the answer is right even if the process was suspended until
// just now.
func (k *Lock) Err() error {
	if k.none() {
		return nilLock("err")
	}
	k.check()
	if over := k.snapshot().over; over != nil {
		return over
	}
	return nil // an error that holds a nil *Error is not nil
}

// check declares the lock lost if the lock's trust deadline has passed.
func (k *Lock) check() {
	now := k.l.now()
	k.mu.Lock()
	k.unlock(k.h.timePassed(now))
}

func (k *Lock) close() {
	k.mu.Lock()
	k.unlock(k.h.lockerClosed())
}

// Token is joblock.Lock.Token.
func (k *Lock) Token() Token {
	if k.none() {
		return Token{}
	}
	k.share()
	return k.tokenOf(k.Fence())
}

func (k *Lock) tokenOf(fence int64) Token {
	return Token{key: k.h.key, owner: newSecret(*k.h.owner), fence: fence, ttl: k.h.ttl}
}

// String describes the lock without its owner.
func (k *Lock) String() string {
	if k.none() {
		return "lock(nil)"
	}
	return fmt.Sprintf("lock(%q fence %d owner %s)", k.h.key, k.Fence(), Digest(*k.h.owner))
}

// Format writes what String returns, for every verb, %#v and %d included.
func (k *Lock) Format(f fmt.State, _ rune) { fmt.Fprintf(f, fmt.FormatString(f, 's'), k.String()) }

// LogValue returns what String returns, so that slog does not marshal the token.
func (k *Lock) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Owner returns the owner, a secret.
func (k *Lock) Owner() string {
	if k.none() {
		return ""
	}
	return *k.h.owner
}

// Digest returns the digest of the owner, which is fit for logs.
func (k *Lock) Digest() string { return Digest(k.Owner()) }

// TTL returns the length of the lease.
func (k *Lock) TTL() time.Duration {
	if k.none() {
		return 0
	}
	return k.h.ttl
}

// Recovered reports whether the previous holder of a lock that was resumed had died.
func (k *Lock) Recovered() bool { return !k.none() && k.recovered }

func nilLock(op string) error { return Invalid(op, "", "the lock is nil") }
