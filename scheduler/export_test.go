package scheduler

import (
	"time"

	"github.com/joblock/toolkit/joblock"
)

// NewAt is New with a clock of the node's own.
func NewAt(locks *joblock.Locker, cfg *Config, now func() time.Time) (*Scheduler, error) {
	s, err := New(locks, cfg)
	if err == nil {
		s.clock.local = now
	}
	return s, err
}

// Unsent returns how many jobs' new specs the node has to announce to the other nodes.
func (s *Scheduler) Unsent() int {
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	return len(s.specs.unsent)
}

// Of sets the program that the Scheduler takes itself for.
func (s *Scheduler) Of(program string) { s.program = program }
