// Package faultstore wraps a driver.Store so that tests can take it away: calls
// fail by name, in the ways in which a network and a server fail, and every call
// that is made is counted.
package faultstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// The names of the calls, for Set, Clear, Calls, Items and Largest.
const (
	Acquire  = "acquire"
	Resume   = "resume"
	Park     = "park"
	Renew    = "renew"
	Release  = "release"
	Reserve  = "reserve"
	Due      = "due"
	Forget   = "forget"
	SealKeys = "seal keys"
	Inspect  = "inspect"
	List     = "list"
	Listen   = "listen" // Subscribe to an inbox of waiters
	Push     = "push"   // of a grant to it
	Watch    = "watch"  // Subscribe to driver.ForcedInbox
	Forced   = "forced" // a push about a lock that was taken away, to it
)

// Err is the error of calls that fail here, unless their Fault has one.
var Err = errors.New("faultstore: connection reset by test")

// Mode is a way to fail.
type Mode uint8

// The modes.
const (
	// Refuse fails at once; the call is not applied.
	Refuse Mode = iota
	// Drop applies the call and loses the reply.
	Drop
	// Hang blocks until ctx ends; the call is not applied.
	Hang
	// HangApplied applies the call and then blocks until ctx ends.
	HangApplied
	// Slow applies the call at once and delivers the reply after Fault.Delay,
	// whatever ctx says: a client that does not watch its context while it reads.
	Slow
	// Late applies the call only after Fault.Delay and then delivers the reply,
	// whatever ctx says: a request that was long on its way.
	Late
	// Stray fails at once, and the call is applied after Fault.Delay all the same.
	Stray
	// Pass lets the call through, after Fault.Before.
	Pass
)

// Fault is a rule for one call. Pushes know two modes: Late delivers them after Delay,
// any other loses them.
type Fault struct {
	Mode   Mode
	Times  int           // how many calls it hits; 0 for all until Clear
	Delay  time.Duration // of Slow, Late and Stray
	Err    error         // in place of Err
	Before func()        // is called before anything else happens to the call
}

// Store is a driver.Store that fails on demand. Make it with New; it is safe for
// concurrent use.
type Store struct {
	inner  driver.Store
	strays sync.WaitGroup

	mu     sync.Mutex // guards what follows
	faults map[string]Fault
	counts map[string]count
}

type count struct{ calls, items, largest int }

var _ driver.Store = (*Store)(nil)

// New wraps inner. Without faults the wrapper only counts.
func New(inner driver.Store) *Store {
	return &Store{inner: inner, faults: make(map[string]Fault), counts: make(map[string]count)}
}

// Set makes the named calls fail, in place of an earlier rule for the same name.
func (s *Store) Set(f Fault, calls ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range calls {
		s.faults[call] = f
	}
}

// Clear ends the rules for the named calls, without names all of them. Calls that
// hang already go on hanging.
func (s *Store) Clear(calls ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(calls) == 0 {
		clear(s.faults)
	}
	for _, call := range calls {
		delete(s.faults, call)
	}
}

// Calls returns how often the named call was made, failed calls included, and
// without a name how many calls were made at all.
func (s *Store) Calls(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if call != "" {
		return s.counts[call].calls
	}
	n := 0
	for _, c := range s.counts {
		n += c.calls
	}
	return n
}

// Items returns how many items the calls of that name had together.
func (s *Store) Items(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[call].items
}

// Largest returns the number of items of the largest call of that name.
func (s *Store) Largest(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[call].largest
}

// String says where the locks are, as the wrapped Store does.
func (s *Store) String() string { return fmt.Sprint(s.inner) }

// Close waits for stray calls and closes the wrapped Store.
func (s *Store) Close() error {
	s.strays.Wait()
	return s.inner.Close()
}

// enter counts a call and returns the rule that hits it.
func (s *Store) enter(call string, items int) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts[call]
	c.calls++
	c.items += items
	c.largest = max(c.largest, items)
	s.counts[call] = c

	f, ok := s.faults[call]
	if ok && f.Times > 0 {
		if f.Times--; f.Times == 0 {
			delete(s.faults, call)
		} else {
			s.faults[call] = f
		}
	}
	return f, ok
}

// do makes one call under the rules in force.
func do[T any](ctx context.Context, s *Store, call string, items int, apply func(context.Context) (T, error)) (T, error) {
	var none T
	f, ok := s.enter(call, items)
	if !ok {
		return apply(ctx)
	}
	if f.Before != nil {
		f.Before()
	}
	failed := cmp.Or(f.Err, Err)
	detached := context.WithoutCancel(ctx)
	switch f.Mode {
	case Pass:
		return apply(ctx)
	case Drop:
		_, _ = apply(detached) // lost, and its error with it
		return none, failed
	case Hang:
		<-ctx.Done()
		return none, ctx.Err()
	case HangApplied:
		_, _ = apply(detached)
		<-ctx.Done()
		return none, ctx.Err()
	case Slow:
		reply, err := apply(detached)
		time.Sleep(f.Delay)
		return reply, err
	case Late:
		time.Sleep(f.Delay)
		return apply(detached)
	case Stray:
		s.strays.Go(func() {
			time.Sleep(f.Delay)
			_, _ = apply(detached)
		})
	}
	return none, failed
}

// push delivers what the wrapped Store has pushed, under the rule in force.
func push(s *Store, call string, deliver func(driver.Push)) func(driver.Push) {
	return func(what driver.Push) {
		switch f, ok := s.enter(call, 1); {
		case !ok:
			deliver(what)
		case f.Mode == Late:
			time.AfterFunc(f.Delay, func() { deliver(what) })
		}
	}
}
