package ministore

import (
	"context"
	"slices"
	"sync"

	"github.com/joblock/toolkit/joblock/driver"
)

// listener is one call of Subscribe.
type listener struct {
	deliver func(driver.Push)
	busy    sync.WaitGroup // deliveries that exit has still to make
}

// Subscribe implements driver.Store.
func (s *Store) Subscribe(ctx context.Context, inbox string, deliver func(driver.Push)) (func(), error) {
	if _, err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.exit()
	l := &listener{deliver: deliver}
	s.inboxes[inbox] = append(s.inboxes[inbox], l)
	return func() {
		s.mu.Lock()
		s.inboxes[inbox] = slices.DeleteFunc(s.inboxes[inbox], func(other *listener) bool { return other == l })
		s.mu.Unlock()
		l.busy.Wait()
	}, nil
}

// Notify implements driver.Store.
func (s *Store) Notify(ctx context.Context, key string) error {
	if _, err := s.enter(ctx); err != nil {
		return err
	}
	defer s.exit()
	s.push(driver.NotifyInbox, driver.Push{Key: key})
	return nil
}

// push queues a delivery, which exit makes.
func (s *Store) push(inbox string, p driver.Push) {
	for _, l := range s.inboxes[inbox] {
		l.busy.Add(1)
		s.pushes = append(s.pushes, func() {
			defer l.busy.Done()
			l.deliver(p)
		})
	}
}
