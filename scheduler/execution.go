package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/spec"
)

// executeDue executes what is due, one execution after the other, until Run ends. executeDue returns an error if the
// ledger could not be written or the lock was lost.
func (s *Scheduler) executeDue(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger) error {
	for ctx.Err() == nil && !s.isGone(j) {
		m, err := s.momentOf(j, l)
		if err != nil {
			return err
		}
		if l.Spec == "" { // a new job, or one that was forgotten
			s.enlistNew(ctx, j, l)
		}
		changed, news := l.Update(&j.Job, m, false)
		before := l.Encode()
		x, more, lost := l.Begin(&j.Job, m)
		if !changed && !more {
			return nil
		}
		// The end of Run must not end the context of this write. The write could have reached the store, and another
		// node would take over an execution that did not begin.
		if err := memo.Write(context.WithoutCancel(ctx), lock, l.Encode()); err != nil {
			return err
		}
		news = append(news, lost...)
		s.reportNews(j, news)
		if slices.ContainsFunc(news, func(n ledger.News) bool { return n.Kind == ledger.NewsSpec }) {
			s.tellSpec(ctx, j)
		}
		switch {
		case x == nil && !slices.ContainsFunc(lost, isLoss):
			return nil
		case x == nil:
			if err := s.pauseFailing(ctx, j, lock, l, errBrokenOff); err != nil {
				return err
			}
			continue
		case !s.admit(j, lock):
			return s.takeBack(ctx, j, lock, before)
		}
		if err := s.execute(ctx, j, lock, l); err != nil {
			return err
		}
		if len(l.Due) == 0 && !l.Backfilling() || j.AtOnce > 1 { // with AtOnce the other ticks are for lanes
			return nil
		}
		s.rereadOrders(ctx) // the job may have been paused
	}
	return nil
}

// errBrokenOff is the error of an execution that was broken off and that no node repeats.
var errBrokenOff = errors.New("the execution was broken off")

func isLoss(n ledger.News) bool { return n.Kind == ledger.NewsLost }

// The method admit says that an execution under the lock begins now, unless the job is gone. So no execution begins after
// Remove has returned.
func (s *Scheduler) admit(j *job, lock *joblock.Lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !j.gone {
		s.held[lock] = j
	}
	return !j.gone
}

// takeBack writes the ledger as it was before an execution that this node must not begin any more. Another node, or the
// job's successor on this node, then begins the execution.
func (s *Scheduler) takeBack(ctx context.Context, j *job, lock *joblock.Lock, before []byte) error {
	l, err := ledger.Decode(before)
	if err != nil {
		return err
	}
	return s.persist(ctx, j, lock, l)
}

// execute carries out the ledger's running execution, and writes the result into the ledger. The caller has called admit.
func (s *Scheduler) execute(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger) error {
	e := s.reportBegin(j, l.Execution)
	begun := s.clock.local()
	call := callOf(s.inForce(j, l).Spec, l, l.Execution)
	b := s.startBooking(ctx, j, lock, l)
	state, attempts, err := s.callUnder(ctx, lock, j, call, b.overrun)
	b.stop()
	e.Late, e.Attempts, e.Took, e.Err = 0, attempts, s.clock.local().Sub(begun), err
	m, _ := s.momentOf(j, l) // no error: executeDue has asked before, and Ledger.Spec has not changed since
	failed := s.followTasks(ctx, j, l, state)
	l.End(state, m.Now, attempts, err)
	_, skipped := l.Update(&j.Job, m, true)
	if lost := s.persist(ctx, j, lock, l); lost != nil {
		e.Kind, e.Err = EventBroken, errors.Join(lost, err)
		s.report(e)
		s.reportNews(j, b.left(nil, true))
		return lost
	}
	e.Kind = Kind(state)
	if state == ledger.Overlapped {
		e.Count = 1
	}
	s.report(e)
	s.reportNews(j, b.left(skipped, false))
	if slices.ContainsFunc(skipped, func(n ledger.News) bool { return n.Kind == ledger.NewsSpec }) {
		s.tellSpec(ctx, j)
	}
	return s.pauseFailing(ctx, j, lock, l, cmp.Or(err, failed))
}

