// Package life tracks the work of a component that can be closed: work is counted, and Close waits for it. The work runs in
// goroutines that are reused.
package life

import (
	"context"
	"sync"
)

// Life counts work. A sync.WaitGroup would not do: background work may begin while Close waits, and WaitGroup.Add must
// not race with WaitGroup.Wait. Make a Life with New.
type Life struct {
	ctx  context.Context
	end  context.CancelFunc
	pool *Pool // has the goroutines of Go

	mu   sync.Mutex // guards n
	n    int        // how much work is under way
	zero *sync.Cond // signals that n is 0, or that the context of a waiting caller has ended
}

// New returns an open Life.
func New() *Life {
	l := new(Life)
	l.ctx, l.end = context.WithCancel(context.Background())
	l.pool = NewPool(l.ctx)
	l.zero = sync.NewCond(&l.mu)
	return l
}

// Context returns a context that ends when Close begins.
func (l *Life) Context() context.Context { return l.ctx }

// Enter counts work of the calling goroutine, until Leave. After Close has begun, Enter counts nothing and returns false.
func (l *Life) Enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.n++
	return true
}

// Leave ends the work of an Enter that returned true.
func (l *Life) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n--; l.n == 0 {
		l.zero.Broadcast()
	}
}

// Go calls f in another goroutine, and counts the call, even if Enter would not.
func (l *Life) Go(f func()) {
	l.mu.Lock()
	l.n++
	l.mu.Unlock()
	l.pool.Go(func() {
		defer l.Leave()
		f()
	})
}

// TryGo does what Go does, but calls f in a goroutine of its own, for work that may take long. After Close has begun,
// TryGo calls nothing and returns false.
func (l *Life) TryGo(f func()) bool {
	if !l.Enter() {
		return false
	}
	go func() {
		defer l.Leave()
		f()
	}()
	return true
}

// Close ends the Context, and waits until no work is under way. If ctx ends first, Close returns the cause of ctx. Close may
// be called again.
func (l *Life) Close(ctx context.Context) error {
	l.mu.Lock()
	l.end() // with l.mu, so that Enter has either counted before, or returns false
	l.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.zero.Broadcast()
	})()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.n > 0 && ctx.Err() == nil {
		l.zero.Wait()
	}
	if l.n > 0 {
		return context.Cause(ctx)
	}
	return nil
}
