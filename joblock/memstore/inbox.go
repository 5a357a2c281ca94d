package memstore

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/joblock/toolkit/joblock"
)

// listener is one call of Listen.
type listener struct {
	deliver func(joblock.Grant)

	// busy counts deliveries under way. It is added to under Store.mu and while
	// the listener is registered only, so once it is not, Wait is final.
	busy sync.WaitGroup
}

// Listen is the call of joblock.Store. Nothing is lost: a grant is delivered
// before the call that made it returns, by the goroutine of that call. The
// Store's mutex is not held meanwhile, so deliver may call the Store; grants made
// by several goroutines are delivered at the same time. Everyone who listens to
// an inbox gets every grant. deliver must not call stop, which would wait for it.
func (s *Store) Listen(ctx context.Context, inbox string, deliver func(joblock.Grant)) (stop func(), err error) {
	if _, err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	l := &listener{deliver: deliver}
	s.inboxes[inbox] = append(s.inboxes[inbox], l)
	return func() { s.unlisten(inbox, l) }, nil
}

func (s *Store) unlisten(inbox string, l *listener) {
	s.mu.Lock()
	rest := slices.DeleteFunc(s.inboxes[inbox], func(other *listener) bool { return other == l })
	if len(rest) > 0 {
		s.inboxes[inbox] = rest
	} else {
		delete(s.inboxes, inbox)
	}
	s.mu.Unlock()
	l.busy.Wait()
}

// outbox collects the grants of one call of the Store while its mutex is held,
// to be sent when it is not.
type outbox struct {
	store *Store
	mail  []letter
}

type letter struct {
	to    *listener
	grant joblock.Grant
}

// add needs the Store's mutex. A grant that nobody listens for is dropped.
func (o *outbox) add(inbox string, g joblock.Grant) {
	for _, l := range o.store.inboxes[inbox] {
		l.busy.Add(1)
		own := g
		own.Memo = bytes.Clone(g.Memo)
		o.mail = append(o.mail, letter{l, own})
	}
}

// send must be called without the Store's mutex.
func (o *outbox) send() {
	for _, m := range o.mail {
		m.send()
	}
}

func (m letter) send() {
	defer m.to.busy.Done()
	m.to.deliver(m.grant)
}
