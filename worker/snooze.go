package worker

import (
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/joblock"
)

// snoozeError snoozes the attempt's task for the field delay. The functions that Configure wraps recognise a
// snoozeError.
type snoozeError struct {
	err   error
	delay time.Duration
}

func (e *snoozeError) Error() string { return "worker: snoozed without charge: " + e.err.Error() }

func (e *snoozeError) Unwrap() error { return e.err }

// busyPause is the longest pause if an earlier attempt of the same task has the lock. Most likely that attempt is about
// to be settled, because the server was shut down or the attempt's time was up. The pause does not grow if the earlier
// attempt runs on, because asynq counts no snoozes. The cost is bounded: one task comes back for one running attempt.
const busyPause = 2 * time.Second

// snooze returns an error that snoozes the task, if err says that somebody has the lock, that the store does not
// answer, or that the Worker or the Locker was closed. For any other err, snooze returns nil.
func (w *Worker) snooze(err error) *snoozeError {
	e, ok := as[*joblock.Error](err)
	if !ok {
		return nil
	}
	delay := w.cfg.Snooze
	switch {
	case errors.Is(e, joblock.ErrBusy):
		delay = min(delay, e.Remaining, busyPause)
	case errors.Is(e, joblock.ErrHeld), errors.Is(e, joblock.ErrTimeout):
		delay = min(delay, e.Remaining)
	case errors.Is(e, joblock.ErrUnavailable), errors.Is(e, joblock.ErrClosed):
	default:
		return nil
	}
	return &snoozeError{err: err, delay: jittered(delay)}
}

// canSnooze reports whether the task can be snoozed: Configure was called, and the task has a retry left.
func (a *attempt) canSnooze() bool {
	if a.w.delay.Load() == nil {
		if !a.w.told.configure.Swap(true) {
			a.w.cfg.Logger.Warn("worker: Configure was not applied to the server's asynq.Config; tasks wait in place for busy locks")
		}
		return false
	}
	return a.retried < a.limit
}

func (a *attempt) logSnoozed(snoozed *snoozeError) {
	a.log().Info("worker: task snoozed", "delay", snoozed.delay, "cause", snoozed.err)
}

// jittered raises d to at least a second, because asynq cuts delays to whole seconds, and adds up to a quarter. Without
// the jitter, tasks that were snoozed together would come back together.
func jittered(d time.Duration) time.Duration {
	d = max(d, time.Second)
	return d + dice.N(d/4+1)
}

// The type pace computes the pauses of the tasks that one use of WithoutOverlapping snoozes. The pause grows with each
// snooze in this process, up to Config.Snooze. The pause shrinks when a lock was held for a short time. So tasks come
// back soon if the locks are held for short times, and otherwise do not keep the server busy.
type pace struct {
	mu    sync.Mutex // guards pause
	pause time.Duration
}

// The method next returns the pause for the next snooze. Before the jitter, the pause is at most the parameter most.
func (p *pace) next(most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := min(max(p.pause, time.Second), most)
	p.pause = d + d/4
	return jittered(d)
}

// The method brisk reports whether locks are held for such short times that a short wait in place beats a snooze, even
// if all places are taken. After one snooze brisk returns false, until a lock was held for a short time.
func (p *pace) brisk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pause <= time.Second
}

// The method ended takes note of how long a lock was held.
func (p *pace) ended(held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = min(p.pause, 4*held)
}
