package memstore

import (
	"context"
	"slices"
	"sync"

	"github.com/joblock/toolkit/joblock/driver"
)

// listener is one call of Listen or Watch.
type listener[T any] struct {
	deliver func(T)

	// busy counts deliveries under way. It is added to under Store.mu and while
	// the listener is registered only, so once it is not, Wait is final.
	busy sync.WaitGroup
}

// Listen is the call of driver.Store. Nothing is lost: a grant is delivered
// before the call that made it returns, by the goroutine of that call. The
// Store's mutex is not held meanwhile, so deliver may call the Store; grants made
// by several goroutines are delivered at the same time. Everyone who listens to
// an inbox gets every grant. deliver must not call stop, which would wait for it.
func (s *Store) Listen(ctx context.Context, inbox string, deliver func(nonce string)) (stop func(), err error) {
	if _, err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	l := &listener[string]{deliver: deliver}
	s.inboxes[inbox] = append(s.inboxes[inbox], l)
	return func() {
		s.mu.Lock()
		if s.inboxes[inbox] = without(s.inboxes[inbox], l); s.inboxes[inbox] == nil {
			delete(s.inboxes, inbox)
		}
		s.mu.Unlock()
		l.busy.Wait()
	}, nil
}

// Watch is the call of driver.Store, with what is said of Listen.
func (s *Store) Watch(ctx context.Context, deliver func(driver.Forced)) (stop func(), err error) {
	if _, err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	l := &listener[driver.Forced]{deliver: deliver}
	s.watchers = append(s.watchers, l)
	return func() {
		s.mu.Lock()
		s.watchers = without(s.watchers, l)
		s.mu.Unlock()
		l.busy.Wait()
	}, nil
}

// without returns all but l, nil if that are none.
func without[T any](all []*listener[T], l *listener[T]) []*listener[T] {
	rest := slices.DeleteFunc(all, func(other *listener[T]) bool { return other == l })
	if len(rest) == 0 {
		return nil
	}
	return rest
}

// outbox collects the pushes of one call of the Store while its mutex is held, to
// be sent when it is not.
type outbox struct {
	store *Store
	mail  []func()
}

// grant needs the Store's mutex. A grant that nobody listens for is dropped.
func (o *outbox) grant(inbox, nonce string) {
	for _, l := range o.store.inboxes[inbox] {
		o.mail = append(o.mail, l.letter(nonce))
	}
}

// forced needs the Store's mutex.
func (o *outbox) forced(f driver.Forced) {
	for _, l := range o.store.watchers {
		o.mail = append(o.mail, l.letter(f))
	}
}

// letter returns what delivers push.
func (l *listener[T]) letter(push T) func() {
	l.busy.Add(1)
	return func() {
		defer l.busy.Done()
		l.deliver(push)
	}
}

// send must be called without the Store's mutex.
func (o *outbox) send() {
	for _, deliver := range o.mail {
		deliver()
	}
}
