package storemodel

import (
	"context"
	"math"
	"time"

	"github.com/joblock/toolkit/internal/ministore"
	"github.com/joblock/toolkit/joblock/driver"
)

// seen is what a look at a key has shown.
type seen struct {
	mini, store driver.Record // the latest that had a fence
	here        bool          // there is a record
	joined      int           // places that the queue has ever had

	// expires is the time until which a store remembers the record. gone is the time from which on a store has forgotten
	// the record. In between a store may remember the record because of waiters, so the model makes no calls in that
	// time.
	expires, gone time.Duration
}

// translate returns the fence for ministore that says of its record what fence says of the store's: none, the present
// term, another ownership, or another term of this ownership.
func (s seen) translate(fence int64) int64 {
	switch {
	case fence == 0:
		return 0
	case fence == s.store.Fence:
		return s.mini.Fence
	case fence < s.store.First:
		return -1
	}
	return math.MaxInt64
}

// start is what the clock of ministore shows at the begin. A deadline is rounded up to the next whole millisecond.
var start = time.UnixMilli(1_700_000_000_000)

// rounding is how much later than requested a deadline may be.
const rounding = time.Millisecond

// sinceStart returns the time from the begin to an instant of ministore.
func sinceStart(t time.Time) time.Duration { return t.Sub(start) }

// newMini returns the store that the history's calls are compared with.
func (m *model) newMini() *ministore.Store {
	s := &ministore.Store{Now: func() time.Time { return start.Add(m.now) }}
	for _, inbox := range []string{heardInbox, driver.JobsInbox} {
		if _, err := s.Subscribe(context.Background(), inbox, func(p driver.Push) { m.push = append(m.push, p) }); err != nil {
			m.Fatalf("Subscribe: %v", err)
		}
	}
	return s
}

// keptFor notes that a store may remember the record of a key for the time d from now.
func (m *model) keptFor(key string, d time.Duration) {
	s := m.seen[key]
	s.gone = max(s.gone, m.now+d)
	m.seen[key] = s
}

// places returns the waiters of a key whose places have not ended.
func (m *model) places(key string) []driver.Place {
	page, err := m.mini.Line(m.ctx, driver.LineRequest{Key: key, Limit: math.MaxInt})
	if err != nil {
		m.Fatalf("Line: %v", err)
	}
	return page.Places
}
