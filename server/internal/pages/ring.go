package pages

import (
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

const (
	ringEvery  = 30 * time.Second
	ringPoints = 120 // an hour
)

// Counts are how many locks are in which state.
type Counts struct {
	At       time.Time
	Held     int
	Parked   int
	Orphaned int
	Waiting  int
}

func countsOf(rows []Row, wants func(*Row) bool) Counts {
	var c Counts
	for i := range rows {
		r := &rows[i]
		if !wants(r) {
			continue
		}
		c.Waiting += r.Waiters
		if r.Inner() {
			continue // the key is the line of a limit
		}
		switch r.State {
		case joblock.StateHeld:
			c.Held++
		case joblock.StateParked:
			c.Parked++
		case joblock.StateOrphaned:
			c.Orphaned++
		}
	}
	return c
}

// A ring has the counts of the walks of the last hour.
type ring struct {
	mu     sync.Mutex
	points []Counts
}

func (r *ring) add(w *walk[Row]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.points); n > 0 && w.at.Sub(r.points[n-1].At) < ringEvery {
		return
	}
	c := countsOf(w.rows, func(row *Row) bool { return !row.Inner() || row.Role == ops.RoleGate })
	c.At = w.at
	if r.points = append(r.points, c); len(r.points) > ringPoints {
		r.points = r.points[1:]
	}
}

func (r *ring) list() []Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Counts(nil), r.points...)
}
