package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// executeDue executes what is due, one after the other, until Run ends. It fails if the
// ledger could not be written or the lock was lost.
func (s *Scheduler) executeDue(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger) error {
	for ctx.Err() == nil {
		m := s.momentOf(j, l)
		changed, news := l.Update(&j.Job, m, false)
		x, more, lost := l.Begin(&j.Job, m)
		if !changed && !more {
			return nil
		}
		// Not cut short by the end of Run: another node would have to take over an
		// execution that is on record but did not begin.
		if err := memo.Write(context.WithoutCancel(ctx), lock, l.Encode()); err != nil {
			return err
		}
		s.reportNews(j, append(news, lost...))
		if x == nil {
			return nil
		}
		if err := s.execute(ctx, j, lock, l); err != nil {
			return err
		}
		if len(l.Due) == 0 {
			return nil
		}
		s.rereadOrders(ctx) // the job may have been paused
	}
	return nil
}

// execute carries out the ledger's present execution, and writes how it ended.
func (s *Scheduler) execute(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger) error {
	x := l.Execution
	e := Event{Kind: EventStarted, Tick: tickOf(j.name, x.Tick()), Node: s.cfg.Node}
	if x.Broken > 0 {
		e.Kind = EventTakenOver
	}
	e.Late = time.UnixMilli(x.Start).Sub(e.Tick.At)
	if e.Tick.Cause == CauseTick {
		e.Late -= j.Delay
	}
	s.report(e)

	begun := s.clock.local()
	state, attempts, err := s.callUnder(ctx, lock, j, l)
	e.Late, e.Attempts, e.Took, e.Err = 0, attempts, s.clock.local().Sub(begun), err
	m := s.momentOf(j, l)
	l.End(state, m.Now, attempts, err)
	_, skipped := l.Update(&j.Job, m, true)
	if lost := s.persist(ctx, j, lock, l); lost != nil {
		e.Kind, e.Err = EventBroken, errors.Join(lost, err)
		s.report(e)
		return lost
	}
	e.Kind = Kind(state)
	if state == ledger.Overlapped {
		e.Count = 1
	}
	s.report(e)
	s.reportNews(j, skipped)
	return nil
}

// callUnder calls the job's function under the lock, and returns how that ended.
func (s *Scheduler) callUnder(ctx context.Context, lock *joblock.Lock, j *job, l *ledger.Ledger) (ledger.State, int, error) {
	fnCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if j.overlap == overlapCancel {
		watchCtx, end := context.WithCancel(ctx)
		defer end()
		go s.cancelAtNextTick(watchCtx, j, l.LastTick(), cancel)
	}
	fnCtx, stop := lock.Context(fnCtx)
	defer stop()
	s.setHeld(j, lock)
	defer s.setHeld(j, nil)
	attempts, err := j.call(fnCtx, tickOf(j.name, l.Execution.Tick()), s.cfg.Logger)
	switch cause := context.Cause(fnCtx); {
	case err == nil:
		return ledger.Done, attempts, nil
	case errors.Is(err, errTaskOverlaps) && cause == nil:
		return ledger.Overlapped, attempts, err
	case errors.Is(cause, ErrOverlapped):
		return ledger.Cancelled, attempts, err
	case errors.Is(cause, ErrStopped):
		return ledger.Interrupted, attempts, err
	}
	return ledger.Failed, attempts, err
}

// cancelAtNextTick cancels a function at the first tick after last that is not paused: a
// paused tick is not executed in its place.
func (s *Scheduler) cancelAtNextTick(ctx context.Context, j *job, last time.Time, cancel context.CancelCauseFunc) {
	for tick := j.Spec.Next(last); !tick.IsZero(); tick = j.Spec.Next(later(tick, s.clock.now().Add(-j.Delay))) {
		if sleep.For(ctx, tick.Add(j.Delay).Sub(s.clock.now())) != nil {
			return
		}
		s.rereadOrders(ctx) // it may have been paused a moment ago
		if !s.orderOf(j).Skips(tick) {
			cancel(ErrOverlapped)
			return
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// persist writes the ledger after an execution. It tries for as long as the lock lasts:
// without the record the tick is executed again.
func (s *Scheduler) persist(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger) error {
	ctx = context.WithoutCancel(ctx)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := memo.Write(ctx, lock, l.Encode())
		if err == nil || lock.Err() != nil || errors.Is(err, joblock.ErrClosed) || errors.Is(err, joblock.ErrInvalid) {
			return err
		}
		s.reportTrouble(j, "write the ledger after an execution", err)
		_ = sleep.For(ctx, pause)
	}
}

// setHeld records the lock under which j's function runs; nil when it has returned.
func (s *Scheduler) setHeld(j *job, lock *joblock.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock == nil {
		delete(s.held, j)
	} else {
		s.held[j] = lock
	}
}
