package joblock

import (
	"context"
	"errors"
)

// Singleton runs fn on one Locker of the cluster at a time: the one that holds
// the lock on key. The others wait in line; when the running one releases, dies
// or loses the lock, the next in line runs its fn, at once after a release, and after
// a crash at most a TTL later and a quarter of a poll: also if up to seven in line die
// with it. If more do it is a poll and a quarter. A poll is Config.Poll, or a sixth of
// the TTL where that is shorter.
//
// fn's context carries the lock (see FromContext) and ends with cause ErrLost when
// the lock is lost. fn should return then; Singleton waits for it, so there is never
// a second fn in this process, and stands for election again. It returns when fn
// has returned while the lock was still held: with fn's error, having released the
// lock. It also returns when ctx ends, with its cause, or MaxWait passes, with
// ErrTimeout, before fn's turn came; when the Locker is closed, with ErrClosed; and
// with ErrInvalid for a nil fn, a bad key or a bad option. An outage of the store is
// waited out. A panic of fn goes on, after the lock was released.
//
// Two fns can overlap where the first heeds neither its context nor the fence.
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
