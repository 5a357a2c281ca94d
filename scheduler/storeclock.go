package scheduler

import (
	"sync"
	"time"
)

// storeClock is this node's estimate of the store's clock: the estimate at the latest answer, plus the time since then
// by the node's own clock.
//
// When an answer with the time S arrives after a round trip d, the store's clock is between S and S+d. An estimate
// before S moves to S, one after S+d moves to S+d, and one in between does not change, so slow answers do no harm. The
// error is at most half of the quickest round trip so far, plus the drift of the two clocks between answers.
type storeClock struct {
	local func() time.Time // the node's own clock

	mu    sync.Mutex // guards the fields below
	store time.Time  // the estimate at the latest answer; zero: no answer yet
	own   time.Time  // the node's own clock at that answer
}

// now returns the estimate of the store's clock.
func (c *storeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store.Add(c.local().Sub(c.own))
}

// learn corrects the estimate with an answer that has the store's time, and returns how far the estimate has moved.
// sent is the time of the request by the node's own clock.
func (c *storeClock) learn(sent, store time.Time) (moved time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	here := c.local()
	took := here.Sub(sent)
	was := c.store.Add(here.Sub(c.own))
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

// synced reports whether the estimate is usable: the store has answered, and the machine was not suspended after that
// answer. During a suspension the machine's wall clock goes on, but the monotonic clock and the estimate stop.
func (c *storeClock) synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	here := c.local()
	slept := here.Round(0).Sub(c.own.Round(0)) - here.Sub(c.own)
	return !c.store.IsZero() && slept < time.Second
}
