package worker

import (
	"time"

	"github.com/joblock/toolkit/worker/internal/verdict"
)

// inTime returns the results of f, which runs in another goroutine. If f has not returned after patience, inTime
// snoozes the task, and calls late with the value of f when f returns. If the task cannot be snoozed, inTime only calls
// f.
func inTime[T any](a *attempt, patience time.Duration, f func() (T, error), late func(T)) (T, error) {
	if !a.tries.Configured || !a.canSnooze() && !a.canSnoozeByArchive() {
		return f()
	}
	val, err, ok := bounded(a, patience, f, late)
	if ok {
		return val, err
	}
	snoozed := &verdict.Snooze{Err: errLate, Delay: verdict.Jittered(a.w.cfg.Snooze)}
	if a.canSnooze() {
		a.logSnoozed(snoozed)
		return val, snoozed
	}
	return val, a.archiveAndRerun(snoozed, nil, errLate)
}
