package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
)

const (
	// durationsPeriod is the least time between two writes of the durations by one Worker, and before the first. So a
	// process sends three commands a minute, however many tasks it runs.
	durationsPeriod = time.Minute

	// durationsBusy is the least time until the next try if another process is writing.
	durationsBusy = 5 * time.Second

	// durationsTimeout bounds a write.
	durationsTimeout = 5 * time.Second

	// durationsTypes bounds how many types wait for the next write.
	durationsTypes = 200

	// durationsKept is how long the store keeps the lengths after the latest write.
	durationsKept = 30 * 24 * time.Hour
)

// durations gathers how long attempts take, for operators who want to know whether a job hangs.
type durations struct {
	mu      sync.Mutex
	next    time.Time // the earliest time of the next write
	writing bool
	lengths map[string][]int64 // in milliseconds, by type: those that are not written yet
}

// note adds the length of an attempt. due reports whether a write is due, which the caller then begins.
func (d *durations) note(task string, took time.Duration) (due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all, known := d.lengths[task]
	if len(task) > workerstats.MostType || !known && len(d.lengths) >= durationsTypes {
		return false
	}
	if d.lengths == nil {
		d.lengths = make(map[string][]int64)
	}
	all = append(all, took.Milliseconds())
	d.lengths[task] = all[max(0, len(all)-workerstats.MostDurations):]
	due = !d.writing && !time.Now().Before(d.next)
	d.writing = d.writing || due
	return due
}

// take returns what is not written yet, and forgets it.
func (d *durations) take() map[string][]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	lengths := d.lengths
	d.lengths = nil
	return lengths
}

// wrote ends a write. No other write begins within the pause.
func (d *durations) wrote(pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writing, d.next = false, time.Now().Add(pause)
}

// noteDuration notes how long the handler has run, if it has succeeded in time: the length of a failure says little about how
// long an attempt should run. No job waits for the write, and a length that cannot be written is dropped.
func (a *attempt) noteDuration(err error, length time.Duration) {
	if err != nil || a.ctx.Err() != nil || !a.w.durations.note(a.task.Type(), length) {
		return
	}
	a.w.life.Go(func() {
		pause := durationsPeriod
		if err := a.w.writeDurations(); errors.Is(err, joblock.ErrHeld) {
			pause = durationsBusy
		} else if err != nil {
			a.w.cfg.Logger.Debug("worker: could not write the usual durations of tasks, which are for display only", "err", err)
		}
		a.w.durations.wrote(pause)
	})
}

// writeDurations adds what is gathered to the table that all processes share.
func (w *tools) writeDurations() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), durationsTimeout)
	defer cancel()
	lock, err := (*core.Locker)(w.locks).TryAcquire(ctx, keyspace.Durations, core.Options{OwnKey: true, Memo: true, Silent: true, Retain: durationsKept})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx, core.Release{})) }()
	table, err := workerstats.DecodeDurations(lock.Memo())
	if err != nil {
		table = workerstats.Durations{} // the figures are only for display: start again from none
	}
	table.Add(w.durations.take())
	return lock.WriteMemo(ctx, table.Encode())
}
