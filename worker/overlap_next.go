package worker

import (
	"math"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// callNext runs, in the background, some of the tasks that were snoozed for key. Call it when the attempt a has
// released its lock on key, which it had for the time held.
func (o *overlap) callNext(a *attempt, key string, held time.Duration) {
	w, k := o.w, busyKey{o, key}
	running := w.room.ended(k)
	if o.InLine || w.delay.Load() == nil || w.life.Context().Err() != nil {
		return
	}
	most := max(1, int(w.places.Load())) // how many tasks of all keys may wait in place for long
	switch {
	case o.MaxWait < 0:
		most = 1 // the others would be snoozed again at once
	case o.pace.brisk():
		most = max(8, 4*most) // these wait only for a short time
	}
	// An idle asynq server looks for tasks at least every one and a half TaskCheckInterval.
	pickup := float64(3*w.checkInterval.Load()) / 2
	want := math.Ceil(pickup / float64(max(held, time.Millisecond)))
	if o.several() {
		n := o.concurrent(a)
		want *= float64(n)
		most += max(0, n-running) // a task that finds a free permit does not wait
	}
	called := w.room.call(k, int(max(1, min(want, float64(most)))), most)
	if len(called) == 0 {
		return
	}
	w.life.Go(func() {
		for _, t := range called {
			if !w.runSnoozed(t) {
				w.room.again(k, t)
			}
		}
	})
}

// runSnoozed runs a task during its pause. It returns false if asynq has not written the snooze yet.
func (w *tools) runSnoozed(t snoozedTask) bool {
	info, err := w.batched.GetTaskInfo(t.queue, t.id)
	switch verdict.RunSnoozed(info, err) {
	case verdict.LookAgain:
		return false
	case verdict.Now:
		if err := w.batched.RunTask(t.queue, t.id); err != nil {
			w.cfg.Logger.Debug("worker: could not run a snoozed task before the end of its pause", "job", envelope.Job(t.queue, t.id), "err", err)
		}
	}
	return true
}
