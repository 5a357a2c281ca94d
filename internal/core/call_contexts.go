package core

import (
	"context"
	"sync"
	"time"
)

// callContexts makes the contexts that bound calls to the store. Most calls, and all releases, come with a context that never
// ends by itself, and a timer for each call would be most of what the call allocates. So calls that begin shortly after
// one another share a context.
type callContexts struct {
	timeout time.Duration

	mu     sync.Mutex // guards the fields below
	shared context.Context
	cancel context.CancelFunc
	fresh  time.Time // when current stops handing out shared
}

// bound returns a child of ctx that ends after the timeout, or at most an eighth of the timeout later. Call done when
// the call to the store has returned.
func (b *callContexts) bound(ctx context.Context) (bounded context.Context, done context.CancelFunc) {
	if ctx.Done() != nil {
		return context.WithTimeout(ctx, b.timeout)
	}
	return b.detached(ctx), func() {}
}

// detached is like bound, for a call that continues after ctx has ended: only the timeout ends the returned context.
func (b *callContexts) detached(ctx context.Context) context.Context {
	if ctx == context.Background() { // a context without values
		return b.current()
	}
	return boundCtx{b.current(), ctx}
}

func (b *callContexts) current() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.shared == nil || !now.Before(b.fresh) {
		// The previous context ends by its own timeout, after the calls that use it.
		b.shared, b.cancel = context.WithTimeout(context.Background(), b.timeout+b.timeout/8)
		b.fresh = now.Add(b.timeout / 8)
	}
	return b.shared
}

// close ends the shared context. The caller ensures that no call is under way.
func (b *callContexts) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
}

// boundCtx ends when the embedded context ends, and has the values of the context in its field values.
type boundCtx struct {
	context.Context
	values context.Context
}

func (c boundCtx) Value(key any) any { return c.values.Value(key) }
