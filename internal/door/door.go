// Package door is the one way from the toolkit's other packages into package joblock.
//
// Those packages are built on a *joblock.Locker like an application, and need a little
// more of it than an application does: they have keys of their own, they seal what
// tasks carry, and they have to tell losses apart. As methods and options of package
// joblock all that would stand in everybody's documentation, and could be misused: an
// application that takes a key of the toolkit, or says that a job is done, loses a
// job. Only this module can import package door, so it stands here.
//
// Package joblock imports door and says in its init what is behind it. So door cannot
// name the types of joblock: a locker is an any that holds a *joblock.Locker. Package
// keyspace names the toolkit's keys, package seal seals; they need no door.
package door

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/seal"
)

// Locker is what a *joblock.Locker does for the toolkit only.
type Locker interface {
	// Ring has the keys that seal what tasks carry. It is nil for a nil Locker, and for
	// one that joblock.New has not made.
	Ring() *seal.Ring
}

// Of returns the inside of locker, a *joblock.Locker that may be nil.
func Of(locker any) Locker { return behind.Locker(locker) }

// Joblock is what package joblock has behind the door.
type Joblock struct {
	Locker func(locker any) Locker
	Option func(Option) any // of the type that Use returns
}

var behind Joblock

// Open is for package joblock's init.
func Open(j Joblock) { behind = j }

// Option is what only the toolkit asks for when it takes a lock.
type Option struct {
	// OwnKey lets the call take one of the toolkit's own keys; see package keyspace.
	// An option reaches no further than its call. A value in the context would reach
	// whatever an application does in that context.
	OwnKey bool
}

// Use returns o as an option of type O of package joblock.
func Use[O any](o Option) O { return behind.Option(o).(O) }

// OwnKey is Use of that option alone.
func OwnKey[O any]() O { return Use[O](Option{OwnKey: true}) }

// ErrNotRenewed is the cause of a joblock.ErrLost that came because the lock was no
// longer renewed, as its own side had asked for. Package worker must tell it from a
// loss that came from outside: a job that takes longer than its lock may be held would
// be put back without end.
var ErrNotRenewed = errors.New("it was no longer to be renewed (NoRenew, MaxHold or StopRenewing)")

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
