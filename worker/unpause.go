package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// endPauses starts the jobs of pauses that have ended, until ctx ends or the Locker is closed. Every process calls it,
// but only one at a time works on the end of a pause.
//
// A pause that has ended stays in the registry until its line is empty. So if a process dies while it starts jobs,
// another one continues.
func (w *Worker) endPauses(ctx context.Context) {
	wake := make(chan struct{}, 1)
	stop, err := jobs.Listen(ctx, w.locks, func(g jobs.Granted) {
		if g.Key == keyspace.ControlsChanged {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	})
	if err == nil {
		defer stop()
	}
	in := (*core.Locker)(w.locks)
	var under sync.Map // the IDs of the pauses that endPause works on
	var ends sync.WaitGroup
	defer ends.Wait()
	for ctx.Err() == nil {
		set, err := in.Controls().Fresh(ctx)
		if errors.Is(err, joblock.ErrClosed) {
			return
		}
		pause := idlePoll * w.cfg.Keeper.Interval
		if err != nil {
			set, pause = new(controls.Set), controls.MaxAge
			if ctx.Err() == nil && !errors.Is(err, joblock.ErrUnavailable) && w.rates.firstIn(time.Minute, "unread") {
				w.cfg.Logger.Error("worker: could not read the pauses and limits that operators have set; the last ones read stay in force; a process that has read none starts no job with a lock", "err", err)
			}
		}
		if set.Stale() {
			_ = in.ChangeControls(ctx, in.Settings().Holder, func(*controls.Set, int64, time.Time) error { return nil })
		}
		w.applyLimits(ctx)
		for _, p := range set.Pauses {
			if p.Ended(set.Now()) {
				if _, busy := under.LoadOrStore(p.ID, true); !busy {
					ends.Go(func() {
						defer under.Delete(p.ID)
						w.endPause(ctx, p)
					})
				}
			}
			if pause = min(pause, controls.MaxAge); !p.Until.IsZero() {
				pause = min(pause, max(p.Until.Sub(set.Now()), time.Millisecond))
			}
		}
		sleepOr(ctx, wake, pause)
	}
}

// idlePoll is the number of keeper intervals after which a process that knows of no pause reads the registry, unless it
// is notified of a change.
const idlePoll = 10

// sleepOr sleeps for d, or until wake.
func sleepOr(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// endPause starts the jobs that p has held back, in the order of their line, and then removes p from the registry. It
// does nothing while another process does that.
func (w *Worker) endPause(ctx context.Context, p controls.Pause) {
	in := (*core.Locker)(w.locks)
	lock, err := in.Acquire(ctx, keyspace.PauseEnd(p.Key), core.Options{OwnKey: true, Silent: true, Bounded: true, MaxRenew: driver.MaxPeriod})
	if err != nil {
		return
	}
	defer func() { _ = lock.Release(context.WithoutCancel(ctx), core.Release{}) }()
	ctx, cancel := lock.Context(ctx)
	defer cancel()
	e := &ending{w: w, pause: p, key: keyspace.Pause(p.Key), active: make(map[string]time.Time)}
	for started, empty := 0, false; ; {
		goesOn, err := e.goesOn(ctx)
		if err == nil && !goesOn {
			if err = e.putBack(ctx); err == nil {
				return
			}
		} else if err == nil {
			var n int
			n, empty, err = e.startSome(ctx)
			started += n
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, joblock.ErrClosed):
			return
		case err != nil:
			w.cfg.Logger.Warn("worker: a pause has ended, but its jobs could not be started; trying again", "key", p.Key, "err", err)
		case goesOn && empty:
			if err = w.forgetPause(ctx, p); err == nil {
				w.cfg.Logger.Info("worker: a pause has ended, and its jobs were started", "key", p.Key, "jobs", started, "by", p.By, "note", p.Note)
				return
			}
		}
		if sleep.For(ctx, endPoll) != nil {
			return
		}
	}
}

// endPoll is the pause between two looks at the jobs of a pause that has ended: a job may be active until asynq has
// snoozed it.
const endPoll = 100 * time.Millisecond

// forgetPause removes p from the registry.
func (w *Worker) forgetPause(ctx context.Context, p controls.Pause) error {
	in := (*core.Locker)(w.locks)
	return in.ChangeControls(ctx, in.Settings().Holder, func(set *controls.Set, _ int64, _ time.Time) error {
		if now := set.Find(p.Key); now != nil && now.ID == p.ID {
			set.Remove(p.Key)
		}
		return nil
	})
}

// ending is the end of a pause.
type ending struct {
	w      *Worker
	pause  controls.Pause
	key    string
	active map[string]time.Time // since when jobs have been found active
	freed  []string             // jobs that have lost their places since goesOn was last true
}

// goesOn reports whether the registry still has the pause as one that has ended. It does not if the key was paused
// again.
func (e *ending) goesOn(ctx context.Context) (bool, error) {
	set, err := (*core.Locker)(e.w.locks).Controls().Fresh(ctx)
	if err != nil {
		return false, err
	}
	now := set.Find(e.pause.Key)
	goesOn := now != nil && now.ID == e.pause.ID && now.Ended(set.Now())
	if goesOn {
		e.freed = nil
	}
	return goesOn, nil
}

// putBack gives the jobs in e.freed their places back. Call it if the key was paused again: a job that the new pause
// has held back just before it lost its place would otherwise not be started at the end of that pause.
func (e *ending) putBack(ctx context.Context) error {
	if len(e.freed) == 0 {
		return nil
	}
	var takes []core.Take
	for _, job := range e.freed {
		takes = append(takes, behind(e.pause, job))
	}
	for _, taken := range (*core.Locker)(e.w.locks).Take(ctx, "pause", takes) {
		if taken.Err != nil && !verdict.IsBusy(taken.Err) {
			return taken.Err
		}
	}
	e.freed = nil
	return nil
}

// startSome starts the next jobs in line and takes them out of it. empty is true if no job waits.
func (e *ending) startSome(ctx context.Context) (started int, empty bool, err error) {
	var line []string
	st, err := e.w.locks.Status(ctx, e.key)
	if err != nil {
		return 0, false, err
	}
	if st[0].Locked() && st[0].Job != "" {
		line = append(line, st[0].Job)
	}
	for place, err := range jobs.Line(ctx, e.w.locks, e.key) {
		if err != nil {
			return 0, false, err
		}
		if line = append(line, place.Job); len(line) == driver.MaxBatch {
			break
		}
	}
	var done []core.JobRelease
	for _, job := range line {
		over, uerr := e.w.next.Unpause(job)
		if uerr != nil {
			err = uerr
			break
		}
		if !over && e.activeFor(job) < archivePatience { // later asynq does not snooze it any more: it runs
			continue
		}
		done = append(done, core.JobRelease{Key: e.key, Job: job, Reason: reasonResumed})
	}
	if goesOn, gerr := e.goesOn(ctx); gerr != nil || !goesOn {
		return 0, false, gerr // the jobs that have started may be held back again, by their places
	}
	for _, r := range done {
		e.freed = append(e.freed, r.Job)
	}
	// Free the first in line last: it has the key, which would otherwise be given to the next job.
	slices.Reverse(done)
	for _, ferr := range (*core.Locker)(e.w.locks).FreeJobs(ctx, nil, done) {
		if errors.Is(ferr, joblock.ErrUnavailable) {
			err = ferr
		}
	}
	return len(done), len(line) == 0, err
}

// activeFor returns for how long the job has been found active.
func (e *ending) activeFor(job string) time.Duration {
	since, known := e.active[job]
	if !known {
		since = time.Now()
		e.active[job] = since
	}
	return time.Since(since)
}
