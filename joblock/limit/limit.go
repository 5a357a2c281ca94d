// Package limit lets up to n holders have a key at a time, in the whole cluster.
//
//	geocoder := limit.New(locks, 3)
//	...
//	err := geocoder.Do(ctx, "geocoder", call)
//
// A Limit has a Locker's methods TryAcquire, Acquire, AcquireAll and Do. They return a permit: a Lock on a key of its
// own, independent of the other permits. The permit's key is the limit's key, "%#" and the permit's number. The fences
// of one permit grow from holder to holder; fences of different permits are not comparable. Locker.Resume resumes a
// permit's token.
//
// # What is promised
//
// Waiters get permits in the order in which they came.
//
//	what happens                   what the others lose
//	a holder dies                  its permit, for one TTL
//	the first in line dies         up to five seconds of waiting; a permit that becomes free in that time may go to the
//	                               dead waiter, and the others lose that permit for one TTL
//
// ErrHeld and ErrTimeout describe the holder whose lease ends first. Package event says which key an event has.
//
// A call that waits returns ErrInvalid if its context carries a permit of the key, because holders that wait for each
// other's permits would wait forever. TryAcquire returns ErrInvalid if its context carries all permits of the key.
//
// Use the same n for a key everywhere. While a deployment changes n, there are at most as many holders as the larger
// n allows. A lock that is taken on the limit's key without a Limit does not count.
//
// # What it costs
//
// Acquiring a free permit takes two calls to the store; one of them is a read. Waiting takes about 3n more calls, in a
// few round trips, because the waiter asks for all n permits at once. So a limit of a hundred permits that are always
// taken is a heavy load for the store.
//
// An acquisition that finds a permit taken stores n, for display, unless n was stored within the last twelve hours.
// That takes one more call, and a separate record, which the store remembers for a day.
package limit

import (
	"context"
	"slices"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Max is the largest number of permits of a key.
const Max = 256

// Limit takes permits. All state is in the store, so several Limits with the same n act as one. A Limit is safe for
// concurrent use. Make a Limit with New.
type Limit struct {
	locks *core.Locker
	n     int
}

// New returns a Limit of n permits, from 1 to Max, for each key. New does not fail: the Limit's methods return
// ErrInvalid for an n out of bounds, for a nil Locker, and for a key of more than 506 bytes.
func New(locks *joblock.Locker, n int) *Limit { return &Limit{(*core.Locker)(locks), n} }

// TryAcquire takes a permit of key if one is free, and does not wait. The errors are those of Locker.TryAcquire.
// TryAcquire also returns ErrHeld while waiters are about to get the free permits.
func (l *Limit) TryAcquire(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error) {
	o := core.Acquiring(opts)
	if o.Bounded && o.Bad == "" {
		o.Bad = "MaxWait is for calls that wait"
	}
	o.MaxWait, o.Bounded = 0, true
	lock, err := l.acquire(ctx, key, o, (*permits).try)
	return (*joblock.Lock)(lock), err
}

// Acquire takes a permit of key. If no permit is free, Acquire waits for one. Options and errors are those of
// Locker.Acquire.
func (l *Limit) Acquire(ctx context.Context, key string, opts ...joblock.AcquireOption) (*joblock.Lock, error) {
	lock, err := l.wait(ctx, key, core.Acquiring(opts))
	return (*joblock.Lock)(lock), err
}

func (l *Limit) wait(ctx context.Context, key string, o core.Options) (*core.Lock, error) {
	return l.acquire(ctx, key, o, (*permits).wait)
}

// Do runs fn with a permit of key, and then releases the permit. Options and errors are those of Locker.Do.
func (l *Limit) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...joblock.AcquireOption) error {
	if err := l.check("do", key); err != nil {
		return err
	}
	return l.locks.Do(ctx, key, fn, core.Acquiring(opts), l.wait)
}

// AcquireAll takes a permit of each key, or none. Options and errors are those of Locker.AcquireAll. Locks.ByKey
// finds a permit by the permit's key, not by the limit's key.
func (l *Limit) AcquireAll(ctx context.Context, keys []string, opts ...joblock.AcquireOption) (joblock.Locks, error) {
	if err := l.check("acquire all", ""); err != nil {
		return nil, err
	}
	if err := l.checkCarried(ctx, "acquire all", true, keys...); err != nil { // before the call waits for another key
		return nil, err
	}
	locks, err := l.locks.AcquireAll(ctx, keys, core.Acquiring(opts), l.wait)
	if err != nil {
		return nil, err
	}
	out := make(joblock.Locks, len(locks))
	for i, lock := range locks {
		out[i] = (*joblock.Lock)(lock)
	}
	return out, nil
}

// check returns ErrInvalid for a limit out of bounds, and for a key that leaves no room for the permits' keys.
func (l *Limit) check(op, key string) error {
	if l == nil || l.locks == nil {
		return core.Invalid(op, key, "the Limit is nil or was not made by New")
	}
	if l.n < 1 || l.n > Max {
		return core.Invalid(op, key, "Limit is %d, must be from 1 to %d", l.n, Max)
	}
	if most := driver.MaxKeyBytes - len(keyspace.Gate("")); len(key) > most {
		return core.Invalid(op, key, "key has %d bytes, at most %d are allowed with a limit", len(key), most)
	}
	return nil
}

// checkCarried refuses a waiting call for a key of which ctx already carries a permit: if every holder waited for a
// second permit, none would ever get one. It refuses a call that does not wait if ctx carries all permits.
func (l *Limit) checkCarried(ctx context.Context, op string, waits bool, keys ...string) error {
	carried := make(map[string]int)
	for _, lock := range core.LocksFromContext(ctx) {
		key, ok := keyspace.Limit(lock.Key())
		if !ok || !slices.Contains(keys, key) || !l.locks.Owns(lock) || lock.Err() != nil {
			continue
		}
		if carried[key]++; waits || carried[key] == l.n {
			return core.Invalid(op, key, "%s", core.CarriedAlready)
		}
	}
	return nil
}

func (l *Limit) acquire(
	ctx context.Context, key string, o core.Options, how func(*permits, context.Context) (*core.Lock, error),
) (*core.Lock, error) {
	const op = "acquire"
	if err := l.check(op, key); err != nil {
		return nil, err
	}
	asked, digest, err := l.locks.Asked(op, key, o)
	if err == nil {
		err = l.checkCarried(ctx, op, !asked.Bounded || asked.MaxWait > 0, key)
	}
	if err != nil {
		return nil, err
	}
	p := &permits{Limit: l, key: key, o: o, asked: asked, digest: digest}
	ctx, p.span = l.locks.Trace(ctx, event.Call{Op: event.OpAcquire, Keys: []string{key}})
	lock, err := how(p, ctx)
	p.span.End("", err)
	return lock, err
}
