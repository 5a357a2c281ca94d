package core

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/joblock/driver"
)

// Acquirer is Locker.Acquire, or a function of package limit that takes a lock in the same way.
type Acquirer func(ctx context.Context, key string, o Options) (*Lock, error)

// Do is joblock.Locker.Do, but takes the lock with acquire; nil means l.Acquire.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, o Options, acquire Acquirer) (err error) {
	if fn == nil {
		return Invalid("do", key, "the function is nil")
	}
	if acquire == nil {
		acquire = l.Acquire
	}
	lock, err := acquire(ctx, key, o)
	if err != nil {
		return err
	}
	fctx, stop := lock.Context(ctx)
	defer stop()
	defer func() {
		if h := lock.snapshot(); h.settled() {
			return // fn released the lock, or handed the lock over to a job
		}
		rerr := lock.Release(ctx, Release{})
		var released *Error                                                            // perhaps wrapped by the store
		if errors.As(rerr, &released) && released.Code == driver.CodeAlreadyReleased { // by another caller, not by fn
			lost := *released
			lost.Code, lost.Detail = driver.CodeLost, "the lock was taken away while the function ran"
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
