package scheduler

import (
	"time"

	"github.com/joblock/toolkit/joblock"
)

// NewAt is New with a clock of the node's own.
func NewAt(locks *joblock.Locker, cfg *Config, now func() time.Time) (*Scheduler, error) {
	return newScheduler(locks, cfg, now)
}

// Of sets the program that the Scheduler takes itself for.
func (s *Scheduler) Of(program string) { s.program = program }
