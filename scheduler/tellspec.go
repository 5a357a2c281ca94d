package scheduler

import (
	"context"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// tellSpec makes all nodes look at a job whose spec this node has changed, within Config.Sync. Changes of many jobs at a
// time are told in few writes. Only a goroutine that Run has started may call tellSpec.
func (s *Scheduler) tellSpec(ctx context.Context, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untold = append(s.untold, j.name)
	if len(s.untold) > 1 {
		return // the goroutine is at work
	}
	s.started.Go(func() {
		for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
			told := 0
			err := s.changeOrders(ctx, func(all *ledger.Orders, fence int64) (bool, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				told = len(s.untold)
				all.Specs.Add(fence, s.untold)
				return true, nil
			})
			s.mu.Lock()
			if err == nil {
				s.untold = s.untold[told:]
			}
			done := len(s.untold) == 0
			s.mu.Unlock()
			if done {
				return
			}
			if err != nil {
				_ = sleep.For(ctx, pause/2+dice.N(pause/2))
			}
		}
		s.mu.Lock()
		s.untold = nil // this node stops; the other nodes look at the next tick that they know of
		s.mu.Unlock()
	})
}
