package joblock

import (
	"context"
	"errors"
)

// Do takes the lock on key as Acquire does, and runs fn. The context of fn carries the lock (see FromContext), and is
// cancelled with cause ErrLost when the lock is lost. Do releases the lock when fn returns or panics, unless fn has
// released the lock or handed the lock over.
//
// Do returns the error of Acquire or of fn. If the lock was lost while fn ran, the error matches ErrLost, whatever fn
// returned. If the release fails, its error is joined, and the lease ends by itself.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	return l.do(ctx, key, fn, opts, l.Acquire)
}

// The type acquirer is Locker.Acquire, or a function of package limit that takes a lock in the same way.
type acquirer = func(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error)

func (l *Locker) do(ctx context.Context, key string, fn func(ctx context.Context) error, opts []AcquireOption, acquire acquirer) (err error) {
	if fn == nil {
		return invalid("do", key, "the function is nil")
	}
	lock, err := acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	fctx, stop := lock.Context(ctx)
	defer stop()
	defer func() {
		if h := lock.snapshot(); h.settled() {
			return // fn released the lock, or handed the lock over to a job
		}
		rerr := lock.Release(ctx)
		var released *Error                                                     // perhaps wrapped by the store
		if errors.As(rerr, &released) && released.Code == codeAlreadyReleased { // by somebody else, not by fn
			lost := *released
			lost.Code, lost.Detail = codeLost, "it was taken away while the function ran"
			rerr = &lost
		}
		if errors.Is(rerr, ErrClosed) {
			rerr = errors.Join(lock.Err(), rerr) // the lock was lost by Close
		}
		if !errors.Is(err, ErrLost) || !errors.Is(rerr, ErrLost) {
			err = errors.Join(err, rerr)
		}
	}()
	return fn(fctx)
}
