// Package door is the one way from the toolkit's other packages into package joblock.
//
// Those packages use a *joblock.Locker like an application, but need a little more: they call the store with the
// Locker's bounds, have keys of their own, seal what tasks carry, and distinguish kinds of loss. Methods and options
// of package joblock for that would be in everybody's documentation, and an application could lose a job with them.
// Only this module can import package door.
//
// Package joblock imports door and sets the variables of door in its init. So door cannot name joblock's types. The
// comment of each parameter and result of type any names its type of joblock; a value of any other type panics.
package door

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Functions of package joblock. The init of that package sets these variables.
var (
	// Of returns the inside of locker, a *joblock.Locker that may be nil.
	Of func(locker any) Locker

	// OfLock returns the inside of lock, a *joblock.Lock that may be nil.
	OfLock func(lock any) Lock

	// IdentityOf returns the Identity of a joblock.Token, or of a *joblock.Lock that may be nil.
	IdentityOf func(lockOrToken any) Identity

	// DigestOf returns the digest of an owner.
	DigestOf func(owner string) string

	// TokenAt returns the joblock.Token of the same lock as token, a joblock.Token, with another fence.
	TokenAt func(token any, fence int64) any

	// Refusal returns the error for a store's reply; nil for OutcomeOK.
	Refusal func(op, key string, r driver.Reply) error

	// CheckText returns ErrInvalid for a text that is too short or too long, is not UTF-8, or has control characters.
	// The error calls the text by the name in the parameter what.
	CheckText func(op, key, what, text string, minLen, maxLen int) error

	// CheckPeriod returns ErrInvalid if d is below the parameter least or above the parameter most. The error calls d
	// by the name in the parameter what.
	CheckPeriod func(op, key, what string, d, least, most time.Duration) error

	AnyStatus  func(driver.Record) any            // what Status returns, a joblock.Status
	AnyByHand  func(status any) bool              // what IsByHand returns
	AnyOption  func(Option) any                   // what Use returns, a joblock.Option
	AnyInvalid func(op, key, detail string) error // what Invalid returns
	AnyToken   func(token any, key string) any    // what TokenOfSlot returns, a joblock.Token

)

// ByHand begins the owners of holdings whose holders renew the lease by hand, if at all: those of scripts, of clients of the
// lock server, and of programs with joblock.NoRenew.
const ByHand = "call-"

// Status returns the public part of a record. The type S is joblock.Status.
func Status[S any](r driver.Record) S { return AnyStatus(r).(S) }

// IsByHand reports whether the holder in a status renews its lease by hand, if at all: its owner begins with ByHand, and no
// worker has resumed the lock since. The type of status is joblock.Status.
func IsByHand(status any) bool { return AnyByHand(status) }

// TokenOfSlot returns the token of the owner of token for another key: for another slot of the key of token. The result has
// no fence. The type T is joblock.Token.
func TokenOfSlot[T any](token T, key string) T { return AnyToken(token, key).(T) }

// ErrForeign is the cause of the ErrInvalid of a call that found a value that is no lock record: another program's, or a
// record that only a newer build can read.
var ErrForeign = errors.New("another program or a newer build of the toolkit has written it")

// Invalid returns an ErrInvalid. The error's detail, made of format and args, names the value and the bound.
func Invalid(op, key, format string, args ...any) error {
	return AnyInvalid(op, key, fmt.Sprintf(format, args...))
}

