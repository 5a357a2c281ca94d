package joblock

import "context"

// lockCtx is a context that ends when a lock is lost. Its Err looks at the
// clocks first: in a process that was stopped past the deadline it tells the
// truth before any timer has had its turn.
type lockCtx struct {
	context.Context
	parent context.Context
	lock   *Lock
	cancel context.CancelCauseFunc
}

type lockCtxKey struct{}

// Context returns a child of parent that carries the lock (see FromContext) and
// is cancelled with cause ErrLost when the lock is lost. Releasing the lock or
// handing it over does not cancel it. For a lock that is over already it comes
// cancelled, with the reason as its cause. Call stop when the work is done.
func (k *Lock) Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	inner, cancel := context.WithCancelCause(parent)
	if k.none() {
		cancel(nilLock("context"))
		return inner, func() {}
	}
	c := &lockCtx{Context: inner, parent: parent, lock: k, cancel: cancel}
	k.mu.Lock()
	err := k.err
	if err == nil {
		if k.watch == nil {
			k.watch = make(map[*lockCtx]struct{}, 1)
		}
		k.watch[c] = struct{}{}
	}
	k.mu.Unlock()
	if err != nil {
		cancel(err)
	}
	return c, func() {
		k.mu.Lock()
		delete(k.watch, c)
		k.mu.Unlock()
		cancel(nil)
	}
}

func (c *lockCtx) Err() error {
	c.lock.check()
	// A parent may be the context of another lock: let it look too. Its
	// cancellation reaches this context before it returns.
	if err := c.parent.Err(); err != nil && c.Context.Err() == nil {
		return err
	}
	return c.Context.Err()
}

func (c *lockCtx) Value(key any) any {
	if key == (lockCtxKey{}) {
		return c.lock
	}
	return c.Context.Value(key)
}

// FromContext returns the lock whose Context ctx is or descends from, the
// innermost if there are several.
func FromContext(ctx context.Context) (*Lock, bool) {
	k, ok := ctx.Value(lockCtxKey{}).(*Lock)
	return k, ok
}
