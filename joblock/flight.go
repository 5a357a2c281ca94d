package joblock

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const opFlight = "single flight"

// SingleFlight returns the result of fn, computed once in the whole cluster and
// kept for ttl, counted from when fn returned: a millisecond to 366 days. The first
// caller runs fn while it holds the lock on key; the others wait for it, in the
// order in which they came, and get the same result. A caller that comes while a
// result is fresh gets it with one call to the store and takes no lock.
//
//	rates, err := joblock.SingleFlight(ctx, locks, "rates:eur", time.Minute, fetchRates)
//
// Waiting is that of Acquire, as long as ctx or MaxWait let it, and so are its
// errors: ErrTimeout, ErrHeld with MaxWait(0), the cause of ctx, ErrUnavailable,
// ErrClosed. A store that does not answer the first look is reported at once.
// Nil locks, a nil fn, a ttl out of bounds, and bad keys and options are
// ErrInvalid before anything is sent. With an error comes the zero T.
//
// An error of fn is returned to its own caller and not kept: the next in line
// computes. So it does, one lease later, when the process that computes dies; and
// at once when fn panics, after which the panic goes on. fn's context carries the
// lock (see FromContext) and ends with cause ErrLost when the lock is lost. The
// result then matches ErrLost, whatever fn returned, and is not kept: by then
// somebody else may be computing a newer one.
//
// A result that cannot be kept is returned to fn's caller all the same, with a
// warning in the log, and the next in line computes: one larger than MaxMemoBytes
// less some 30, one that msgpack has no encoding for, one that comes while the
// store is away or after fn has released the lock.
//
// T travels as msgpack, and only the caller of fn gets what fn returned: the state
// of T must be in exported fields. Fields may be added to T, but not change their
// types. What was kept for a T of another name, or does not decode, is no result.
// It is kept as the memo of the key (see Lock.SetMemo): give each kind of result
// keys that are used for nothing else. fn must not call SingleFlight with the same
// key: locks are not re-entrant.
//
// Whoever can write to the store can forge results. Bytes that claim to be more
// than they are do not get to the decoder, so what decoding costs is bounded by
// MaxMemoBytes times the size of T's elements; still prefer a concrete T over
// interfaces.
//
// The store's clock alone decides what is fresh. A result from its future counts
// as too old. If the clock is set back while a result is kept, that result may be
// served for longer, by as much as the clock was set back.
func SingleFlight[T any](
	ctx context.Context, locks *Locker, key string, ttl time.Duration,
	fn func(ctx context.Context) (T, error), opts ...AcquireOption,
) (T, error) {
	f := flight[T]{locks: locks, key: key, fn: fn, keep: func(T) time.Duration { return ttl }}
	if err := checkDuration(opFlight, key, "ttl", ttl, driver.MinPeriod, driver.MaxPeriod); err != nil {
		var none T
		return none, err
	}
	return f.run(ctx, ttl, opts)
}

// SingleFlightFunc is SingleFlight for results that know how long they are good:
// an access token, a response with a max-age. ttl is called with what fn returned,
// under the lock. A ttl below a millisecond, zero and negative ones included,
// means not to keep the result: the others compute anew. One above MaxPeriod
// counts as MaxPeriod. A nil ttl is ErrInvalid.
//
// A waiter that dies in the moment of its grant may cut the life of a result to
// what Retain says, or Config.Retain.
func SingleFlightFunc[T any](
	ctx context.Context, locks *Locker, key string, ttl func(T) time.Duration,
	fn func(ctx context.Context) (T, error), opts ...AcquireOption,
) (T, error) {
	f := flight[T]{locks: locks, key: key, fn: fn, keep: ttl}
	if ttl == nil {
		var none T
		return none, invalid(opFlight, key, "the ttl function is nil")
	}
	return f.run(ctx, 0, opts)
}

// flight is one call of SingleFlight.
type flight[T any] struct {
	locks *Locker
	key   string
	keep  func(T) time.Duration
	fn    func(context.Context) (T, error)
}

// run returns the result that is kept, or takes the lock and computes one. The
// record is to be remembered for at least retain.
func (f *flight[T]) run(ctx context.Context, retain time.Duration, opts []AcquireOption) (T, error) {
	var none T
	if err := f.check(&retain, opts); err != nil {
		return none, err
	}
	recs, err := f.locks.inspectAll(ctx, opFlight, f.key, driver.InspectRequest{Keys: []string{f.key}, Memo: true})
	if err != nil {
		return none, err
	}
	rec := recs[0]
	if v, _, ok := decodeResult[T](rec.Memo, rec.Now); ok {
		return v, nil
	}
	lock, err := f.locks.Acquire(ctx, f.key, append(opts[:len(opts):len(opts)], Retain(retain), WithMemo())...)
	if err != nil {
		return none, err
	}
	// A release that fails is repeated in the background, and one that comes too
	// late was told as a loss: neither is news about the result.
	defer func() { _ = lock.Release(ctx) }()
	// Somebody may have computed meanwhile. What was no result at the first look stays
	// none: the clock may have been set back since.
	memo := lock.Memo()
	if v, left, ok := decodeResult[T](memo, lock.asOf); ok && !bytes.Equal(memo, rec.Memo) {
		lock.rememberFor(left)
		return v, nil
	}
	return f.compute(ctx, lock)
}

// check refuses bad input, and raises retain to what opts or the Config say.
func (f *flight[T]) check(retain *time.Duration, opts []AcquireOption) error {
	if err := f.locks.open(opFlight, f.key); err != nil {
		return err
	}
	if f.fn == nil {
		return invalid(opFlight, f.key, "the function is nil")
	}
	if err := checkTaken(opFlight, f.key, false); err != nil {
		return err
	}
	var o options
	err := acquireOptions(&f.locks.cfg, &o, opFlight, f.key, opts)
	if err == nil && o.hasLimit {
		err = invalid(opFlight, f.key, "Limit is given: a result is computed by one at a time")
	}
	*retain = max(*retain, o.retain)
	return err
}

// compute runs fn under lock and shares what it returns.
func (f *flight[T]) compute(ctx context.Context, lock *Lock) (v T, err error) {
	fctx, stop := lock.Context(ctx)
	defer stop()
	if v, err = f.fn(fctx); err == nil {
		f.share(context.WithoutCancel(ctx), lock, v) // the others still want it
	}
	if lost := lock.Err(); errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost) {
		err = errors.Join(lost, err)
	}
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// share leaves v with the lock for those who come next. That it fails concerns
// only them, unless the lock turns out to be lost.
func (f *flight[T]) share(ctx context.Context, lock *Lock, v T) {
	if errors.Is(lock.Err(), ErrLost) {
		return
	}
	ttl := min(f.keep(v), driver.MaxPeriod).Truncate(time.Millisecond)
	if ttl <= 0 {
		return
	}
	err := func() error {
		body, err := encodeResult(f.key, v)
		if err != nil {
			return err
		}
		// The clock is asked for once more. Its time at the grant plus the time since
		// would save that call. But it may have been set back since, and a result
		// stamped ahead of it would be good for too long.
		rec, err := f.locks.inspect(ctx, opFlight, f.key)
		if err != nil {
			return err
		}
		lock.rememberFor(ttl)
		return lock.SetMemo(ctx, stampResult(body, rec.Now, ttl))
	}()
	if err != nil && !errors.Is(err, ErrLost) {
		f.locks.cfg.Logger.Warn("joblock: the result of a single flight may not be shared", "key", f.key, "cause", err)
	}
}

// rememberFor has the store remember the key for at least d after the release.
func (k *Lock) rememberFor(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.h.remembered(d)
}