// Locker is the part of a *joblock.Locker that only the toolkit uses.
type Locker interface {
	// Ring returns the keys that seal what tasks carry. Ring returns nil for a Locker that is nil or that joblock.New
	// has not made.
	Ring() *seal.Ring

	// Owns reports whether this Locker has made lock, a *joblock.Lock that may be nil.
	Owns(lock any) bool

	// Settings returns fields of Config, or zero values for a nil Locker.
	Settings() Settings

	// Check returns ErrClosed after Close, ErrInvalid for a bad key or a Locker that joblock.New has not made, and
	// else nil. Call Check before Call and Tell.
	Check(op string, keys ...string) error

	// Asked returns the values of opts, a []joblock.AcquireOption. Asked returns the error that Acquire of key with
	// opts would return before sending anything.
	Asked(op, key string, opts any) (Asked, error)

	// Call runs f with the store and a context that ends after Config.CallTimeout. Call turns an error of f into an
	// ErrUnavailable about key. If ctx has already ended, Call does not run f and returns ctx's cause.
	Call(ctx context.Context, op, key string, f func(ctx context.Context, store driver.Store) error) error

	// Store returns the store, or nil for a Locker that is nil or that joblock.New has not made.
	Store() driver.Store

	// Parts is driver.Store.Parts, or 0 for a Locker that is nil or that joblock.New has not made.
	Parts() int

	// Inspect reads the records of all req.Keys, or returns an error. The parameter key is the Key of that error: "" if
	// the error is not about one key.
	Inspect(ctx context.Context, op, key string, req driver.InspectRequest) ([]driver.Record, error)

	// Do is joblock.Locker.Do, but takes the lock with acquire, which has the signature of Locker.Acquire. The type
	// of opts is []joblock.AcquireOption.
	Do(ctx context.Context, key string, fn func(context.Context) error, opts, acquire any) error

	// AcquireAll is joblock.Locker.AcquireAll, but takes each lock with the parameter acquire; see Do. The result is a
	// joblock.Locks.
	AcquireAll(ctx context.Context, keys []string, opts, acquire any) (any, error)

	// Take takes each key that is free, for a job, and does not wait. The key is parked for the job at once: nobody
	// holds the lock until the job resumes the token. If the key is not free, a Take with Patience gives the job a place
	// in the key's line. For many keys Take sends batches of a bounded size, in the order of takes. The results are in
	// the same order, and independent of each other.
	//
	// A result is a token or an error:
	//
	//	ErrHeld         the key is not free; with Patience: the line is full, or the job itself has the key
	//	ErrNotOwner     the job waits already, by a Take with another token
	//	ErrUnavailable  the store did not answer
	//	ErrInvalid, ErrClosed, or the cause of ctx if ctx has already ended
	//
	// If a Take without an answer and without Token has parked its key or got a place, the Locker gives the key or the
	// place up in the background. With Token or Call, the job keeps what it has.
	Take(ctx context.Context, op string, takes []Take) []Taken

	// PassOn gives each of the slots that is free to the first waiting job, in the order of slots: see driver, Slots. A
	// slot that is not free stays as it is. Each slot is another slot than the first. The error is
	// joblock.ErrUnavailable, or the cause of ctx: some of the slots may not have been passed on.
	PassOn(ctx context.Context, op string, slots []string) error

	// The four methods below are calls of package joblock for several locks or tokens at once, in batches of a bounded
	// size. The errors are in the order of the locks or tokens, and have the sentinels of the single call.

	// Resume is joblock.Locker.Resume. The types of tokens, opts and locks are []joblock.Token, []joblock.ResumeOption
	// and joblock.Locks. A token with an error has a nil lock.
	Resume(ctx context.Context, tokens, opts any) (locks any, errs []error)

	// Park is joblock.Lock.Park, for locks of this Locker. The types are joblock.Locks, func(i int) []joblock.ParkOption
	// and []joblock.Token. The function optsOf returns the options for the lock with the index i.
	Park(ctx context.Context, locks, optsOf any) (tokens any, errs []error)

	// End is joblock.Lock.Release. The type of locks is joblock.Locks. In a context of WithReleaser, all errors may
	// be that of the Releaser.
	End(ctx context.Context, locks any, reason string) []error

	// Release is joblock.Locker.Release. The types of tokens and opts are []joblock.Token and []joblock.ReleaseOption.
	Release(ctx context.Context, tokens, opts any) []error

	// Enter returns ErrClosed after Close. If err is nil, Close waits for the call of done.
	Enter(op, key string) (done func(), err error)

	// Trusted returns for how long a lock is trusted whose lease lasts ttl: ttl less the margin; see Config.Margin.
	Trusted(ttl time.Duration) time.Duration

	// Now returns the time of the Locker's clock, with a monotonic reading.
	Now() time.Time

	// Tell passes an event to the Observer, if there is one.
	Tell(event.Event)

	// Trace is Start of the Tracer. Without a span the result is a Span that does nothing.
	Trace(ctx context.Context, c event.Call) (context.Context, event.Span)

	// TraceHeaders and TraceMerge are Headers and Merge of the Tracer; without a Tracer they return nil.
	TraceHeaders(ctx context.Context) map[string]string
	TraceMerge(headers []map[string]string) map[string]string
}