// followTasks counts how the tasks of earlier ticks have ended, if the job has PauseAfter and that can be known. The running
// execution ends with the parameter state. The result is the error of the last task that has failed.
func (s *Scheduler) followTasks(ctx context.Context, j *job, l *ledger.Ledger, state ledger.State) (failed error) {
	if j.taskEnd == nil || j.pauseAfter == 0 {
		l.Tasks = nil
		return nil
	}
	for _, d := range slices.Clone(l.Tasks) {
		id := tickOf(j.name, d.Tick()).ID()
		end, err := j.taskEnd(ctx, id)
		switch {
		case err != nil:
			s.cfg.Logger.Warn("scheduler: how a task has ended is not known yet; the next tick asks again", "job", j.name, "task", id, "err", err)
			continue
		case !end.Ended:
			continue
		case end.Err != nil:
			failed = fmt.Errorf("task %s: %w", id, end.Err)
		}
		l.TaskEnded(d, end.Err == nil)
	}
	if state == ledger.Enqueued {
		l.FollowTask()
	}
	return failed
}

// reportBegin reports that an execution begins. The result is the Event.
func (s *Scheduler) reportBegin(j *job, x *ledger.Execution) Event {
	e := Event{Kind: EventStarted, Tick: tickOf(j.name, x.Tick()), Node: s.cfg.Node}
	if x.Broken > 0 {
		e.Kind = EventTakenOver
	}
	e.Late = time.UnixMilli(x.Start).Sub(e.Tick.At)
	if e.Tick.Cause == CauseTick {
		e.Late -= j.Delay
	}
	if e.Tick.Cause == CauseBackfill {
		e.Late = 0
	}
	s.report(e)
	return e
}

// pauseFailing pauses a job that has PauseAfter and has failed so often, the last time with the error in the parameter last.
// If the pause cannot be written, the next failure pauses the job.
func (s *Scheduler) pauseFailing(ctx context.Context, j *job, lock *joblock.Lock, l *ledger.Ledger, last error) error {
	if j.pauseAfter == 0 || l.Streak < j.pauseAfter {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	note := ledger.PauseNote(l.Streak, last)
	_, err := s.changeOrder(ctx, "pause", j.name, func(o *ledger.Order, l *ledger.Ledger, now time.Time) bool {
		return o.Pause(l, now, s.cfg.Node, note)
	})
	if err != nil {
		s.cfg.Logger.Error("scheduler: the job has failed too often, but is not paused", "job", j.name, "failures", l.Streak, "err", err)
		return nil
	}
	s.cfg.Logger.Error("scheduler: the job has failed too often, and is paused", "job", j.name, "failures", l.Streak, "err", last)
	l.Streak = 0
	return s.persist(ctx, j, lock, l)
}

// The type execCall is what a call of a job's function needs of the ledger.
type execCall struct {
	tick  ledger.Tick
	ticks spec.Spec // the spec in force
	last  time.Time // Ledger.LastTick
}

func callOf(ticks spec.Spec, l *ledger.Ledger, x *ledger.Execution) execCall {
	return execCall{x.Tick(), ticks, l.LastTick()}
}

// callUnder calls the job's function under the lock, and returns the result, the number of attempts and the last error. The
// caller has called admit. See job.call for overrun.
func (s *Scheduler) callUnder(ctx context.Context, lock *joblock.Lock, j *job, c execCall, overrun func(error)) (ledger.State, int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if j.cancel && c.tick.Cause != ledger.CauseBackfill {
		go s.cancelAtNextTick(ctx, j, c.ticks, c.last, cancel)
	}
	ctx, stop := lock.Context(ctx)
	defer stop()
	attempts, err := j.call(ctx, tickOf(j.name, c.tick), s.cfg.Logger, overrun)
	s.mu.Lock()
	delete(s.held, lock)
	s.mu.Unlock()
	switch cause := context.Cause(ctx); {
	case err == nil && j.task:
		return ledger.Enqueued, attempts, nil
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

// cancelAtNextTick cancels a function at the first tick after the time last, unless the job is paused at that tick.
// Then the next tick after the pause cancels the function: no node executes a paused tick.
func (s *Scheduler) cancelAtNextTick(ctx context.Context, j *job, ticks spec.Spec, last time.Time, cancel context.CancelCauseFunc) {
	for tick := ticks.Next(last); !tick.IsZero(); tick = ticks.Next(last) {
		if sleep.For(ctx, tick.Add(j.Delay).Sub(s.clock.now())) != nil {
			return
		}
		s.rereadOrders(ctx) // the job may have been paused a moment ago
		s.mu.Lock()
		order := s.orders.For(j.name)
		s.mu.Unlock()
		if !order.Skips(tick) {
			cancel(ErrOverlapped)
			return
		}
		if last = s.clock.now().Add(-j.Delay); last.Before(tick) {
			last = tick
		}
	}
}

// persist writes the ledger after an execution. persist retries as long as the lock lasts: without the write another
// node would execute the tick again.
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
