package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
)

const (
	// spread is within what time the nodes come to a tick, each at a random moment of
	// its own, in steps: so the first has mostly written into the ledger before the
	// others read it, jobs of one instant are spread over the nodes, and those that a
	// node looks at in the same step share a round trip.
	spread     = 50 * time.Millisecond
	spreadStep = 10 * time.Millisecond

	// batch is how many ledgers are read in one round trip.
	batch = 500

	// How long to leave the store alone when it has not answered, at first and at most.
	firstPause = 500 * time.Millisecond
	lastPause  = 8 * time.Second
)

// Run runs the jobs until ctx ends. It then claims nothing any more, ends the contexts
// of running functions with cause ErrStopped, waits for them and returns nil. An outage
// of the store is waited out.
//
// Errors: one that names the jobs whose functions have not returned within Config.Grace;
// they are lost to this node, and run out one lease later. joblock.ErrClosed when the
// Locker was closed, joblock.ErrInvalid when it was not made by joblock.New. And one when
// Run is running already; when it has returned it may be called again.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.check("run"); err != nil {
		return err
	}
	s.mu.Lock()
	if s.running {
		s.mu.Unlock()
		return errRunning
	}
	s.running, s.turns = true, new(sync.WaitGroup)
	s.mu.Unlock()
	s.lookAgain()

	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	err := s.loop(ctx, work)
	stop(ErrStopped)
	err = errors.Join(err, s.settle())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	return err
}

// loop looks at jobs when their time has come. work is the context of what it starts.
func (s *Scheduler) loop(ctx, work context.Context) error {
	var synced time.Time // when the store's clock is to be asked for, if there is nothing else to ask
	for pause := firstPause; ctx.Err() == nil; {
		jobs, now := s.due()
		if len(jobs) == 0 && s.clock.synced() && now.Before(synced) {
			s.sleep(ctx, synced)
			continue
		}
		err := s.look(ctx, work, jobs)
		switch {
		case err == nil:
			pause = firstPause
			synced = s.clock.now().Add(s.cfg.Sync)
		case errors.Is(err, joblock.ErrClosed), errors.Is(err, joblock.ErrInvalid):
			return err
		case ctx.Err() == nil:
			s.cfg.Logger.Warn("scheduler: the store does not answer", "err", err)
			wait(ctx, pause/2+rand.N(pause/2))
			pause = min(2*pause, lastPause)
		}
	}
	return nil
}

// due takes the jobs that are to be looked at now, none while it is not known what
// time it is.
func (s *Scheduler) due() ([]*job, time.Time) {
	now := s.clock.now()
	if !s.clock.synced() {
		return nil, now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agenda.take(now, batch), now
}

// sleep waits until there is something to look at, or the given time.
func (s *Scheduler) sleep(ctx context.Context, until time.Time) {
	s.mu.Lock()
	if first, ok := s.agenda.first(); ok && first.Before(until) {
		until = first
	}
	s.mu.Unlock()
	timer := time.NewTimer(until.Sub(s.clock.now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.wake:
	}
}

// settle waits for what Run has started, Config.Grace at most.
func (s *Scheduler) settle() error {
	s.mu.Lock()
	turns := s.turns
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		turns.Wait()
	}()
	timer := time.NewTimer(s.cfg.Grace)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for j, lock := range s.held {
		lock.StopRenewing() // the function may be at work: a release would let another in at once
		names = append(names, j.name)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("scheduler: still running after a grace of %s: %s", s.cfg.Grace, strings.Join(names, ", "))
}

// wait sleeps, or until ctx ends, which it reports as false.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// soon is a random moment within spread after at, in steps.
func soon(at time.Time) time.Time { return within(spread, at) }

func within(d time.Duration, at time.Time) time.Time {
	return at.Truncate(spreadStep).Add(spreadStep * time.Duration(1+rand.N(int64(d/spreadStep))))
}
