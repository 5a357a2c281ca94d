// Package door is the one way from the toolkit's other packages into package joblock.
//
// Those packages are built on a *joblock.Locker like an application, and need a little
// more of it than an application does: they call the store with the Locker's bounds,
// have keys of their own, seal what tasks carry, and tell one loss from another. As
// methods and options of package joblock all that would stand in everybody's
// documentation, and could be misused: an application that takes a key of the toolkit,
// or says that a job is done, loses a job. Only this module can import package door.
//
// Package joblock imports door, and says in its init what is behind the door. So door
// cannot name joblock's types. Where a parameter is an any, its comment says which type
// of joblock it must be; any other type panics.
//
// Package keyspace names the toolkit's keys and package seal seals. They need no door.
package door

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Locker is what a *joblock.Locker does for the toolkit only.
type Locker interface {
	// Ring has the keys that seal what tasks carry. It is nil for a nil Locker, and for
	// one that joblock.New has not made.
	Ring() *seal.Ring

	// Owns reports whether lock, a *joblock.Lock that may be nil, was made by this Locker.
	Owns(lock any) bool

	// Settings are those of Config that the toolkit needs; all zero for a nil Locker.
	Settings() Settings

	// Check returns ErrClosed after Close, ErrInvalid for a Locker that joblock.New has not
	// made or a bad key, and nil otherwise. Call it before Call and Tell.
	Check(op string, keys ...string) error

	// Asked returns what opts ask for, a []joblock.AcquireOption. Its errors are those with
	// which an Acquire of key with these options would begin.
	Asked(op, key string, opts any) (Asked, error)

	// Call runs f with the store and a context that ends with Config.CallTimeout. An error
	// of f becomes ErrUnavailable, about key. If ctx has ended before, f does not run and
	// the error is ctx's cause.
	Call(ctx context.Context, op, key string, f func(ctx context.Context, store driver.Store) error) error

	// Inspect reads records, all or none; an error is about key.
	Inspect(ctx context.Context, op, key string, req driver.InspectRequest) ([]driver.Record, error)

	// Do and AcquireAll are those of joblock.Locker, but take each lock with acquire. That
	// has the signature of Locker.Acquire; opts is a []joblock.AcquireOption; what
	// AcquireAll returns is a joblock.Locks.
	Do(ctx context.Context, key string, fn func(context.Context) error, opts, acquire any) error
	AcquireAll(ctx context.Context, keys []string, opts, acquire any) (any, error)

	// Enter returns ErrClosed after Close. Otherwise Close waits until done is called.
	Enter(op, key string) (done func(), err error)

	// Now is what the Locker's clock says, with a monotonic reading.
	Now() time.Time

	// Tell tells the Observer, if there is one.
	Tell(event.Event)
}

// Settings are fields of joblock.Config, with their defaults.
type Settings struct {
	Holder  string
	Reserve time.Duration
	Retain  time.Duration
	TTL     time.Duration
	Logger  *slog.Logger
}

// Asked is what the options of an acquisition ask for, or the defaults.
type Asked struct {
	Retain  time.Duration
	Holder  string
	Owner   string // a new one if the options name none
	Digest  string // of Owner, as events have it
	Bounded bool   // MaxWait was given
	MaxWait time.Duration
}

// Of returns the inside of locker, a *joblock.Locker that may be nil.
func Of(locker any) Locker { return behind.Locker(locker) }

// Lock is what a *joblock.Lock does for the toolkit only.
type Lock interface {
	// Memo and WriteMemo are those of package memo.
	Memo() []byte
	// AsOf is the store's clock when it told the memo that came with the grant.
	AsOf() time.Time
	WriteMemo(ctx context.Context, memo []byte) error

	// GiveBack releases a lock that nobody has seen, also while its Locker is being closed.
	// If that fails it is repeated in the background, or the lease ends.
	GiveBack(ctx context.Context, reason string)

	// RememberFor keeps the memo for at least d after the lock's end.
	RememberFor(d time.Duration)
}

// OfLock returns the inside of lock, a *joblock.Lock that may be nil.
func OfLock(lock any) Lock { return behind.Lock(lock) }

