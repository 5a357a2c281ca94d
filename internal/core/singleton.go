package core

import (
	"context"
	"errors"
)

// Singleton is joblock.Locker.Singleton.
func (l *Locker) Singleton(ctx context.Context, key string, fn func(ctx context.Context) error, o Options) error {
	if fn == nil {
		return Invalid("singleton", key, "the function is nil")
	}
	pause := newPauses()
	for {
		var lock *Lock // under which fn ran; nil if fn did not run
		var own error  // what fn returned
		err := l.Do(ctx, key, func(ctx context.Context) error {
			lock, _ = FromContext(ctx)
			own = fn(ctx)
			return own
		}, o, nil)
		again := errors.Is(err, ErrUnavailable)
		if lock != nil {
			pause = newPauses()
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
