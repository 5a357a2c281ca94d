package singleflight

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

// op names the call in errors.
const op = "single flight"

// Do returns a fresh kept result, or else that of fn: see the package comment, also for
// errors. ttl is how long a result is fresh, from a millisecond to 366 days.
func Do[T any](
	ctx context.Context, locks *joblock.Locker, key string, ttl time.Duration,
	fn func(ctx context.Context) (T, error), opts ...joblock.AcquireOption,
) (T, error) {
	if err := door.CheckPeriod(op, key, "ttl", ttl, driver.MinPeriod, driver.MaxPeriod); err != nil {
		var none T
		return none, err
	}
	f := newFlight(locks, key, func(T) time.Duration { return ttl }, fn)
	return f.run(ctx, ttl, opts)
}

// DoFunc is Do for results that know how long they are fresh: an access token, a response
// with a max-age. ttl is called with the result of fn, under the lock. A result whose ttl
// is below a millisecond is not kept. A ttl above 366 days counts as 366 days. A nil ttl
// is ErrInvalid.
//
// If a waiter dies just as it is granted the lock, a kept result may be dropped early:
// after Config.Retain, or the time that the option Retain gives.
func DoFunc[T any](
	ctx context.Context, locks *joblock.Locker, key string, ttl func(T) time.Duration,
	fn func(ctx context.Context) (T, error), opts ...joblock.AcquireOption,
) (T, error) {
	if ttl == nil {
		var none T
		return none, door.Invalid(op, key, "the ttl function is nil")
	}
	f := newFlight(locks, key, ttl, fn)
	return f.run(ctx, 0, opts)
}

// flight is one call of Do.
type flight[T any] struct {
	locks *joblock.Locker
	in    door.Locker
	key   string
	keep  func(T) time.Duration
	fn    func(context.Context) (T, error)
}

func newFlight[T any](locks *joblock.Locker, key string, keep func(T) time.Duration, fn func(context.Context) (T, error)) *flight[T] {
	return &flight[T]{locks: locks, in: door.Of(locks), key: key, keep: keep, fn: fn}
}

// run returns the kept result, or takes the lock and computes one. The store remembers
// the record for at least retain.
func (f *flight[T]) run(ctx context.Context, retain time.Duration, opts []joblock.AcquireOption) (T, error) {
	var none T
	if err := f.check(&retain, opts); err != nil {
		return none, err
	}
	rec, err := f.read(ctx, true)
	if err != nil {
		return none, err
	}
	if v, _, ok := decodeResult[T](rec.Memo, rec.Now); ok {
		return v, nil
	}
	lock, err := f.locks.Acquire(ctx, f.key, append(opts[:len(opts):len(opts)], joblock.Retain(retain), memo.WithGrant())...)
	if err != nil {
		return none, err
	}
	// A release that fails is repeated in the background. One that comes too late is
	// told as a loss. Neither concerns the result.
	defer func() { _ = lock.Release(ctx) }()
	// Somebody may have computed meanwhile. A memo that was rejected above stays rejected:
	// the clock may have been set back since.
	kept := memo.Of(lock)
	if v, left, ok := decodeResult[T](kept, door.OfLock(lock).AsOf()); ok && !bytes.Equal(kept, rec.Memo) {
		door.OfLock(lock).RememberFor(left)
		return v, nil
	}
	return f.compute(ctx, lock)
}

// check refuses bad input, and raises retain to what opts or the Config say.
func (f *flight[T]) check(retain *time.Duration, opts []joblock.AcquireOption) error {
	asked, err := f.in.Asked(op, f.key, opts)
	if err == nil && f.fn == nil {
		err = door.Invalid(op, f.key, "the function is nil")
	}
	*retain = max(*retain, asked.Retain)
	return err
}

func (f *flight[T]) read(ctx context.Context, withMemo bool) (driver.Record, error) {
	recs, err := f.in.Inspect(ctx, op, f.key, driver.InspectRequest{Keys: []string{f.key}, Memo: withMemo})
	if err != nil {
		return driver.Record{}, err
	}
	return recs[0], nil
}

// compute runs fn under lock and shares its result.
func (f *flight[T]) compute(ctx context.Context, lock *joblock.Lock) (v T, err error) {
	fctx, stop := lock.Context(ctx)
	defer stop()
	if v, err = f.fn(fctx); err == nil {
		f.share(context.WithoutCancel(ctx), lock, v) // the others still want it
	}
	if lost := lock.Err(); errors.Is(lost, joblock.ErrLost) && !errors.Is(err, joblock.ErrLost) {
		err = errors.Join(lost, err)
	}
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// share leaves v as the memo for those who come next. A failure concerns only them, and
// is logged, unless the lock turns out to be lost.
func (f *flight[T]) share(ctx context.Context, lock *joblock.Lock, v T) {
	if errors.Is(lock.Err(), joblock.ErrLost) {
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
		// Read the store's clock again. The clock at the grant plus the time since would
		// save this call. But the clock may have been set back since, and a result
		// stamped ahead of it would be fresh for too long.
		rec, err := f.read(ctx, false)
		if err != nil {
			return err
		}
		door.OfLock(lock).RememberFor(ttl)
		return memo.Write(ctx, lock, stampResult(body, rec.Now, ttl))
	}()
	if err != nil && !errors.Is(err, joblock.ErrLost) {
		f.in.Settings().Logger.Warn("joblock: the result of a single flight may not be shared", "key", f.key, "cause", err)
	}
}
