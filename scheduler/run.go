package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Run executes jobs until ctx ends. It then claims no more ticks, ends the contexts of running functions with cause
// ErrStopped, waits for the functions, and returns nil. It retries during an outage of the store. After it has
// returned, Run may be called again.
//
// Errors:
//
//	joblock.ErrClosed   the Locker was closed
//	joblock.ErrInvalid  the Locker was not made by joblock.New
//	others              Run is already running; or functions have not returned within Config.Grace. The text names the
//	                    jobs of these functions. The locks of these jobs are not renewed: each lock ends with its lease.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.check("run"); err != nil {
		return err
	}
	already := false
	s.table.do(func() { already, s.running = s.running, true })
	if already {
		return errors.New("scheduler: Run is already running")
	}
	s.started = new(sync.WaitGroup)
	s.presence.begin()
	s.table.recheckAll()

	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	s.started.Go(func() { s.presence.keep(work) })
	s.started.Go(func() { s.specs.keep(work) })
	err := s.dispatcher.loop(ctx, work)
	stop(ErrStopped)
	err = errors.Join(err, s.awaitStarted())
	s.table.do(func() { s.running = false })
	return err
}

// awaitStarted waits until all goroutines of this Run have returned, for at most Config.Grace. It returns an error if
// functions are still running then.
func (s *Scheduler) awaitStarted() error {
	grace, done := context.WithTimeout(context.Background(), s.cfg.Grace)
	started := s.started // the next Run has another one
	go func() {
		defer done()
		started.Wait()
	}()
	<-grace.Done()
	if names := s.table.strand(); len(names) > 0 {
		return fmt.Errorf("scheduler: still running after a grace of %s: %s", s.cfg.Grace, strings.Join(names, ", "))
	}
	return nil
}
