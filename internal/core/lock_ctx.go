package core

import (
	"context"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

// lockCtx is a context that ends when a lock is lost. Err reads the clocks, so it is right after a pause of the
// process, even before the timer of the deadline has fired.
type lockCtx struct {
	context.Context
	parent context.Context
	lock   *Lock
	cancel context.CancelCauseFunc
}

// Context is joblock.Lock.Context.
func (k *Lock) Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	return Locks{k}.Context(parent)
}

// Context is joblock.Locks.Context.
func (ls Locks) Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	if len(ls) == 0 {
		return context.WithCancel(parent)
	}
	ctx, stop = parent, func() {}
	carried := make(Locks, 0, len(ls))
	for _, lock := range ls {
		var stopOne context.CancelFunc
		outer := stop
		ctx, stopOne = lock.watched(ctx)
		stop = func() { stopOne(); outer() }
		if !lock.none() {
			carried = append(carried, lock)
		}
	}
	if len(carried) > 0 {
		ctx = context.WithValue(ctx, carriedKey{}, &carriedLocks{locks: carried, outer: carriedBy(parent)})
	}
	return ctx, stop
}

func (k *Lock) watched(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	inner, cancel := context.WithCancelCause(parent)
	if k.none() {
		cancel(nilLock("context"))
		return inner, func() {}
	}
	c := &lockCtx{Context: inner, parent: parent, lock: k, cancel: cancel}
	k.mu.Lock()
	err := k.h.over
	if err == nil {
		k.watch = append(k.watch, c)
	}
	k.mu.Unlock()
	if err != nil {
		cancel(err)
	}
	return c, func() {
		k.mu.Lock()
		k.watch = slices.DeleteFunc(k.watch, func(other *lockCtx) bool { return other == c })
		k.mu.Unlock()
		cancel(nil)
	}
}

func (c *lockCtx) Err() error {
	c.lock.check()
	// The goroutine that found the loss a moment ago may not have cancelled this context yet.
	if h := c.lock.snapshot(); h.state == lockLost {
		c.cancel(h.over)
	}
	// The parent may be the context of another lock, whose Err reads the clocks too. If that other lock is lost, the
	// parent's Err cancels this context before returning.
	if err := c.parent.Err(); err != nil && c.Context.Err() == nil {
		return err
	}
	return c.Context.Err()
}

// carriedLocks are the locks that one context adds. outer has the carriedLocks of the parent context.
type carriedLocks struct {
	locks Locks // never empty
	outer *carriedLocks
}

type carriedKey struct{}

func carriedBy(ctx context.Context) *carriedLocks {
	c, _ := ctx.Value(carriedKey{}).(*carriedLocks)
	return c
}

// checkCarried refuses to take a lock that ctx carries already: the call would wait for the end of the work that it is
// part of. Another slot of the line of key counts as the lock on key. A lock that is lost, released or handed over does
// not count.
func (l *Locker) checkCarried(ctx context.Context, op string, keys ...string) error {
	for c := carriedBy(ctx); c != nil; c = c.outer {
		for _, lock := range c.locks {
			line, _ := driver.LineOf(lock.Key())
			for _, key := range keys {
				if lock.l == l && (key == lock.Key() || key == line) && lock.Err() == nil {
					return Invalid(op, key, "%s", CarriedAlready)
				}
			}
		}
	}
	return nil
}

// FromContext is joblock.FromContext.
func FromContext(ctx context.Context) (lock *Lock, ok bool) {
	c := carriedBy(ctx)
	if c == nil {
		return nil, false
	}
	return c.locks[0], true
}

// LocksFromContext is joblock.LocksFromContext.
func LocksFromContext(ctx context.Context) Locks {
	var all Locks
	for c := carriedBy(ctx); c != nil; c = c.outer {
		all = slices.Concat(c.locks, all)
	}
	return all
}
