package joblock

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Lock is one holding of one key. It is made by a Locker, safe for concurrent
// use, and over once it was released, handed over by Park, or lost. All methods
// of a nil *Lock are safe: those that can fail return ErrInvalid.
//
// A Lock marshals (text, binary, JSON, msgpack) to its Token, which is a secret.
type Lock struct {
	l         *Locker
	key       string
	owner     *string // a pointer, which fmt does not follow, when it prints what has a Lock in it
	holder    string
	ttl       time.Duration
	prior     Ended
	silent    bool // see options
	recovered bool

	mu    sync.Mutex // guards what follows
	state lockState
	fence int64
	trust time.Time // trust deadline, with its monotonic reading
	memo  []byte
	// How long the store is to remember the lock after its end.
	retain time.Duration
	// Somebody else may ask for the lock, or its end: by a token, or by the owner.
	shared bool
	err    *Error        // why the handle is over; nil while held
	done   chan struct{} // made on demand, closed on loss
	watch  map[*lockCtx]struct{}
	job    string // what Park bound it to
	own    string // what it was resumed for, and is bound to again when a Park is undone
	// A reservation may stand beyond the lease: it was resumed.
	reserved bool
	reserve  time.Duration // how long renewals keep it reserved beyond the lease
	// The nonces of a Park and of the Release; kept so that a repeated call is
	// recognised by the store. parkNonce stays set while the answer is owed.
	parkNonce, releaseNonce string
	parkHold                time.Duration // the longest reservation that was asked for
	reclaim                 resumption
	// Renewal.
	renewing  bool
	since     time.Time // when this holding began
	renewAt   time.Time // when the next one is due
	holdUntil time.Time // no renewal later; zero: no bound
	inFlight  bool      // a renewal is under way
	look      looking

	// Guarded by engine.mu.
	next  time.Time // when the engine looks at it again
	index int       // in the engine's heap, -1 when not in it
}

// resumption is a Reclaim that may have been applied without an answer.
type resumption struct {
	nonce string
	sent  time.Time
}

type lockState uint8

const (
	lockHeld lockState = iota
	lockParking
	lockParked
	lockReleased
	lockLost
)

// newLock makes the handle of a grant that was asked for at sent.
func (l *Locker) newLock(key string, o options, sent time.Time, r driver.Reply) *Lock {
	both := &struct {
		Lock
		owner string
	}{owner: o.owner} // one allocation
	k := &both.Lock
	*k = Lock{
		l: l, key: key, owner: &both.owner, holder: o.holder, ttl: o.ttl, retain: o.retain, shared: o.shared || o.hasKeep,
		prior: r.Ended, recovered: r.Recovered, memo: r.Memo, job: o.job, index: -1,
		renewing: !o.noRenew, since: sent, silent: o.silent,
	}
	k.granted(sent, r.Fence)
	if o.maxHold > 0 {
		k.holdUntil = sent.Add(o.maxHold)
	}
	return k
}

// granted notes a lease that the store gave in answer to a request sent at sent.
// The caller holds k.mu, or the only reference.
func (k *Lock) granted(sent time.Time, fence int64) {
	k.fence = fence
	k.trust = sent.Add(k.ttl - k.l.cfg.margin(k.ttl))
	k.renewAt = sent.Add(k.ttl / 3)
}

// none reports whether k was not made by a Locker.
func (k *Lock) none() bool { return k == nil || k.l == nil }

// Key returns the key.
func (k *Lock) Key() string {
	if k.none() {
		return ""
	}
	return k.key
}

// Owner returns the owner token, with which Locker.Release can release the lock
// from anywhere. It is a secret.
func (k *Lock) Owner() string {
	if k.none() {
		return ""
	}
	k.share()
	return *k.owner
}

// share notes that somebody else may come to know the owner.
func (k *Lock) share() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared = true
}

// Digest returns a short digest of the owner that can be shown and logged.
func (k *Lock) Digest() string {
	if k.none() {
		return digest("")
	}
	return digest(*k.owner)
}

