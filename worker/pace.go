package worker

import (
	"sync"
	"time"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// pace computes the pauses of the tasks that one call of WithoutOverlapping snoozes. The pause grows with each
// snooze, so that tasks do not keep the server busy, and shrinks when a lock was held for a short time.
type pace struct {
	mu    sync.Mutex // guards pause
	pause time.Duration
}

// next returns the pause for the next snooze, and makes the one after that longer by a quarter. Before the jitter, it
// is from a second to most.
func (p *pace) next(most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := min(max(p.pause, time.Second), most)
	p.pause = d + d/4
	return verdict.Jittered(d)
}

// brisk reports whether a short wait in place beats a snooze: before the first snooze, and from the end of a
// lock that was held for 250 ms or less until the next snooze.
func (p *pace) brisk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pause <= time.Second
}

// ended lowers the next pause to at most four times held, the time for which a lock was held.
func (p *pace) ended(held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = min(p.pause, 4*held)
}
