package scheduler

import (
	"sync"
	"time"
)

// storeClock is this node's idea of the store's clock: the store's time at the latest
// answer, moved on by the node's own clock since.
//
// An answer that carries the store's time S shows that S was reached no later than the
// answer arrived and no earlier than the question was sent. Within these two bounds the
// idea stays as it is, so a slow answer does no harm; outside it is moved to the
// nearer one. So it is wrong by at most half of the quickest round trip so far, plus
// what the two clocks drift apart between answers.
type storeClock struct {
	local func() time.Time // this node's

	mu    sync.Mutex // guards what follows
	store time.Time  // zero: no answer yet
	own   time.Time  // the node's clock at that moment
}

// now is about what the store's clock shows.
func (c *storeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(c.local())
}

func (c *storeClock) at(local time.Time) time.Time { return c.store.Add(local.Sub(c.own)) }

// learn takes in an answer of the store, to a question that was sent at the given time
// by the node's clock. It returns by how much that moved the idea.
func (c *storeClock) learn(sent, store time.Time) (moved time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	here := c.local()
	took := here.Sub(sent)
	was := c.at(here)
	now := was
	switch {
	case c.store.IsZero():
		now = store.Add(took / 2)
	case now.Before(store):
		now = store
	case now.After(store.Add(took)):
		now = store.Add(took)
	}
	c.store, c.own = now, here
	return now.Sub(was)
}

// synced reports whether the clock may be relied upon. It may not before the first
// answer, nor after the machine was suspended, which stops the monotonic clock by which
// time is counted, but not the wall clock.
func (c *storeClock) synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	here := c.local()
	slept := here.Round(0).Sub(c.own.Round(0)) - here.Sub(c.own)
	return !c.store.IsZero() && slept < time.Second
}
