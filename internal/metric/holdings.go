package metric

import (
	"sync"

	"github.com/joblock/toolkit/joblock/event"
)

// Holdings counts the locks that a process holds, by the events of its Lockers.
type Holdings struct {
	mu    sync.Mutex
	alive map[holding]struct{}
}

// holding is a key, and the digest of the owner token that holds it.
type holding struct{ key, owner string }

// Observe returns by how much e changes the number of holdings: 1, 0 or -1. It returns 0 if a Park gets its answer after
// its lock was given up, because that holding has already ended.
func (h *Holdings) Observe(e event.Event) int {
	of := holding{e.Key, e.Owner}
	switch e.Kind {
	case event.Acquired, event.Resumed, event.Reclaimed:
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, known := h.alive[of]; known {
			return 0
		}
		if h.alive == nil {
			h.alive = make(map[holding]struct{})
		}
		h.alive[of] = struct{}{}
		return 1
	case event.Parked, event.Released, event.Lost:
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, known := h.alive[of]; !known {
			return 0
		}
		delete(h.alive, of)
		return -1
	}
	return 0
}

// Groups is the set of key groups seen so far.
type Groups struct{ known sync.Map }

// First reports whether group has not been seen before.
func (g *Groups) First(group string) bool {
	if _, known := g.known.Load(group); known {
		return false
	}
	_, known := g.known.LoadOrStore(group, nil)
	return !known
}