// Settings are fields of joblock.Config, with their defaults.
type Settings struct {
	Holder   string
	JobGrace time.Duration
	Reserve  time.Duration
	Retain   time.Duration
	TTL      time.Duration
	MaxTTL   time.Duration
	MaxRenew time.Duration
	Logger   *slog.Logger
	Observed bool // there is an Observer
}

// Asked has the values of an acquisition's options, or their defaults.
type Asked struct {
	Retain  time.Duration
	Holder  string
	Owner   string // a new one if the options name none
	Digest  string // of Owner, as events have it
	Bounded bool   // MaxWait was given
	MaxWait time.Duration
	Door    Option // the settings that only the toolkit uses
}

// Take names a key to take for a job.
type Take struct {
	Key      string        // may be one of the toolkit's own keys; see package keyspace
	Job      string        // "queue/taskID"
	Reserve  time.Duration // how long the key stays reserved for Job, from the grant on
	Patience time.Duration // if not 0, asks for a place in the line; how long the place lasts
	Most     int           // with Patience: a line of so many places gets no new one; 0 means no bound
	Token    any           // with Patience: the joblock.Token of an earlier Take for this key and job, or nil
	Call     Call          // zero, or that of a Take that may be repeated, and has no Token
}

// Taken is the result of a Take.
type Taken struct {
	Token any    // a joblock.Token; nil with Err
	Waits *Place // not nil if the job waits; the key is then parked for the job when its turn comes
	Err   error
	Full  bool // Err is ErrHeld because the line is full
}

// Place is the place of a job that waits.
type Place struct {
	Ahead int       // at most so many others come before the job
	Since time.Time // when the place was taken, by the store's clock
}

// PlaceOf returns the Nonce of the calls with which job waits. The Nonce depends on job alone, so that a keeper can
// name the place. The Nonce has the usual length: see newNonce in package joblock.
func PlaceOf(job string) string {
	sum := sha256.Sum256([]byte("joblock place " + job))
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:13])
}

// Lock is the part of a *joblock.Lock that only the toolkit uses.
type Lock interface {
	// Memo, LoadMemo and WriteMemo are memo.Of, memo.Load and memo.Write of the lock.
	Memo() []byte
	LoadMemo(ctx context.Context) ([]byte, error)
	WriteMemo(ctx context.Context, memo []byte) error

	// AsOf returns the store's time at the grant of the lock. The memo that came with the grant is from that time.
	AsOf() time.Time

	// GiveBack releases a lock that no caller has got, even while the Locker is closing. After a failure the Locker
	// tries again in the background. If no try succeeds, the lock ends with its lease.
	GiveBack(ctx context.Context, reason string)

	// RememberFor keeps the memo for at least d after the lock's end.
	RememberFor(d time.Duration)

	// Store returns the store of the Locker that made the lock, or nil for a lock that no Locker made.
	Store() driver.Store
}

// Identity is the part of a lock or a token that only the toolkit sees.
type Identity struct {
	Owner string // a secret
	Fence int64  // of a token: the fence at which the token was made
	TTL   time.Duration
}

// Digest returns the digest of the owner, which is fit for logs.
func (id Identity) Digest() string { return DigestOf(id.Owner) }

