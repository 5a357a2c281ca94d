package ministore

import (
	"context"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Store is a driver.Store. The zero value is empty and ready to use.
type Store struct {
	Now func() time.Time // the clock; nil means time.Now

	mu      sync.Mutex // guards the fields below
	records map[string]record
	fence   int64 // the last fence given
	index   map[pair]entry
	marks   int64 // the last mark given
	seals   []driver.SealKey
	rates   map[string]*driver.Rate
	inboxes map[string][]*listener
	pushes  []func() // deliveries that the present call has to make at its end
}

var _ driver.Store = (*Store)(nil)

// step calls f with the record of a key, as one atomic step. If f gives the record a fence, the store keeps
// the record.
func (s *Store) step(ctx context.Context, key string, f func(r *record, now time.Time) driver.Reply) (driver.Reply, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return driver.Reply{}, err
	}
	defer s.exit()
	r := s.find(now, key)
	reply := f(&r, now)
	if r.exists() {
		s.records[key] = r
	}
	return reply, nil
}

// steps does the same as step for each item of a batch. After an error no item has an answer.
func steps[R any](ctx context.Context, s *Store, reqs []R, key func(R) string, f func(R, *record, time.Time) driver.Reply) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs)) // all of OutcomeUnknown
	for i, req := range reqs {
		var err error
		replies[i], err = s.step(ctx, key(req), func(r *record, now time.Time) driver.Reply { return f(req, r, now) })
		if err != nil {
			return replies, err
		}
	}
	return replies, nil
}

// enter begins a call, and exit ends the call. In between s.mu is locked, and all code of the
// call sees the same time.
func (s *Store) enter(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	if s.records == nil {
		s.records, s.index, s.inboxes = map[string]record{}, map[pair]entry{}, map[string][]*listener{}
		s.rates = map[string]*driver.Rate{}
	}
	if s.Now != nil {
		return s.Now(), nil
	}
	return time.Now(), nil
}

func (s *Store) exit() {
	pushes := s.pushes
	s.pushes = nil
	s.mu.Unlock()
	for _, deliver := range pushes {
		deliver()
	}
}

// find returns the record of a key. If there is none, find returns a record with fence 0.
func (s *Store) find(now time.Time, key string) record {
	if r := s.records[key]; now.Before(r.expires) {
		return r
	}
	delete(s.records, key)
	return record{}
}

// String names the store in messages to people.
func (s *Store) String() string { return "a map" }

// Close does nothing.
func (s *Store) Close() error { return nil }
