package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// claim takes the lock of a job that has something to do, and does it. It gives its slot
// back.
func (s *Scheduler) claim(work context.Context, j *job) {
	defer func() { <-s.slots }()
	lock, err := s.locks.TryAcquire(work, j.key, s.lockOptions()...)
	if err != nil {
		if !errors.Is(err, joblock.ErrHeld) && work.Err() == nil { // another was first
			s.fail(j, "take the lock", err)
		}
		s.lookAt(j, soon(s.clock.now().Add(settling)))
		return
	}
	s.turn(work, j, lock)
}

// standBy waits in line for the lock of a job that another node runs. Mostly it gets it
// when the run is done, and finds nothing to do. It gives its place among the standbys
// back.
func (s *Scheduler) standBy(work context.Context, j *job) {
	lock, err := s.locks.Acquire(work, j.key, s.waitOptions()...)
	<-s.standbys
	if err != nil {
		if work.Err() == nil {
			s.fail(j, "wait in line for the lock", err)
		}
		s.lookAt(j, soon(s.clock.now().Add(unanswered)))
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		s.reread(work)
		s.turn(work, j, lock)
	default:
		s.release(work, lock)
		s.lookAt(j, soon(s.clock.now().Add(settling)))
	}
}

// turn does what the ledger says while it holds the lock, and releases it.
func (s *Scheduler) turn(work context.Context, j *job, lock *joblock.Lock) {
	l, err := decodeLedger(lock.Memo())
	if err != nil {
		s.release(work, lock)
		s.complain(j, err)
		return
	}
	err = s.serve(work, j, lock, l)
	s.release(work, lock)
	if err != nil {
		s.fail(j, "write the ledger", err)
		s.lookAt(j, soon(s.clock.now().Add(settling)))
		return
	}
	s.well(j)
	s.lookNext(j, l)
}

// serve runs what is due, one after the other, until Run ends. It fails if the ledger could
// not be written, or the lock was lost.
func (s *Scheduler) serve(work context.Context, j *job, lock *joblock.Lock, l *ledger) error {
	for work.Err() == nil {
		m := s.moment(j, l)
		changed, news := l.update(j, m, false)
		r, more, lost := l.next(j, m)
		if !changed && !more {
			return nil
		}
		// Not cut short by the end of Run: a run that is on record and was not begun
		// would have to be taken over.
		if err := lock.SetMemo(context.WithoutCancel(work), l.encode()); err != nil {
			return err
		}
		s.tell(append(news, lost...)...)
		if r == nil {
			return nil
		}
		if err := s.run(work, j, lock, l); err != nil {
			return err
		}
		if len(l.Due) == 0 {
			return nil
		}
		s.reread(work) // it may have been paused
	}
	return nil
}

// run runs what the ledger has begun, and settles it.
func (s *Scheduler) run(work context.Context, j *job, lock *joblock.Lock, l *ledger) error {
	r := l.Run
	e := Event{Kind: EventStarted, Tick: r.tick(j.name), Node: s.cfg.Node}
	if r.Broken > 0 {
		e.Kind = EventTakenOver
	}
	e.Late = time.UnixMilli(r.Start).Sub(e.Tick.At)
	if r.cause() == CauseTick {
		e.Late -= j.delay
	}
	s.tell(e)

	begun := s.clock.local()
	state, attempts, err := s.call(work, j, lock, l)
	e.Late, e.Attempts, e.Took, e.Err = 0, attempts, s.clock.local().Sub(begun), err
	m := s.moment(j, l)
	l.end(state, m.now, attempts, err)
	_, skipped := l.update(j, m, true)
	if lost := s.persist(work, j, lock, l); lost != nil {
		e.Kind, e.Err = EventBroken, errors.Join(lost, err)
		s.tell(e)
		return lost
	}
	e.Kind = Kind(state)
	if state == StateOverlapped {
		e.Count = 1
	}
	s.tell(append([]Event{e}, skipped...)...)
	return nil
}

// call has the function run under the lock, and says how that ended.
func (s *Scheduler) call(work context.Context, j *job, lock *joblock.Lock, l *ledger) (State, int, error) {
	ctx, cancel := context.WithCancelCause(work)
	defer cancel(nil)
	if j.overlap == overlapCancel {
		overlap, end := context.WithCancel(work)
		defer end()
		go s.overlap(overlap, j, time.UnixMilli(l.Last), cancel)
	}
	ctx, stop := lock.Context(ctx)
	defer stop()
	s.hold(j, lock)
	defer s.hold(j, nil)
	attempts, err := j.call(ctx, l.Run.tick(j.name), s.cfg.Logger)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return StateDone, attempts, nil
	case errors.Is(err, errTaskOverlaps) && cause == nil:
		return StateOverlapped, attempts, err
	case errors.Is(cause, ErrOverlapped):
		return StateCancelled, attempts, err
	case errors.Is(cause, ErrStopped):
		return StateInterrupted, attempts, err
	}
	return StateFailed, attempts, err
}

// overlap cancels a running function when the next tick comes, or rather the first one
// that is not paused, for nothing runs in place of what a paused tick would end.
func (s *Scheduler) overlap(ctx context.Context, j *job, last time.Time, cancel context.CancelCauseFunc) {
	for tick := j.spec.Next(last); !tick.IsZero(); tick = j.spec.Next(later(tick, s.clock.now().Add(-j.delay))) {
		if !wait(ctx, tick.Add(j.delay).Sub(s.clock.now())) {
			return
		}
		s.reread(ctx) // it may have been paused a moment ago
		if !s.orderOf(j).pausedAt(tick) {
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

// orderOf is what people have asked for the job, as last read.
func (s *Scheduler) orderOf(j *job) order {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders.Jobs[j.name]
}

// persist writes the ledger after a run, for as long as the lock lasts: what is not
// written is run again.
func (s *Scheduler) persist(work context.Context, j *job, lock *joblock.Lock, l *ledger) error {
	work = context.WithoutCancel(work)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := lock.SetMemo(work, l.encode())
		if err == nil || lock.Err() != nil || errors.Is(err, joblock.ErrClosed) || errors.Is(err, joblock.ErrInvalid) {
			return err
		}
		s.fail(j, "write the ledger after a run", err)
		wait(work, pause)
	}
}

// hold notes which lock the job's function runs under, nil when it has ended.
func (s *Scheduler) hold(j *job, lock *joblock.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lock == nil {
		delete(s.held, j)
	} else {
		s.held[j] = lock
	}
}

// reread reads the orders. If they cannot be read those before them stand.
func (s *Scheduler) reread(work context.Context) {
	wrote := s.written()
	views, err := s.locks.Peek(work, s.control)
	switch {
	case err == nil && !views[0].Now.IsZero():
		s.heed(views[0].Memo, wrote)
	case err != nil && work.Err() == nil:
		s.cfg.Logger.Warn("scheduler: orders cannot be read, those before them stand", "key", s.control, "err", err)
	}
}

// release gives a lock back. Nothing else depends on its error: what has no answer is
// repeated in the background, and of a lock that was lost there is nothing to give back.
func (s *Scheduler) release(work context.Context, lock *joblock.Lock) {
	if err := lock.Release(work); err != nil && !errors.Is(err, joblock.ErrLost) { // that was told
		s.cfg.Logger.Warn("scheduler: release", "key", lock.Key(), "err", err)
	}
}
