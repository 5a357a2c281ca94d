package peer

import (
	"cmp"
	"context"
	"sync"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Placed is a Held that knows its place in the order of all that had the key: of a
// library that is open to being looked at, with Options.Places.
type Placed interface {
	Fence() int64 // grows with every holding
	// Joined is when it took its place in the queue, in µs by the server's clock; 0
	// if it did not have to wait.
	Joined() int64
}

// places is a Store that remembers when calls took their places in the queue: the
// server does one call after the other, so by its clock there is no doubt who came
// first.
type places struct {
	driver.Store

	mu      sync.Mutex
	byOwner map[string]int64
}

func newPlaces(s driver.Store) *places { return &places{Store: s, byOwner: make(map[string]int64)} }

func (p *places) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	r, err := p.Store.Acquire(ctx, req)
	if err == nil && r.Outcome == driver.OutcomeHeld && req.Inbox != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.byOwner[req.Owner] = cmp.Or(p.byOwner[req.Owner], r.Now.UnixMicro())
	}
	return r, err
}

func (p *places) take(owner string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer delete(p.byOwner, owner)
	return p.byOwner[owner]
}

// placed is an ourHeld with its place.
type placed struct {
	*ourHeld
	joined int64
}

func (h placed) Fence() int64  { return (*joblock.Lock)(h.ourHeld).Fence() }
func (h placed) Joined() int64 { return h.joined }