// Joblock is what package joblock has behind the door.
type Joblock struct {
	Locker   func(locker any) Locker
	Lock     func(lock any) Lock
	Status   func(driver.Record) any // a joblock.Status
	Identity func(lockOrToken any) Identity
	Option   func(Option) any // a joblock.Option
	Invalid  func(op, key, detail string) error
	Refusal  func(op, key string, r driver.Reply) error
	Text     func(op, key, what, text string, minLen, maxLen int) error
	Period   func(op, key, what string, d, least, most time.Duration) error
}

var behind Joblock

// Identity is what a lock or a token says of itself to the toolkit only.
type Identity struct {
	Owner  string // a secret
	Digest string // of the owner, fit for logs
	Fence  int64  // of a token, the one under which it was made
	TTL    time.Duration
}

// IdentityOf returns the Identity of a *joblock.Lock, which may be nil, or a joblock.Token.
func IdentityOf(lockOrToken any) Identity { return behind.Identity(lockOrToken) }

// Open is for package joblock's init.
func Open(j Joblock) { behind = j }

// Invalid returns an ErrInvalid. The detail names the value and the bound.
func Invalid(op, key, format string, args ...any) error {
	return behind.Invalid(op, key, fmt.Sprintf(format, args...))
}

// Refusal returns the error for what a store has answered; nil for OutcomeOK.
func Refusal(op, key string, r driver.Reply) error { return behind.Refusal(op, key, r) }

// Status returns what anyone may see of a record. S is joblock.Status.
func Status[S any](r driver.Record) S { return behind.Status(r).(S) }

// CheckText returns ErrInvalid for a text that is too short or too long, is not UTF-8, or
// has control characters. what names it.
func CheckText(op, key, what, text string, minLen, maxLen int) error {
	return behind.Text(op, key, what, text, minLen, maxLen)
}

// CheckPeriod returns ErrInvalid for a d out of bounds. what names it.
func CheckPeriod(op, key, what string, d, least, most time.Duration) error {
	return behind.Period(op, key, what, d, least, most)
}

// Option is what only the toolkit asks for when it takes a lock.
type Option struct {
	// OwnKey lets the call take one of the toolkit's own keys; see package keyspace.
	// An option reaches no further than its call. A value in the context would reach
	// whatever an application does in that context.
	OwnKey bool

	// Memo has the store send the key's memo along with the grant; see package memo.
	Memo bool

	// Part says that the acquisition is a part of a larger one, which tells of the wait,
	// and bounds it. So there is no event.Contended and no event.GaveUp; event.Acquired
	// counts Waited from Since, unless that is zero. Owner, if it is set, is the owner of
	// the whole.
	Part  bool
	Since time.Time
	Owner string

	// Silent says that no event tells of the lock: its user does not see it.
	Silent bool
}

// Use returns o as an option of type O of package joblock.
func Use[O any](o Option) O { return behind.Option(o).(O) }

// OwnKey is Use of that option alone.
func OwnKey[O any]() O { return Use[O](Option{OwnKey: true}) }

// ErrNotRenewed is the cause of a joblock.ErrLost that came because the lock was no
// longer renewed, as its own side had asked for. Package worker must tell it from a loss
// that came from outside, or it would snooze for ever a job that takes longer than its
// lock may be held.
var ErrNotRenewed = errors.New("it was no longer to be renewed (NoRenew, MaxRenew or StopRenewing)")

// ErrMaxWait is the cause with which the context of a wait ends that MaxWait bounds. An
// acquisition in such a context reports ErrTimeout, and who was in the way.
var ErrMaxWait = errors.New("MaxWait is over")

type doneKey struct{}

// WithJobDone returns a child of ctx for the releases of a job that is done. They
// succeed only for a lock that is bound to job, and end it as joblock.EndedDone: a later
// delivery of the job is not run. A handler must never get such a context.
func WithJobDone(ctx context.Context, job string) context.Context {
	return context.WithValue(ctx, doneKey{}, job)
}

// JobDone returns the job that WithJobDone was given.
func JobDone(ctx context.Context) (job string, done bool) {
	job, done = ctx.Value(doneKey{}).(string)
	return job, done
}
