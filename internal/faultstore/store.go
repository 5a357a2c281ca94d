// Package faultstore wraps a driver.Store for tests. A rule makes the calls of one name fail, as a network or a server
// fails. The wrapper counts every call.
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
	Take     = "take"
	Resume   = "resume"
	Park     = "park"
	Renew    = "renew"
	Release  = "release"
	Reserve  = "reserve"
	Due      = "due"
	Settle   = "settle"
	Entries  = "entries"
	SealKeys = "seal keys"
	Inspect  = "inspect"
	List     = "list"
	Line     = "line"
	Admit    = "admit"
	Listen   = "listen" // Subscribe to an inbox of waiters
	Push     = "push"   // a push to an inbox of waiters
	Watch    = "watch"  // Subscribe to driver.ForcedInbox
	Forced   = "forced" // a push to driver.ForcedInbox
	Notify   = "notify"
)

// Err is the error of calls that a Fault makes fail, unless Fault.Err is set.
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
	// Slow applies the call at once and returns the reply after Fault.Delay, even if ctx has ended by then. A client
	// that ignores its context while reading behaves in this way.
	Slow
	// Late applies the call after Fault.Delay and then returns the reply, even if ctx has ended by then. A network that
	// delays a request behaves in this way.
	Late
	// Stray fails at once, but applies the call after Fault.Delay.
	Stray
	// Pass lets the call through, after Fault.Before.
	Pass
)

// Fault is a rule for the calls of one name. For the names Push and Forced, mode Late delivers a push after Delay, and any
// other mode loses the push.
type Fault struct {
	Mode   Mode
	Times  int           // how many calls the rule hits; 0 for all calls until Clear
	Delay  time.Duration // the delay of Slow, Late and Stray
	Err    error         // default: the package's Err
	Before func()        // called before the call; may be nil
}

// Store is a driver.Store that fails on demand. Make a Store with New. A Store is safe for concurrent use.
type Store struct {
	inner  driver.Store
	strays sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	faults map[string]Fault
	all    *Fault // for the names without a rule in faults; may be nil
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

// SetAll makes all calls and pushes fail, in place of all earlier rules, until Clear without names. Fault.Times does not
// count.
func (s *Store) SetAll(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.faults)
	s.all = &f
}

// Clear ends the rules for the named calls, or all rules if no call is named. A call that
// already hangs goes on hanging.
func (s *Store) Clear(calls ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(calls) == 0 {
		clear(s.faults)
		s.all = nil
	}
	for _, call := range calls {
		delete(s.faults, call)
	}
}

// Calls returns how often the named call was made, failures included. For "" Calls returns the number of all calls.
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

// Items returns the sum of the items of all calls of that name.
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

// String returns the String of the wrapped Store.
func (s *Store) String() string { return fmt.Sprint(s.inner) }

// Close waits for stray calls and closes the wrapped Store.
func (s *Store) Close() error {
	s.strays.Wait()
	return s.inner.Close()
}

// enter counts a call and returns the rule that hits the call.
func (s *Store) enter(call string, items int) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts[call]
	c.calls++
	c.items += items
	c.largest = max(c.largest, items)
	s.counts[call] = c

	f, ok := s.faults[call]
	if !ok && s.all != nil {
		return *s.all, true
	}
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
		_, _ = apply(detached)
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

// push wraps deliver: each delivery obeys the rule in force for the name.
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
