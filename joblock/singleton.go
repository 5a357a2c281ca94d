package joblock

import (
	"context"
	"errors"
)

// Singleton runs fn on one Locker of the cluster at a time, namely the Locker that holds the lock on key. The other
// Lockers wait in line. The next Locker runs its fn
//
//   - at once when the holder releases the lock;
//   - at most a TTL and a quarter of a poll after the holder has crashed, or one poll later if more than seven Lockers
//     in line have died with the holder. A poll is Config.Poll, or a sixth of the TTL if that sixth is shorter.
//
// The context of fn carries the lock (see FromContext), and ends with cause ErrLost when the lock is lost. Then fn
// should return. Singleton waits for fn to return, so one call never runs fn twice at a time, and then lines up again.
// During an outage of the store Singleton waits.
//
// Singleton returns
//
//   - the error of fn, after releasing the lock, if the lock was still held when fn returned;
//   - the cause of ctx, when ctx ends before fn runs;
//   - ErrTimeout when MaxWait passes before fn runs;
//   - ErrClosed when the Locker is closed;
//   - ErrInvalid for a nil fn, a bad key or a bad option.
//
// If fn panics, the lock is released and the panic goes on. The fns of two Lockers can overlap if the first fn ignores
// both its context and the fence.
func (l *Locker) Singleton(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	if fn == nil {
		return invalid("singleton", key, "the function is nil")
	}
	pause := newRetryPause()
	for {
		var lock *Lock // under which fn ran; nil if fn did not run
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
