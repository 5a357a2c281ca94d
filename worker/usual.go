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
	// usualPeriod is the least time between two writes of the usual lengths by one Worker, and before the first. Thus a
	// process sends three commands a minute, however many tasks it runs.
	usualPeriod = time.Minute

	// usualBusy is the least time until the next try if another process is writing.
	usualBusy = 5 * time.Second

	// usualTime bounds a write.
	usualTime = 5 * time.Second

	// usualTypes bounds how many types wait for the next write.
	usualTypes = 200

	// usualKept is how long the store keeps the lengths after the latest write.
	usualKept = 30 * 24 * time.Hour
)

// usualTimes gathers how long attempts take, for operators who want to know whether a job hangs.
type usualTimes struct {
	mu      sync.Mutex
	next    time.Time // no write before
	writing bool
	lengths map[string][]int64 // in milliseconds, by type: those that are not written yet
}

// note adds the length of an attempt. due reports whether a write is due, which the caller then begins.
func (u *usualTimes) note(task string, took time.Duration) (due bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all, known := u.lengths[task]
	if len(task) > workerstats.MostType || !known && len(u.lengths) >= usualTypes {
		return false
	}
	if u.lengths == nil {
		u.lengths = make(map[string][]int64)
	}
	all = append(all, took.Milliseconds())
	u.lengths[task] = all[max(0, len(all)-workerstats.MostDurations):]
	due = !u.writing && !time.Now().Before(u.next)
	u.writing = u.writing || due
	return due
}

// take returns what is not written yet, and forgets it.
func (u *usualTimes) take() map[string][]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	lengths := u.lengths
	u.lengths = nil
	return lengths
}

// wrote ends a write. No other write begins within the pause.
func (u *usualTimes) wrote(pause time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.writing, u.next = false, time.Now().Add(pause)
}

// noteLength notes how long the handler has run, if it has succeeded in time: the length of a failure says little about how
// long an attempt should run. No job waits for the write, and a length that cannot be written is dropped.
func (a *attempt) noteLength(err error, length time.Duration) {
	if err != nil || a.ctx.Err() != nil || !a.w.usual.note(a.task.Type(), length) {
		return
	}
	a.w.life.Go(func() {
		pause := usualPeriod
		if err := a.w.writeUsual(); errors.Is(err, joblock.ErrHeld) {
			pause = usualBusy
		} else if err != nil {
			a.w.cfg.Logger.Debug("worker: could not write the usual durations of tasks, which are for display only", "err", err)
		}
		a.w.usual.wrote(pause)
	})
}

// writeUsual adds what is gathered to the table that all processes share.
func (w *tools) writeUsual() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), usualTime)
	defer cancel()
	lock, err := (*core.Locker)(w.locks).TryAcquire(ctx, keyspace.Usual, core.Options{OwnKey: true, Memo: true, Silent: true, Retain: usualKept})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx, core.Release{})) }()
	table, err := workerstats.DecodeDurations(lock.Memo())
	if err != nil {
		table = workerstats.Durations{} // figures for people: start again
	}
	table.Add(w.usual.take())
	return lock.WriteMemo(ctx, table.Encode())
}
