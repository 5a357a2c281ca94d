package joblock

import (
	"context"
	"sync"
	"time"
)

// bounds makes the contexts that bound calls to the store. Most calls come with a
// context that never ends by itself; all releases do. A timer for each would be the
// largest part of what such a call allocates. So calls that begin shortly after one
// another share one.
type bounds struct {
	timeout time.Duration

	mu     sync.Mutex // guards what follows
	shared context.Context
	cancel context.CancelFunc
	fresh  time.Time // until when shared is given out
}

// bound returns a child of ctx that ends after the timeout, or up to an eighth of
// it later. Call done when the call has returned.
func (b *bounds) bound(ctx context.Context) (bounded context.Context, done context.CancelFunc) {
	if ctx.Done() != nil {
		return context.WithTimeout(ctx, b.timeout)
	}
	return b.detached(ctx), func() {}
}

// detached is bound for a call that goes on when ctx ends: only the timeout ends it.
func (b *bounds) detached(ctx context.Context) context.Context {
	if ctx == context.Background() { // no values either
		return b.current()
	}
	return boundCtx{b.current(), ctx}
}

func (b *bounds) current() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.shared == nil || !now.Before(b.fresh) {
		// The context before it ends by itself, after the calls that use it.
		b.shared, b.cancel = context.WithTimeout(context.Background(), b.timeout+b.timeout/8)
		b.fresh = now.Add(b.timeout / 8)
	}
	return b.shared
}

// close ends the shared context; calls are over by then.
func (b *bounds) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
}

// boundCtx ends as one context does and has the values of another.
type boundCtx struct {
	context.Context
	values context.Context
}

func (c boundCtx) Value(key any) any { return c.values.Value(key) }
