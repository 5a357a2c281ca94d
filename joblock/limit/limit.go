// Package limit lets up to n holders have a key at a time, in the whole cluster.
//
//	geocoder := limit.New(locks, 3)
//	...
//	err := geocoder.Do(ctx, "geocoder", call)
//
// A Limit has the methods of a Locker that take locks. They return a permit: a Lock like
// any other, on a key of its own, independent of the other permits. Its Key is the limit's
// key, "%#" and the permit's number. Its fences grow from holder to holder of the same
// permit, not across permits. Locker.Resume resumes a permit's token.
//
// # What is promised
//
// Waiters get permits in the order in which they came.
//
//	what happens                              what it costs the others
//	a holder dies                             its permit can be had again one TTL later
//	a waiter dies at the head of the line     the others wait up to five seconds longer; a
//	                                          permit that comes free right then may go to the
//	                                          dead waiter, and is lost for one TTL
//
// ErrHeld and ErrTimeout describe the holder whose lease ends first. Events about a wait
// have the limit's key, those about a permit have the permit's.
//
// Use the same n for a key everywhere. While a deployment changes n, there are at most as
// many holders as the larger n allows. A lock taken on the same key without a Limit is
// not counted.
//
// # What it costs
//
// Acquiring a free permit takes two calls to the store, one of them a read. Waiting takes
// about 3n more, in a few round trips, because the waiter asks for all n permits at once.
// So a limit of a hundred that is always reached is work for the store.
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

// Limit takes permits. All state is in the store, so several Limits of the same n act as
// one. It is safe for concurrent use. Make it with New.
type Limit struct {
	locks *joblock.Locker
	in    door.Locker
	n     int
}

// New returns a Limit of n permits for each key, from 1 to Max. It does not fail: the calls
// return ErrInvalid for another n, a nil Locker, or a key of more than 506 bytes.
func New(locks *joblock.Locker, n int) *Limit { return &Limit{locks, door.Of(locks), n} }

// TryAcquire takes a permit of key if one is free, and does not wait. Errors are those of
// Locker.TryAcquire. It also returns ErrHeld while waiters are about to get the free
// permits.
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

// Acquire takes a permit of key, and waits for one; see Locker.Acquire, also for errors.
func (l *Limit) Acquire(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error) {
	p, err := l.permits(key, opts)
	if err != nil {
		return nil, err
	}
	return p.wait(ctx)
}

// Do runs fn while it holds a permit of key; see Locker.Do.
func (l *Limit) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...joblock.AcquireOption) error {
	if err := l.check("do", key); err != nil {
		return err
	}
	return l.in.Do(ctx, key, fn, opts, l.Acquire)
}

// AcquireAll takes a permit of each key, or none; see Locker.AcquireAll. Locks.ByKey
// finds a permit by its own Key, which is not the limit's: see the package comment.
func (l *Limit) AcquireAll(ctx context.Context, keys []string, opts ...joblock.AcquireOption) (joblock.Locks, error) {
	if err := l.check("acquire all", ""); err != nil {
		return nil, err
	}
	locks, err := l.in.AcquireAll(ctx, keys, opts, l.Acquire)
	return locks.(joblock.Locks), err
}

// check refuses a limit out of bounds, and a key that is too long for its permits.
func (l *Limit) check(op, key string) error {
	if l == nil || l.in == nil {
		return door.Invalid(op, key, "the Limit is nil or was not made by New")
	}
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
	if err := l.check(op, key); err != nil {
		return nil, err
	}
	asked, err := l.in.Asked(op, key, opts)
	if err != nil {
		return nil, err
	}
	return &permits{locks: l.locks, in: l.in, n: l.n, key: key, asked: asked, opts: opts}, nil
}