// Fence returns the fencing number of this holding: larger than that of every
// earlier holding of the key. Send it to the resource the lock protects.
func (k *Lock) Fence() int64 {
	if k.none() {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fence
}

// TTL returns the length of the lock's leases.
func (k *Lock) TTL() time.Duration {
	if k.none() {
		return 0
	}
	return k.ttl
}

// ExpiresAt returns the trust deadline: the local time at which the lock counts
// as lost, at the latest, unless it is renewed before. It moves with every renewal.
func (k *Lock) ExpiresAt() time.Time {
	if k.none() {
		return time.Time{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trust
}

// Prior tells how the previous ownership of the key ended: EndedLapsed when its
// holder died or was cut off, EndedNone when the store remembers none.
func (k *Lock) Prior() Ended {
	if k.none() {
		return EndedNone
	}
	return k.prior
}

// Recovered reports whether Resume found even the reservation run out, though
// nobody had taken the key in between.
func (k *Lock) Recovered() bool { return !k.none() && k.recovered }

// Memo returns the memo of the key: what the last holder left, if the lock was taken
// WithMemo, or what SetMemo has written since. The caller must not change it.
func (k *Lock) Memo() []byte {
	if k.none() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.memo
}

// Done returns a channel that is closed when the lock is lost, at the latest at
// its trust deadline. A lock that is released or handed over is not lost: its
// Done stays open.
func (k *Lock) Done() <-chan struct{} {
	if k.none() {
		return closedChan
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.doneLocked()
}

func (k *Lock) doneLocked() chan struct{} {
	if k.done == nil {
		k.done = make(chan struct{})
		if k.state == lockLost {
			close(k.done)
		}
	}
	return k.done
}

// Err returns nil while the lock is held and trusted, and otherwise why it is
// not: ErrLost, ErrAlreadyReleased, or ErrNotOwner after Park. It looks at the
// clocks itself, so it is right even in a process that was just resumed.
func (k *Lock) Err() error {
	if k.none() {
		return nilLock("err")
	}
	k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		return nil // a nil *Error in an error would not be nil
	}
	return k.err
}

// check declares the lock lost if its trust deadline has passed.
func (k *Lock) check() {
	now := k.l.now()
	k.mu.Lock()
	expired, renewing := k.expiredLocked(now), k.renewing
	k.mu.Unlock()
	if !expired {
		return
	}
	lost := &Error{Code: CodeLost, Key: k.key, Detail: "no renewal was answered before the trust deadline"}
	if !renewing {
		lost.Detail, lost.Err = "the lease ran out", door.ErrNotRenewed
	}
	k.lose(lost)
}

// tellAtLocked is when the lock counts as lost.
func (k *Lock) tellAtLocked() time.Time { return k.trust.Add(-k.l.cfg.lead(k.ttl)) }

// expiredLocked reports whether a held lock's time is over by either clock.
func (k *Lock) expiredLocked(now time.Time) bool {
	return k.liveLocked() && past(now, k.tellAtLocked())
}

// liveLocked reports whether the handle is not over.
func (k *Lock) liveLocked() bool { return k.state == lockHeld || k.state == lockParking }

// settled reports whether the handle was released or handed over.
func (k *Lock) settled() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state == lockReleased || k.state == lockParked
}

// lossOf returns why the lock was lost, nil if it was not.
func (k *Lock) lossOf() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != lockLost {
		return nil
	}
	return k.err
}

// lose ends the handle with cause err, unless it was over already.
func (k *Lock) lose(err *Error) {
	k.mu.Lock()
	if !k.liveLocked() {
		k.mu.Unlock()
		return
	}
	k.state, k.err = lockLost, err
	if k.done != nil {
		close(k.done)
	}
	watch, fence := k.watch, k.fence
	k.watch = nil
	e := k.eventLocked(event.Lost)
	k.mu.Unlock()

	for c := range watch {
		c.cancel(err)
	}
	k.l.engine.reschedule(k)
	k.l.cfg.Logger.Warn("joblock: lock lost", "key", k.key, "fence", fence, "owner", k.Digest(), "cause", err)
	e.Err = err
	k.l.tell(e)
}

// lost makes the loss error for a refusal by the store. What the store said is
// told in words: a loss must not be taken for the ErrAlreadyReleased or
// ErrNotOwner of a handle that its user has ended.
func (k *Lock) lost(op string, r driver.Reply) *Error {
	e := *errorOf(op, k.key, r).(*Error)
	if e.Code != CodeLost {
		e.Detail = strings.TrimSuffix(codeText[e.Code]+": "+e.Detail, ": ")
	}
	e.Code = CodeLost
	return &e
}

// closed is the loss of a lock whose Locker is closed.
func (k *Lock) closed() *Error {
	return &Error{Code: CodeLost, Key: k.key, Detail: "its Locker was closed"}
}

// overLocked returns why the handle can do nothing, nil while it is held.
func (k *Lock) overLocked(op string) error {
	if k.state == lockParking {
		return k.handedOver(op, "")
	}
	if k.err == nil {
		return nil
	}
	e := *k.err
	e.Op = op
	return &e
}

// handedOver is the error of every call on the handle after Park.
func (k *Lock) handedOver(op, job string) *Error {
	return &Error{Code: CodeNotOwner, Op: op, Key: k.key, Job: job, Detail: "the lock was handed over by Park"}
}

// Token returns the lock's token. A held lock cannot be resumed from it, only
// released with Locker.Release; hand it over with Park.
func (k *Lock) Token() Token {
	if k.none() {
		return Token{}
	}
	k.share()
	return Token{key: k.key, owner: newSecret(*k.owner), fence: k.Fence(), ttl: k.ttl}
}

// String describes the lock without its owner.
func (k *Lock) String() string {
	if k.none() {
		return "lock(nil)"
	}
	return fmt.Sprintf("lock(%q fence %d owner %s)", k.key, k.Fence(), k.Digest())
}

// Format writes String for every verb, %#v and %d included.
func (k *Lock) Format(f fmt.State, _ rune) { fmt.Fprintf(f, fmt.FormatString(f, 's'), k.String()) }

// LogValue keeps slog from marshalling the token.
func (k *Lock) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText returns the token's text form.
func (k *Lock) MarshalText() ([]byte, error) { return k.Token().MarshalText() }

// MarshalBinary returns the token's binary form.
func (k *Lock) MarshalBinary() ([]byte, error) { return k.Token().MarshalBinary() }

// MarshalJSON returns the token's JSON form.
func (k *Lock) MarshalJSON() ([]byte, error) { return k.Token().MarshalJSON() }

// EncodeMsgpack writes the token's msgpack form.
func (k *Lock) EncodeMsgpack(enc *msgpack.Encoder) error { return k.Token().EncodeMsgpack(enc) }

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func nilLock(op string) error { return invalid(op, "", "the lock is nil") }
