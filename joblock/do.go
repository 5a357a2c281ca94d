package joblock

import (
	"context"
	"errors"
)

// Do runs fn while holding the lock on key, waiting for it as Acquire does. fn's
// context carries the lock (see FromContext) and is cancelled with cause ErrLost when
// the lock is lost. The lock is released when fn returns or panics, unless fn has
// released it or handed it over.
//
// Do returns Acquire's error, or fn's. If the lock was lost while fn ran, the error
// matches ErrLost, whatever fn returned. A failure to release is joined too; the lock
// then runs out by itself.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	return l.do(ctx, key, fn, opts, l.Acquire)
}

// acquirer is a call like Acquire: that, or one of package limit.
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
			return // fn released it, or handed it over to a job
		}
		rerr := lock.Release(ctx)
		var released *Error                                                     // a store may have wrapped it
		if errors.As(rerr, &released) && released.Code == codeAlreadyReleased { // somebody forced it, not fn
			lost := *released
			lost.Code, lost.Detail = codeLost, "it was taken away while the function ran"
			rerr = &lost
		}
		if errors.Is(rerr, ErrClosed) {
			rerr = errors.Join(lock.Err(), rerr) // Close has lost it
		}
		if !errors.Is(err, ErrLost) || !errors.Is(rerr, ErrLost) {
			err = errors.Join(err, rerr)
		}
	}()
	return fn(fctx)
}
