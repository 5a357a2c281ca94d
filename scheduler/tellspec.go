package scheduler

import (
	"context"
	"fmt"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// tellSpec makes all nodes look at a job whose spec this node has changed, within Config.Sync. Changes of many jobs at a
// time are told in few writes. Only a goroutine that Run has started may call tellSpec.
func (s *Scheduler) tellSpec(ctx context.Context, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.decided = true
	s.untold = ledger.AddName(s.untold, j.name)
	if s.telling {
		return
	}
	s.telling = true
	s.started.Go(func() { s.tellUntold(ctx) })
}

// tellUntold writes the names in s.untold into the orders, until there are none or ctx ends. At the end of ctx the names
// are dropped: this node stops, and the other nodes look at the next tick that they know of.
func (s *Scheduler) tellUntold(ctx context.Context) {
	trouble := ""
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		var names []string
		err := s.changeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			names, s.untold = s.untold, nil
			all.Specs.Add(fence, names)
			return true, nil
		})
		s.mu.Lock()
		if err != nil {
			for _, name := range names {
				s.untold = ledger.AddName(s.untold, name)
			}
		}
		if ctx.Err() != nil {
			s.untold = nil
		}
		left := len(s.untold)
		s.telling = left > 0
		s.mu.Unlock()
		if left == 0 {
			return
		}
		if err == nil {
			pause = firstPause
			continue
		}
		if text := fmt.Sprint(err); text != trouble {
			trouble = text
			s.cfg.Logger.Warn("scheduler: other nodes do not know yet that the specs of jobs have changed", "key", s.ordersKey, "jobs", left, "err", err)
		}
		_ = sleep.For(ctx, pause/2+dice.N(pause/2))
	}
}
