package joblock

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/joblock/driver"
)

// inbox receives what is pushed to this Locker's waiters. They share one subscription,
// which the first of them makes.
type inbox struct {
	l     *Locker
	name  string
	start chan struct{} // holds one token: whoever has it may subscribe

	mu      sync.Mutex // guards what follows
	stop    func()     // ends the subscription; nil while there is none
	closed  bool
	waiting map[string]chan struct{} // by the nonce of the waiting call
}

func newInbox(l *Locker) *inbox {
	b := &inbox{l: l, name: uuid.NewString(), start: make(chan struct{}, 1), waiting: make(map[string]chan struct{})}
	b.start <- struct{}{}
	return b
}

func (b *inbox) ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stop != nil
}

// open subscribes, unless that was done before. A waiter opens before it takes a place
// in a queue, or its grant could be pushed before anybody listens.
func (b *inbox) open(ctx context.Context, key string) error {
	if b.ready() {
		return nil
	}
	return b.l.call(ctx, "wait", key, func(ctx context.Context) error {
		select {
		case <-b.start:
			defer func() { b.start <- struct{}{} }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if b.ready() {
			return nil
		}
		stop, err := b.l.store.Subscribe(ctx, b.name, b.deliver)
		if err != nil {
			return err
		}
		b.mu.Lock()
		if !b.closed {
			b.stop, stop = stop, nil
		}
		b.mu.Unlock()
		if stop != nil {
			stop()
			return &Error{Code: codeClosed, Op: "wait", Key: key}
		}
		return nil
	})
}

// expect returns where the pushes to a waiting call will arrive.
func (b *inbox) expect(nonce string) <-chan struct{} {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[nonce] = c
	return c
}

// forget drops the pushes that come later for a call that waits no longer. Its grant
// ends in the store when the call leaves the queue.
func (b *inbox) forget(nonce string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, nonce)
}

// deliver hands a push to the call that it is for. It does not block: one push is
// enough until the call has asked.
func (b *inbox) deliver(p driver.Push) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.waiting[p.Nonce]; ok {
		signal(c)
	}
}

func (b *inbox) close() {
	b.mu.Lock()
	stop := b.stop
	b.closed, b.stop = true, nil
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
}
