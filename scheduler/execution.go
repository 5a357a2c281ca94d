package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/policy"
	"github.com/joblock/toolkit/scheduler/spec"
)

// execution is an execution that has begun on this node.
type execution struct {
	*claims
	j     *job
	lock  *joblock.Lock    // of its lane
	x     ledger.Execution // as it has begun
	ticks spec.Spec        // the spec in force
	last  time.Time        // Ledger.LastTick when the execution began
	book  *book            // nil in a lane other than 0: the job's lock is free meanwhile
}

// with calls f with the job's ledger.
func (e *execution) with(ctx context.Context, f func(*book) error) error {
	if e.book != nil {
		return f(e.book)
	}
	return e.visit(ctx, e.j, f)
}

// runInLane calls run for an execution in a lane other than 0, and then frees the lane and the slot.
func (e *execution) runInLane(ctx context.Context) {
	defer e.freeSlot()
	_ = e.run(ctx) // after an error another node takes the execution over
	e.leave(e.j, e.x.Lane, e.lock)
	e.table.lookAgain(e.j)
}

// run calls the job's function, and writes the result into the ledger. An error means that this is no longer possible:
// another node takes the execution over.
func (e *execution) run(ctx context.Context) error {
	if !e.table.admit(e.j, e.lock) { // another node, or the job's successor on this node, begins the execution
		return e.settle(ctx, ledger.NotBegun, 0, nil)
	}
	event := e.reportBegin()
	begun := e.clock.local()
	stop := e.keepBook(ctx)
	state, attempts, err := e.call(ctx)
	stop()
	event.Late, event.Attempts, event.Took, event.Err = 0, attempts, e.clock.local().Sub(begun), err
	lost := e.settle(ctx, state, attempts, err)
	event.Kind = Kind(state)
	if state == ledger.Overlapped {
		event.Count = 1
	}
	if lost != nil {
		event.Kind, event.Count, event.Err = Broken, 0, errors.Join(lost, err)
	}
	e.report(event)
	if e.book != nil {
		e.book.report(ctx)
		e.book.groups = false
	}
	return lost
}

// reportBegin reports that the execution begins, and returns the Event.
func (e *execution) reportBegin() Event {
	event := Event{Kind: Started, Tick: tickOf(e.j.name, e.x.Tick()), Node: e.cfg.Node}
	if e.x.Broken > 0 {
		event.Kind = TakenOver
	}
	switch event.Tick.Cause {
	case CauseBackfill:
	case CauseTick:
		event.Late = time.UnixMilli(e.x.Start).Sub(event.Tick.At) - e.j.Delay
	default:
		event.Late = time.UnixMilli(e.x.Start).Sub(event.Tick.At)
	}
	e.report(event)
	return event
}

// keepBook keeps the ledger up to date until stop is called, if this node has the job's lock.
func (e *execution) keepBook(ctx context.Context) (stop func()) {
	if e.book == nil {
		return func() {}
	}
	e.book.groups, e.book.heldAt = true, e.clock.now()
	ctx, cancel := context.WithCancel(ctx)
	ctx, release := e.lock.Context(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { e.book.keep(ctx, time.UnixMilli(e.x.Start)) })
	return func() {
		cancel()
		ended.Wait()
		release()
	}
}

