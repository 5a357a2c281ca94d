package worker

import (
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// No wait of this package may outlast its attempt: asynq would count an attempt whose time is up as a failure of the
// job, and archive the job after the last attempt. Each call to the locks' store has a bound of its own,
// joblock.Config.CallTimeout, which may be longer than the attempt. Such a call must not end with the attempt either: it
// may resume a lock that no attempt settles. So it goes on in the background.

// errLate is why a task is snoozed whose locks' store has not answered in the time of the attempt.
var errLate = &ownError{"no answer in the time of the attempt", joblock.ErrUnavailable}

// inTime returns the results of f, which runs in another goroutine. If f has not returned after the time in patience,
// inTime snoozes the task, and calls late with the value of f when f returns. If the task cannot be snoozed, inTime only
// calls f.
func inTime[T any](a *attempt, patience time.Duration, f func() (T, error), late func(T)) (T, error) {
	if a.w.delay.Load() == nil || !a.canSnooze() && !a.canSnoozeByArchive() {
		return f()
	}
	val, err, ok := bounded(a, patience, f, late)
	if ok {
		return val, err
	}
	snoozed := &snoozeError{err: errLate, delay: jittered(a.w.cfg.Snooze)}
	if a.canSnooze() {
		a.logSnoozed(snoozed)
		return val, snoozed
	}
	return val, a.archiveAndRerun(snoozed, nil, errLate)
}

// dropLate releases a lock that came too late for the attempt. lock may be nil.
func (a *attempt) dropLate(lock *joblock.Lock) {
	if lock != nil {
		a.release(joblock.Locks{lock}, reasonOver)
	}
}

// bounded returns the results of f, which runs in another goroutine, and true. If f has not returned after the time in
// patience, bounded returns false, and late is called with the value of f when f returns.
func bounded[T any](a *attempt, patience time.Duration, f func() (T, error), late func(T)) (val T, err error, ok bool) {
	var (
		decided atomic.Bool // by the first of f and patience
		done    = make(chan struct{})
	)
	a.w.open.background(func() {
		v, e := f()
		if decided.Swap(true) {
			late(v)
			return
		}
		val, err = v, e
		close(done)
	})
	if !sleep.AtMost(patience, done) {
		if !decided.Swap(true) {
			var none T
			return none, nil, false
		}
		<-done
	}
	return val, err, true
}
