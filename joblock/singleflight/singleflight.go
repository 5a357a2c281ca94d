package singleflight

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// op names the call in errors.
const op = "single flight"

// Do returns the fresh result of key. If key has no fresh result, Do takes the lock on key, runs fn, and keeps the
// result of fn. ttl is how long that result is fresh, from a millisecond to 366 days. The package comment lists the
// errors.
func Do[T any](
	ctx context.Context, locks *joblock.Locker, key string, ttl time.Duration,
	fn func(ctx context.Context) (T, error), opts ...joblock.AcquireOption,
) (result T, err error) {
	if err := core.CheckPeriod(op, key, "ttl", ttl, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return result, err
	}
	f := flight[T]{(*core.Locker)(locks), key, func(T) time.Duration { return ttl }, fn}
	return f.run(ctx, ttl, core.Acquiring(opts))
}

// DoFunc is Do for results that know how long they are fresh, such as an access token or a response with a max-age.
// DoFunc calls ttl with the result of fn, under the lock. A result whose ttl is below a millisecond is not kept. A ttl
// above 366 days counts as 366 days. If ttl is nil, DoFunc returns ErrInvalid.
//
// If a waiter dies just after the store has granted the lock to it, the store may drop a kept result before its ttl has
// passed: as soon as Retain has passed since the end of the dead waiter's lock. Retain is the option or, without it,
// Config.Retain.
func DoFunc[T any](
	ctx context.Context, locks *joblock.Locker, key string, ttl func(T) time.Duration,
	fn func(ctx context.Context) (T, error), opts ...joblock.AcquireOption,
) (result T, err error) {
	if ttl == nil {
		return result, core.Invalid(op, key, "the ttl function is nil")
	}
	f := flight[T]{(*core.Locker)(locks), key, ttl, fn}
	return f.run(ctx, 0, core.Acquiring(opts))
}

// flight is one call of Do or DoFunc.
type flight[T any] struct {
	locks *core.Locker
	key   string
	ttl   func(T) time.Duration
	fn    func(context.Context) (T, error)
}

// run returns the kept result, or takes the lock and computes a result. The store retains the lock for the longer of
// retain and the Retain of o or of the Config.
func (f flight[T]) run(ctx context.Context, retain time.Duration, o core.Options) (v T, err error) {
	asked, _, err := f.locks.Asked(op, f.key, o)
	if err == nil && f.fn == nil {
		err = core.Invalid(op, f.key, "the function is nil")
	}
	if err != nil {
		return v, err
	}
	recs, err := f.locks.Inspect(ctx, op, f.key, driver.InspectRequest{Keys: []string{f.key}, Memo: true})
	if err != nil {
		return v, err
	}
	if v, left := decodeResult[T](recs[0].Memo, recs[0].Now); left > 0 {
		return v, nil
	}
	o.Retain, o.Memo = max(retain, asked.Retain), true
	lock, err := f.locks.Acquire(ctx, f.key, o)
	if err != nil {
		return v, err
	}
	// The Locker repeats a failed release in the background, and reports a late release as a loss. Neither error
	// concerns the result.
	defer func() { _ = lock.Release(ctx, core.Release{}) }()
	// Another caller may have computed a result since the read. A memo that was rejected above stays rejected: the
	// clock may have been set back since the read.
	kept := lock.Memo()
	if v, left := decodeResult[T](kept, lock.AsOf()); left > 0 && !bytes.Equal(kept, recs[0].Memo) {
		lock.RememberFor(left)
		return v, nil
	}
	return f.compute(ctx, lock)
}

// compute runs fn under lock and shares the result of fn. If it cannot share the result, only other callers miss it, so
// compute logs the reason and still returns the result. If the lock is lost, compute returns ErrLost.
func (f flight[T]) compute(ctx context.Context, lock *core.Lock) (v T, err error) {
	fctx, stop := lock.Context(ctx)
	defer stop()
	if v, err = f.fn(fctx); err == nil {
		// Other callers want the result even if ctx has ended.
		if err := f.share(context.WithoutCancel(ctx), lock, v); err != nil && !errors.Is(err, joblock.ErrLost) {
			f.locks.Settings().Logger.Warn("joblock: sharing the result of a single flight may have failed", "key", f.key, "cause", err)
		}
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

// share writes v as the memo of the key, unless the lock is lost or the ttl of v is below a millisecond.
func (f flight[T]) share(ctx context.Context, lock *core.Lock, v T) error {
	if err := lock.Err(); errors.Is(err, joblock.ErrLost) {
		return err
	}
	ttl := min(f.ttl(v), driver.MaxPeriod).Truncate(time.Millisecond)
	if ttl <= 0 {
		return nil
	}
	body, err := encodeResult(f.key, v)
	if err != nil {
		return err
	}
	// Read the store's clock again. The clock at the grant plus the time since would save this call, but the clock may
	// have been set back since the grant, and a result stamped ahead of the clock would be fresh for too long.
	recs, err := f.locks.Inspect(ctx, op, f.key, driver.InspectRequest{Keys: []string{f.key}})
	if err != nil {
		return err
	}
	lock.RememberFor(ttl)
	return lock.WriteMemo(ctx, stampResult[T](body, recs[0].Now, ttl))
}
