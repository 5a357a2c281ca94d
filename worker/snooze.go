package worker

import (
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/joblock"
)

// To snooze a task is to give it back to asynq for a while without charging it a retry,
// because it has not run. This file decides for how long: a task that carries locks, by a
// constant (snooze); one that WithoutOverlapping holds up, by a growing one (pace). asynq
// is told by an error, which the functions that Configure wraps recognise.

// snoozeError tells asynq to try the task again after delay, without charge.
type snoozeError struct {
	err   error
	delay time.Duration
}

func (e *snoozeError) Error() string { return "worker: snoozed without charge: " + e.err.Error() }

func (e *snoozeError) Unwrap() error { return e.err }

// busyPause is the longest pause if an earlier attempt of the same task has the lock. Most
// likely that one is about to be settled: its server was shut down, or its time was up. If
// it goes on, the task comes back at this pace, because asynq counts no snoozes and the
// pause cannot grow. That is bearable: it is one task for one attempt.
const busyPause = 2 * time.Second

// snooze returns the error that snoozes the task if err says that somebody has the lock, or
// that the store does not answer; nil otherwise.
func (w *Worker) snooze(err error) *snoozeError {
	var e *joblock.Error
	if !errors.As(err, &e) {
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

// canSnooze reports whether asynq will take the task back without charge: Configure was
// called, and the task has a retry left.
func (w *Worker) canSnooze(a *attempt) bool {
	if w.delay.Load() == nil {
		if !w.told.configure.Swap(true) {
			w.cfg.Logger.Warn("worker: Configure was not applied to the server's asynq.Config; busy locks are waited for in place")
		}
		return false
	}
	return a.retried < a.limit
}

func (w *Worker) tellSnoozed(a *attempt, snoozed *snoozeError) {
	w.cfg.Logger.Info("worker: task snoozed",
		"job", a.job(), "task", a.task.Type(), "delay", snoozed.delay, "cause", snoozed.err)
}

// jittered returns a pause of about d. asynq cuts delays to whole seconds. The jitter
// keeps tasks that were snoozed together from coming back together.
func jittered(d time.Duration) time.Duration {
	d = max(d, time.Second)
	return d + dice.N(d/4+1)
}

// pace is the back-off of one use of WithoutOverlapping. asynq counts no snoozes, but this
// process sees them: the pause grows with each, up to Config.Snooze, and is short again
// when a lock was held for a short time. So tasks that take turns are soon back, and tasks
// that wait for a long one do not keep the server busy.
type pace struct {
	mu    sync.Mutex // guards pause
	pause time.Duration
}

// next returns the pause of the next task that is snoozed, at most about most.
func (p *pace) next(most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := min(max(p.pause, time.Second), most)
	p.pause = d + d/4
	return jittered(d)
}

// brisk reports whether locks are held for such short times that a short wait in place
// beats a snooze, even if all places are taken. One snooze makes it false.
func (p *pace) brisk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pause <= time.Second
}

// ended notes for how long a lock was held.
func (p *pace) ended(held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = min(p.pause, 4*held)
}
