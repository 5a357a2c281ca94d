package memstore

import (
	"context"
	"slices"
	"sync"

	"github.com/joblock/toolkit/joblock/driver"
)

// listener is one call of Subscribe.
type listener struct {
	deliver func(driver.Push)

	// busy counts the deliveries under way. A delivery begins only under store.mu and while the listener is registered.
	// So after the listener was removed, Wait waits for the last delivery.
	busy sync.WaitGroup
}

// Subscribe implements driver.Store. No push is lost: the call that causes a push delivers the push to all subscribers
// of the inbox before the call returns. Several calls may deliver at a time. deliver may call the store, because the
// store's mutex is free during a delivery. deliver must not call stop: stop waits for deliver to return.
func (s *store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (stop func(), err error) {
	if _, err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	l := &listener{deliver: deliver}
	s.inboxes[inbox] = append(s.inboxes[inbox], l)
	return func() {
		s.mu.Lock()
		rest := slices.DeleteFunc(s.inboxes[inbox], func(other *listener) bool { return other == l })
		if s.inboxes[inbox] = rest; len(rest) == 0 {
			delete(s.inboxes, inbox)
		}
		s.mu.Unlock()
		l.busy.Wait()
	}, nil
}

// Notify implements driver.Store.
func (s *store) Notify(ctx context.Context, key string) error {
	if _, err := s.enter(ctx); err != nil {
		return err
	}
	mail := s.post([]push{{driver.NotifyInbox, driver.Push{Key: key}}})
	s.mu.Unlock()
	for _, deliver := range mail {
		deliver()
	}
	return nil
}

// push is a driver.Push and its inbox.
type push struct {
	inbox string
	driver.Push
}

// post returns one function for each delivery. Call post with s.mu locked, and call the functions after the unlock. A
// push to an inbox without listeners is dropped.
func (s *store) post(pushes []push) (mail []func()) {
	for _, p := range pushes {
		for _, l := range s.inboxes[p.inbox] {
			l.busy.Add(1)
			mail = append(mail, func() {
				defer l.busy.Done()
				l.deliver(p.Push)
			})
		}
	}
	return mail
}
