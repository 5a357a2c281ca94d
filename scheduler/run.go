package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// The first and the longest pause after a read that the store has not answered.
const firstPause, lastPause = 500 * time.Millisecond, 8 * time.Second

// Run executes jobs until ctx ends. Then Run claims no more ticks, ends the contexts of running functions with cause
// ErrStopped, waits for the functions, and returns nil. During an outage of the store Run retries. After Run has
// returned, Run may be called again.
//
// Errors:
//
//	joblock.ErrClosed   the Locker was closed
//	joblock.ErrInvalid  the Locker was not made by joblock.New
//	others              Run is already running; or functions have not returned within Config.Grace. The text names the
//	                    jobs of these functions. Nobody renews the locks of these jobs: each lock ends with its lease.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.check("run"); err != nil {
		return err
	}
	s.mu.Lock()
	if s.running {
		s.mu.Unlock()
		return errors.New("scheduler: Run is already running")
	}
	s.running, s.started, s.nodeID = true, new(sync.WaitGroup), newNodeID()
	s.mu.Unlock()
	s.recheckAll()

	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	s.started.Go(func() { s.keepRoster(work) })
	s.started.Go(func() { s.keepSpecs(work) })
	err := s.loop(ctx, work)
	stop(ErrStopped)
	err = errors.Join(err, s.awaitStarted())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	return err
}

// loop dispatches due jobs until ctx ends. work is the context of the goroutines that loop starts.
func (s *Scheduler) loop(ctx, work context.Context) error {
	var syncAt time.Time // when to ask for the store's clock if no job is due before
	for pause := firstPause; ctx.Err() == nil; {
		jobs, now := s.takeDue()
		if len(jobs) == 0 && s.clock.synced() && now.Before(syncAt) {
			s.sleep(ctx, syncAt)
			continue
		}
		err := s.dispatch(ctx, work, jobs)
		switch {
		case err == nil:
			pause = firstPause
			syncAt = s.clock.now().Add(s.cfg.Sync)
		case errors.Is(err, joblock.ErrClosed), errors.Is(err, joblock.ErrInvalid):
			return err
		case ctx.Err() == nil:
			if err != errOrdersUnread { // of which refuseOrders tells
				s.cfg.Logger.Warn("scheduler: the store does not answer", "err", err)
			}
			_ = sleep.For(ctx, pause/2+dice.N(pause/2))
			pause = min(2*pause, lastPause)
		}
	}
	return nil
}

// awaitStarted waits until all goroutines of this Run have returned, for at most Config.Grace. awaitStarted returns an
// error if functions are still running then.
func (s *Scheduler) awaitStarted() error {
	grace, done := context.WithTimeout(context.Background(), s.cfg.Grace)
	started := s.started // the next Run has another one
	go func() {
		defer done()
		started.Wait()
	}()
	<-grace.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for lock, j := range s.held {
		lock.StopRenewing() // not Release: the function may be at work, and another node would start at once
		names = append(names, j.name)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("scheduler: still running after a grace of %s: %s", s.cfg.Grace, strings.Join(names, ", "))
}
