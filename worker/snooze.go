package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
)

// snoozeError makes the functions that Configure sets snooze the task for the time in the field delay.
type snoozeError struct {
	err   error
	delay time.Duration
}

// snoozeText begins the last error of a task that is snoozed by way of a retry. Another middleware may put text in front.
const snoozeText = "worker: snoozed without charge: "

func (e *snoozeError) Error() string { return snoozeText + e.err.Error() }

func (e *snoozeError) Unwrap() error { return e.err }

// busyPause is the longest pause, before the jitter, if an earlier attempt of the same task has the lock. Most likely
// the locks of that attempt are about to be settled, because the server was shut down or the attempt's time was up. The
// pause does not grow if the earlier attempt runs on, because asynq counts no snoozes. The cost is small: a running
// attempt makes only its own task come back.
const busyPause = 2 * time.Second

// The method snooze returns an error that snoozes the task, or nil if err is no reason to snooze. The reasons are that
// somebody has the lock, that the store did not answer, that the Worker or the Locker was closed, and that this build
// cannot read the record of the lock. The last is also logged.
func (w *Worker) snooze(err error) *snoozeError {
	if snoozed, ok := as[*snoozeError](err); ok {
		return snoozed
	}
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
	case errors.Is(e, door.ErrForeign):
		w.logDistrust(context.Background(), foreignRecord, "key", e.Key, "err", err)
	default:
		return nil
	}
	return &snoozeError{err: err, delay: jittered(delay)}
}

// canSnooze reports whether the task can be snoozed: Configure was called, and the task has a retry left in asynq,
// which may be the spare retry. Without Configure, canSnooze also logs a warning, once per Worker.
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

// The function jittered returns d, or a second if d is shorter, plus a random part of up to a quarter. asynq cuts
// delays to whole seconds. Without the random part, tasks that were snoozed together would come back together.
func jittered(d time.Duration) time.Duration {
	d = max(d, time.Second)
	return d + dice.N(d/4+1)
}

// The type pace computes the pauses of the tasks that one call of WithoutOverlapping snoozes. The pause grows with each
// snooze, so that tasks do not keep the server busy, and shrinks when a lock was held for a short time.
type pace struct {
	mu    sync.Mutex // guards pause
	pause time.Duration
}

// The method next returns the pause for the next snooze, and makes the pause after that longer by a quarter. Before the
// jitter, the result is from a second to the parameter most.
func (p *pace) next(most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := min(max(p.pause, time.Second), most)
	p.pause = d + d/4
	return jittered(d)
}

// The method brisk reports whether a short wait in place beats a snooze: before the first snooze, and from the end of a
// lock that was held for 250 ms or less until the next snooze.
func (p *pace) brisk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pause <= time.Second
}

// The method ended lowers the next pause to four times the parameter held: the time for which a lock was held.
func (p *pace) ended(held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = min(p.pause, 4*held)
}
