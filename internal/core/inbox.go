package core

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/joblock/driver"
)

// inbox receives the pushes for this Locker's waiters. All waiters share one subscription, which the first waiter
// makes.
type inbox struct {
	l     *Locker
	name  string
	start chan struct{} // holds one value; the goroutine that has received it may subscribe

	mu      sync.Mutex // guards what follows
	stop    func()     // ends the subscription; nil while there is none
	closed  bool
	waiting map[string]chan driver.Push // by the nonce of the waiting call
}

func newInbox(l *Locker) *inbox {
	b := &inbox{l: l, name: uuid.NewString(), start: make(chan struct{}, 1), waiting: make(map[string]chan driver.Push)}
	b.start <- struct{}{}
	return b
}

func (b *inbox) ready() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stop != nil
}

// open subscribes, unless there is a subscription. A waiter calls open before it takes a place in a queue; otherwise a
// grant could be pushed before there is a subscriber.
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
			return &Error{Code: driver.CodeClosed, Op: "wait", Key: key}
		}
		return nil
	})
}

// expect returns the channel for the pushes to the waiting call with that nonce.
func (b *inbox) expect(nonce string) <-chan driver.Push {
	c := make(chan driver.Push, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[nonce] = c
	return c
}

// forget ends the delivery of pushes to a call that no longer waits. If the store has granted the key to the call, the
// caller ends the grant: see abandon.
func (b *inbox) forget(nonce string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, nonce)
}

// deliver hands p to the call that p is for, and does not block. Of several pushes that the call has not read, it keeps
// the one whose grant has the largest fence.
func (b *inbox) deliver(p driver.Push) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.waiting[p.Nonce]
	if !ok {
		return
	}
	select {
	case unread := <-c:
		if unread.Grant != nil && (p.Grant == nil || p.Grant.Fence < unread.Grant.Fence) {
			p = unread
		}
	default:
	}
	c <- p // has room: only deliver sends, under b.mu
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
