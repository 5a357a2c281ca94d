package joblock

import (
	"context"
	"errors"
)

// Singleton runs fn on one Locker of the cluster at a time: the one that holds the lock
// on key. The others wait in line. The next one runs its fn
//
//   - at once when the running one releases the lock;
//   - at most a TTL and a quarter of a poll after the running one has crashed, or a TTL
//     and one and a quarter polls if more than seven in line have died with it. A poll is
//     Config.Poll, or a sixth of the TTL where that is shorter.
//
// fn's context carries the lock (see FromContext) and ends with cause ErrLost when the
// lock is lost. fn should return then. Singleton waits for that, so there is never a
// second fn in this process, and then lines up again. It waits out an outage of the
// store.
//
// Singleton returns
//
//   - fn's error, after releasing the lock, if the lock was still held when fn returned;
//   - the cause of ctx, when that ends before fn runs;
//   - ErrTimeout when MaxWait passes before fn runs;
//   - ErrClosed when the Locker is closed;
//   - ErrInvalid for a nil fn, a bad key or a bad option.
//
// If fn panics the lock is released and the panic goes on. Two fns can overlap if the
// first ignores both its context and the fence.
func (l *Locker) Singleton(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	if fn == nil {
		return invalid("singleton", key, "the function is nil")
	}
	pause := newRetryPause()
	for {
		var lock *Lock // of the term in which fn ran
		var own error  // what fn returned
		err := l.Do(ctx, key, func(ctx context.Context) error {
			lock, _ = FromContext(ctx)
			own = fn(ctx)
			return own
		}, opts...)
		again := errors.Is(err, ErrUnavailable)
		if lock != nil {
			pause = newRetryPause()
			again = errors.Is(lock.Err(), ErrLost) || errors.Is(err, ErrLost) && !errors.Is(own, ErrLost)
		}
		if !again || ctx.Err() != nil || l.open("singleton", key) != nil {
			return err
		}
		if !pause.wait(ctx) {
			return ended("singleton", key, context.Cause(ctx))
		}
	}
}