// call calls the job's function under the lock, and returns the result, the number of attempts and the last error.
func (e *execution) call(ctx context.Context) (ledger.State, int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if e.j.cancel && e.x.Cause != ledger.CauseBackfill {
		go e.cancelAtNextTick(ctx, cancel)
	}
	ctx, stop := e.lock.Context(ctx)
	defer stop()
	attempts, err := e.j.call(ctx, tickOf(e.j.name, e.x.Tick()), e.cfg.Logger, func(cause error) { e.overrun(ctx, cause) })
	e.table.ended(e.lock)
	switch cause := context.Cause(ctx); {
	case err == nil && e.j.task:
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

// cancelAtNextTick cancels the function at the first tick after e.last at which the job is not paused: no node executes
// a paused tick.
func (e *execution) cancelAtNextTick(ctx context.Context, cancel context.CancelCauseFunc) {
	last := e.last
	for tick := e.ticks.Next(last); !tick.IsZero(); tick = e.ticks.Next(last) {
		if sleep.For(ctx, tick.Add(e.j.Delay).Sub(e.clock.now())) != nil {
			return
		}
		e.reread(ctx) // the job may have been paused a moment ago
		if !e.orders.of(e.j.name).Skips(tick) {
			cancel(ErrOverlapped)
			return
		}
		if last = e.clock.now().Add(-e.j.Delay); last.Before(tick) {
			last = tick
		}
	}
}

// overrun reports that the function ignores the end of its context, or with a nil cause that it has returned. It also
// writes that into the ledger, if that is possible at once. See job.call.
func (e *execution) overrun(ctx context.Context, cause error) {
	if cause != nil {
		e.report(Event{
			Kind: Overrun, Tick: tickOf(e.j.name, e.x.Tick()), Node: e.cfg.Node, Err: cause,
			Took: e.clock.now().Sub(time.UnixMilli(e.x.Start)),
		})
	}
	set := func(l *ledger.Ledger) (bool, []ledger.News) {
		x := l.Lane(e.x.Lane)
		if x == nil || x.Fence != e.x.Fence {
			return false, nil // another node has taken the execution over
		}
		x.SetOverrun(e.clock.now(), cause)
		return true, nil
	}
	if e.book != nil {
		if e.lock.Err() == nil {
			e.book.during(ctx, set)
		}
		return
	}
	ctx, stop := e.lock.Context(context.WithoutCancel(ctx))
	defer stop()
	if err := e.with(ctx, func(b *book) error { return b.change(ctx, set) }); err != nil && ctx.Err() == nil {
		e.trouble(e.j, "write the ledger during an execution", err)
	}
}

// settle writes the result into the ledger, and in lane 0 what has become due meanwhile. It pauses a job that has failed
// too often. settle retries as long as the lock of the lane lasts: without the write another node would execute the
// tick again.
func (e *execution) settle(ctx context.Context, state ledger.State, attempts int, failure error) error {
	ctx, stop := e.lock.Context(context.WithoutCancel(ctx))
	defer stop()
	ended := false // the ledger has the end of the execution; the store may have it, too
	var failed error
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := e.with(ctx, func(b *book) error {
			err := b.change(ctx, func(l *ledger.Ledger) (bool, []ledger.News) {
				if x := l.Lane(e.x.Lane); x != nil && x.Fence == e.x.Fence {
					failed = e.followTasks(ctx, l, state)
				}
				if !l.End(&e.j.Job, e.x.Lane, e.x.Fence, state, e.clock.now(), attempts, failure) {
					return false, nil
				}
				ended = true
				if e.book == nil || state == ledger.NotBegun {
					return true, nil
				}
				m, _ := e.specs.moment(e.j, l) // no error: begin has asked before, and Ledger.Spec has not changed since
				return true, policy.Decide(&e.j.Job, l, m, policy.Sight{Phase: policy.After}).News
			})
			switch {
			case err != nil:
				return err
			case !ended:
				return fmt.Errorf("scheduler: another node has taken the execution over: %w", joblock.ErrLost)
			}
			return b.pauseFailing(ctx, cmp.Or(failure, failed))
		})
		switch {
		case err == nil:
			return nil
		case e.lock.Err() != nil, errors.Is(err, joblock.ErrClosed), errors.Is(err, joblock.ErrLost) && !ended, e.book != nil && errors.Is(err, joblock.ErrInvalid):
			return err
		}
		e.trouble(e.j, "write the ledger after an execution", err)
		if sleep.For(ctx, pause) != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// followTasks counts how the tasks of earlier ticks have ended, if the job has PauseAfter and TaskEnds. The execution
// ends with state. It returns the error of the last task that has failed.
func (e *execution) followTasks(ctx context.Context, l *ledger.Ledger, state ledger.State) (failed error) {
	if e.j.taskEnd == nil || e.j.pauseAfter == 0 {
		l.Tasks = nil
		return nil
	}
	for _, d := range slices.Clone(l.Tasks) {
		id := tickOf(e.j.name, d.Tick()).ID()
		ended, failure, err := e.j.taskEnd(ctx, id)
		switch {
		case err != nil:
			e.cfg.Logger.Warn("scheduler: the outcome of a task is not known yet; the next tick asks again", "job", e.j.name, "task", id, "err", err)
			continue
		case !ended:
			continue
		case failure != nil:
			failed = fmt.Errorf("task %s: %w", id, failure)
		}
		l.TaskEnded(d, failure == nil)
	}
	if state == ledger.Enqueued {
		l.FollowTask(e.x.Due)
	}
	return failed
}
