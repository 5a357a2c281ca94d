package ministore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ministore"
	"github.com/joblock/toolkit/joblock/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		clock := &handClock{now: time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)}
		return &storetest.Harness{
			Store:   &ministore.Store{Now: clock.Now},
			Advance: clock.Advance,
			Step:    clock.Advance,
			Exact:   true,
		}
	})
}

// handClock moves only on command.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
