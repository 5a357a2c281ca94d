// Package door is the one way from the toolkit's other packages into package joblock.
//
// Those packages use a *joblock.Locker like an application, but need a little more: they
// call the store with the Locker's bounds, have keys of their own, seal what tasks carry,
// and distinguish kinds of loss. As methods and options of package joblock all that would
// be in everybody's documentation and could be misused. An application that takes a key
// of the toolkit, or says that a job is done, loses a job. Only this module can import
// package door.
//
// Package joblock imports door and opens it in its init. So door cannot name joblock's
// types. Where a parameter is an any, its comment says which type of joblock it must be;
// any other type panics.
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

// Locker is the part of a *joblock.Locker that only the toolkit uses.
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

	// Asked returns what opts, a []joblock.AcquireOption, ask for. It returns the error that
	// Acquire of key with opts would return before it sends anything.
	Asked(op, key string, opts any) (Asked, error)

	// Call runs f with the store and a context that ends after Config.CallTimeout. An error
	// of f becomes ErrUnavailable, about key. If ctx has already ended, f does not run and
	// the error is ctx's cause.
	Call(ctx context.Context, op, key string, f func(ctx context.Context, store driver.Store) error) error

	// Inspect reads records, all or none; an error is about key.
	Inspect(ctx context.Context, op, key string, req driver.InspectRequest) ([]driver.Record, error)

	// Do and AcquireAll are those of joblock.Locker, but take each lock with acquire, which
	// has the signature of Locker.Acquire. opts is a []joblock.AcquireOption. AcquireAll
	// returns a joblock.Locks.
	Do(ctx context.Context, key string, fn func(context.Context) error, opts, acquire any) error
	AcquireAll(ctx context.Context, keys []string, opts, acquire any) (any, error)

	// Enter returns ErrClosed after Close. Otherwise Close waits until done is called.
	Enter(op, key string) (done func(), err error)

	// Now returns the time of the Locker's clock, with a monotonic reading.
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

// Lock is the part of a *joblock.Lock that only the toolkit uses.
type Lock interface {
	// Memo and WriteMemo are those of package memo.
	Memo() []byte
	// AsOf returns what the store's clock showed when the store granted the lock and read
	// the memo that came with the grant.
	AsOf() time.Time
	WriteMemo(ctx context.Context, memo []byte) error

	// GiveBack releases a lock that no caller has got, even while its Locker is closing. A
	// failure is repeated in the background, or the lease ends.
	GiveBack(ctx context.Context, reason string)

	// RememberFor keeps the memo for at least d after the lock's end.
	RememberFor(d time.Duration)
}

// OfLock returns the inside of lock, a *joblock.Lock that may be nil.
func OfLock(lock any) Lock { return behind.Lock(lock) }

// Joblock has the functions that package joblock puts behind the door.
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

// Identity is the part of a lock or a token that only the toolkit sees.
type Identity struct {
	Owner  string // a secret
	Digest string // of the owner, fit for logs
	Fence  int64  // of a token: the fence under which it was made
	TTL    time.Duration
}

// IdentityOf returns the Identity of a *joblock.Lock, which may be nil, or a joblock.Token.
func IdentityOf(lockOrToken any) Identity { return behind.Identity(lockOrToken) }

// Open is called once, by package joblock's init.
func Open(j Joblock) { behind = j }

// Invalid returns an ErrInvalid. The detail names the value and the bound.
func Invalid(op, key, format string, args ...any) error {
	return behind.Invalid(op, key, fmt.Sprintf(format, args...))
}

// Refusal returns the error for a store's reply; nil for OutcomeOK.
func Refusal(op, key string, r driver.Reply) error { return behind.Refusal(op, key, r) }

// Status returns the public part of a record. S is joblock.Status.
func Status[S any](r driver.Record) S { return behind.Status(r).(S) }

// CheckText returns ErrInvalid for a text that is too short or too long, is not UTF-8, or
// has control characters. The parameter what is the text's name in the error.
func CheckText(op, key, what, text string, minLen, maxLen int) error {
	return behind.Text(op, key, what, text, minLen, maxLen)
}

// CheckPeriod returns ErrInvalid for a d out of bounds. what names it.
func CheckPeriod(op, key, what string, d, least, most time.Duration) error {
	return behind.Period(op, key, what, d, least, most)
}

// Option has what only the toolkit can ask for when it takes a lock.
type Option struct {
	// OwnKey lets the call take one of the toolkit's own keys; see package keyspace. It is
	// no value in the context, which would reach whatever an application does in that
	// context.
	OwnKey bool

	// Memo asks for the key's memo along with the grant; see package memo.
	Memo bool

	// Part says that this acquisition is a part of a larger one, which bounds the wait and
	// tells of it. The part has no event.Contended and no event.GaveUp. Its event.Acquired
	// counts Waited from Since, if that is set. Owner, if set, is the larger one's.
	Part  bool
	Since time.Time
	Owner string

	// Silent suppresses all events of the lock, as its user does not see it.
	Silent bool
}

// Use returns o as an option of type O of package joblock.
func Use[O any](o Option) O { return behind.Option(o).(O) }

// OwnKey is Use(Option{OwnKey: true}).
func OwnKey[O any]() O { return Use[O](Option{OwnKey: true}) }

// ErrNotRenewed is the cause of a joblock.ErrLost if the holder itself had ended renewal.
// Package worker distinguishes that from a loss that came from outside. Otherwise it would
// snooze for ever a job that takes longer than its lock may be held.
var ErrNotRenewed = errors.New("the holder had ended its renewal (NoRenew, MaxRenew or StopRenewing)")

// ErrMaxWait is the cause with which MaxWait ends the context of a wait. An acquisition in
// that context returns ErrTimeout, which describes the holder.
var ErrMaxWait = errors.New("MaxWait is over")

type doneKey struct{}

// WithJobDone returns a child of ctx for releases after job is done. A release with it
// succeeds only for a lock that is bound to job, and ends it as joblock.EndedDone: a later
// delivery of the job is not run. A handler must never get such a context.
func WithJobDone(ctx context.Context, job string) context.Context {
	return context.WithValue(ctx, doneKey{}, job)
}

// JobDone returns the job that WithJobDone was given.
func JobDone(ctx context.Context) (job string, done bool) {
	job, done = ctx.Value(doneKey{}).(string)
	return job, done
}