// Option has those settings of an acquisition that only the toolkit uses.
type Option struct {
	// OwnKey lets the call take one of the toolkit's own keys; see package keyspace. OwnKey is not a context value,
	// because a context reaches the application's calls too.
	OwnKey bool

	// Memo asks for the key's memo along with the grant; see package memo.
	Memo bool

	// Part says that this acquisition is a part of a larger acquisition. Only the larger acquisition bounds the wait
	// and has event.Contended and event.GaveUp. The part's event.Acquired counts Waited from Since, unless Since is
	// zero. Owner, unless empty, is the owner of the larger acquisition.
	Part  bool
	Since time.Time
	Owner string

	// Silent suppresses all events of the lock, because users do not see this lock.
	Silent bool

	// Nonce, unless empty, names the call to the store, an Acquire or a Resume. Another process that repeats the call
	// with the same Nonce and the same owner gets the grant of the first process. So a grant whose answer was lost is not
	// cleaned up: the clean-up could come late, and end the grant that the other process has found. Only a place in the
	// queue is given up.
	Nonce string

	// Detached leaves the lock to whoever gets its token. This process neither renews the lock nor tells its loss. The
	// Lock that the call returns is good for reading only.
	Detached bool

	// Waits, unless nil, is called after each refusal that leaves the caller in line, with the number of places ahead.
	// Waits must not block. A wait for a permit of a limit does not call Waits.
	Waits func(ahead int)

	// LongGate makes the lease of a limit's gate last as long as Config.TTL, for waiters that wait for days; see package
	// limit. Each of them asks the store less often. The price: a first in line that dies delays the others by up to one
	// TTL instead of five seconds.
	LongGate bool
}

// Use returns o as an option. The type O is an option type of package joblock.
func Use[O any](o Option) O { return AnyOption(o).(O) }

// OwnKey is Use(Option{OwnKey: true}).
func OwnKey[O any]() O { return Use[O](Option{OwnKey: true}) }

// ErrNotRenewed is the cause of a joblock.ErrLost if the holder itself had ended the renewal. Package worker
// distinguishes this loss from a loss that came from outside. Otherwise the worker would snooze a job for ever if the
// job takes longer than its lock may be held.
var ErrNotRenewed = errors.New("the holder had ended its renewal (NoRenew, MaxRenew or StopRenewing)")

// ErrMaxWait is the cause with which MaxWait ends the context of a wait. An acquisition in that context returns
// ErrTimeout, which describes the holder.
var ErrMaxWait = errors.New("MaxWait is over")

type doneKey struct{}

// WithJobDone returns a child of ctx for releases after job is done. A release in that context succeeds only for a
// lock that is bound to job. The release ends the lock as joblock.EndedDone, so that a later delivery of job is not
// run. Never pass such a context to a handler.
func WithJobDone(ctx context.Context, job string) context.Context {
	return context.WithValue(ctx, doneKey{}, job)
}

type starterKey struct{}

// WithStarter returns a child of ctx for calls that may grant a key to a job that waits: releases, package jobs' Free
// and Reserve. Each such call passes key and job to start before the call returns. The function start must not block:
// the caller starts the job after the call. In any other context a call announces such a job to jobs.Listen. Never pass
// such a context to a handler.
func WithStarter(ctx context.Context, start func(key, job string)) context.Context {
	return context.WithValue(ctx, starterKey{}, start)
}

// Starter returns the function of WithStarter, or nil.
func Starter(ctx context.Context) func(key, job string) {
	start, _ := ctx.Value(starterKey{}).(func(key, job string))
	return start
}

type releaseKey struct{}

// A Releaser stands in for the method Release of a Locker's store. After an error of a Releaser the Locker holds the locks
// as before, and does not repeat the releases. A later End of these locks sends the same releases.
type Releaser func(context.Context, []driver.ReleaseRequest) ([]driver.Reply, error)

// WithReleaser returns a child of ctx for Locker.End, which then calls release in place of the method of the store. Never
// pass such a context to a handler.
func WithReleaser(ctx context.Context, release Releaser) context.Context {
	return context.WithValue(ctx, releaseKey{}, release)
}

// ReleaserOf returns the Releaser of WithReleaser, or nil.
func ReleaserOf(ctx context.Context) Releaser {
	release, _ := ctx.Value(releaseKey{}).(Releaser)
	return release
}

// CarriedAlready is the detail of the ErrInvalid for a call that would take a lock which its context carries.
const CarriedAlready = "this context has the lock already, so the call would wait for itself: use the lock that joblock.FromContext " +
	"returns, or a context that does not carry the lock"

// A Call is an enqueue that may be repeated, also by another process, and at the same time. Copies have the same Owner,
// which is secret, and the same Nonce, so that a copy of a Take finds what the first one has taken.
type Call struct{ Owner, Nonce string }

// JobDone returns the job of WithJobDone. If ctx does not come from WithJobDone, done is false.
func JobDone(ctx context.Context) (job string, done bool) {
	job, done = ctx.Value(doneKey{}).(string)
	return job, done
}
