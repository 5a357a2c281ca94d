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

	// busy counts deliveries under way. It grows only under Store.mu and while the
	// listener is registered. So Wait is final once the listener is removed.
	busy sync.WaitGroup
}

// Subscribe is the call of driver.Store. No push is lost: the call that causes it delivers
// it before it returns, to everyone who subscribes to the inbox. Several calls may deliver at
// a time. deliver may call the Store, whose mutex is not held meanwhile. It must not call
// stop, which would wait for it.
func (s *Store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (stop func(), err error) {
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

// push is a driver.Push and the inbox that it goes to.
type push struct {
	inbox string
	driver.Push
}

// post returns a function that delivers pushes. Call post with s.mu held, and the function
// without. A push to an inbox without listeners is dropped.
func (s *Store) post(pushes []push) func() {
	if len(pushes) == 0 {
		return func() {}
	}
	var mail []func()
	for _, p := range pushes {
		for _, l := range s.inboxes[p.inbox] {
			l.busy.Add(1)
			mail = append(mail, func() {
				defer l.busy.Done()
				l.deliver(p.Push)
			})
		}
	}
	return func() {
		for _, deliver := range mail {
			deliver()
		}
	}
}
