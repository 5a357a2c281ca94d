// Package limit lets up to n have a key at a time, in the whole cluster, instead of one.
//
//	geocoder := limit.New(locks, 3)
//	...
//	err := geocoder.Do(ctx, "geocoder", call)
//
// A Limit has the calls of a Locker that take locks. What they return is a permit: a Lock
// like any other, on a key of its own, that is renewed, handed over, resumed, lost and
// released by itself. Its Key is the limit's with "%#" and the permit's number behind it,
// and its fences grow from holder to holder of that very permit. A token of a permit is
// resumed with Locker.Resume.
//
// # What is promised
//
// Waiters get permits in the order in which they came, and nobody overtakes them.
//
//	what happens                              what it costs the others
//	a holder dies                             its permit can be had again one TTL later
//	a waiter dies at the head of the line     the others wait up to five seconds longer; a
//	                                          permit that comes free right then may go to the
//	                                          dead waiter, and is lost for one TTL
//
// ErrHeld and ErrTimeout tell of the holder whose lease ends first. Events about a wait
// have the limit's key, those about a permit have the permit's.
//
// Use one n for a key everywhere. While n is being changed, and new code replaces old,
// there are at most as many holders as the larger n says. A lock taken on the same key
// without a Limit is not counted.
//
// # What it costs
//
// A call that finds a permit at once is two calls to the store, one of them a read. A call
// that has to wait makes about 3n more, in a few round trips, for it waits for all n
// permits at once: a limit of a hundred that is always reached is work for the store.
package limit

import (
	"context"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Max is the largest limit.
const Max = 256

// Limit takes permits. It has no state of its own: everything is in the store, and many
// Limits of the same n are as good as one. It is safe for concurrent use.
type Limit struct {
	locks *joblock.Locker
	in    door.Locker
	n     int
}

// New returns a Limit of n permits for each key, from 1 to Max. Calls on a Limit with
// another n, or on a nil Locker, return ErrInvalid, as they do for a key of more than 506
// bytes.
func New(locks *joblock.Locker, n int) *Limit { return &Limit{locks, door.Of(locks), n} }

// TryAcquire takes a permit of key if there is one, and does not wait. Errors are those of
// Locker.TryAcquire. It returns ErrHeld too while free permits are about to be given to
// those who wait.
func (l *Limit) TryAcquire(ctx context.Context, key string, opts ...joblock.TryOption) (*joblock.Lock, error) {
	acquire := make([]joblock.AcquireOption, len(opts))
	for i, opt := range opts {
		acquire[i] = opt
	}
	p, err := l.permits(key, acquire)
	if err != nil {
		return nil, err
	}
	return p.try(ctx)
}

// Acquire takes a permit of key, waiting for one as Locker.Acquire waits for a lock. Errors
// are those of Locker.Acquire.
func (l *Limit) Acquire(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error) {
	p, err := l.permits(key, opts)
	if err != nil {
		return nil, err
	}
	return p.wait(ctx)
}

// Do runs fn while it holds a permit of key; see Locker.Do.
func (l *Limit) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...joblock.AcquireOption) error {
	return l.in.Do(ctx, key, fn, opts, l.Acquire)
}

// AcquireAll takes a permit of each key, or none; see Locker.AcquireAll. Locks.ByKey takes
// a permit's key.
func (l *Limit) AcquireAll(ctx context.Context, keys []string, opts ...joblock.AcquireOption) (joblock.Locks, error) {
	if err := l.check("acquire all", ""); err != nil {
		return nil, err
	}
	locks, err := l.in.AcquireAll(ctx, keys, opts, l.Acquire)
	return locks.(joblock.Locks), err
}

// check refuses a limit out of bounds, and a key that is too long for its permits.
func (l *Limit) check(op, key string) error {
	if l.n < 1 || l.n > Max {
		return door.Invalid(op, key, "Limit is %d, must be from 1 to %d", l.n, Max)
	}
	if most := driver.MaxKeyBytes - len(keyspace.Gate("")); len(key) > most {
		return door.Invalid(op, key, "key has %d bytes, at most %d are allowed with a limit", len(key), most)
	}
	return nil
}

func (l *Limit) permits(key string, opts []joblock.AcquireOption) (*permits, error) {
	const op = "acquire"
	asked, err := l.in.Asked(op, key, opts)
	if err == nil {
		err = l.check(op, key)
	}
	if err != nil {
		return nil, err
	}
	return &permits{locks: l.locks, in: l.in, n: l.n, key: key, asked: asked, opts: opts}, nil
}
