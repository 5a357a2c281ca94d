package scheduler

import (
	"sync"
	"time"
)

// storeClock is this node's estimate of the store's clock: the time in the latest answer,
// moved on by the node's own clock since then.
//
// When an answer with the time S arrives after a round trip d, the store's clock is between
// S and S+d. An estimate between them stays as it is, so slow answers do no harm. Any other
// moves to the nearer bound. So the estimate is wrong by at most half of the quickest round
// trip so far, plus the drift of the two clocks between answers.
type storeClock struct {
	local func() time.Time // the node's own clock

	mu    sync.Mutex // guards what follows
	store time.Time  // zero: no answer yet
	own   time.Time  // the node's clock at that moment
}

// now returns the estimate.
func (c *storeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(c.local())
}

func (c *storeClock) at(local time.Time) time.Time { return c.store.Add(local.Sub(c.own)) }

// learn corrects the estimate by an answer with the store's time. sent is when the question
// was sent, by the node's clock. learn returns how far it has moved the estimate.
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

// synced reports whether the estimate is usable: there was an answer, and the machine was
// not suspended since. While it is suspended its wall clock goes on, but not its monotonic
// clock, by which the estimate moves on.
func (c *storeClock) synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	here := c.local()
	slept := here.Round(0).Sub(c.own.Round(0)) - here.Sub(c.own)
	return !c.store.IsZero() && slept < time.Second
}
