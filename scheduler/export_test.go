package scheduler

import (
	"time"

	"github.com/joblock/toolkit/joblock"
)

// NewAt is New on a node whose clock is now.
func NewAt(locks *joblock.Locker, cfg *Config, now func() time.Time) (*Scheduler, error) {
	return newScheduler(locks, cfg, now)
}

// Of has the Scheduler pass for one of that program.
func (s *Scheduler) Of(program string) { s.program = program }
