package worker

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// This file snoozes tasks by way of asynq's archive, as the package comment says. The task keeps the payload, the
// headers and the count of retries.
//
// Alternatives that don't work: a clone of the task under a new ID would lose the ID, the Unique lock and the result.
// If this package moved the task before asynq has archived it, a command that asynq repeats for this attempt could
// archive or delete a later attempt.

const (
	// markWait is how long mark waits if another snooze still holds the task's mark, but no longer than for a quarter of
	// the time that the attempt has left. Either that snooze has just run the task again, and is about to release the
	// mark; or an operator has run the task before the end of the pause.
	markWait = 2 * time.Second

	// soonest is the first pause of rerun. Emptying asynq's archive in that pause deletes the task.
	soonest = 100 * time.Microsecond

	// rerunGiveUp is how long rerun tries; after that, only the keeper runs the task again. It is longer than asynq's
	// lease on the task, half a minute: until the lease ends, asynq repeats a failed write.
	rerunGiveUp = 45 * time.Second

	// mostInArchive is how many tasks of a Worker can be in the archive for a pause at the same time, if they cannot be
	// postponed. asynq deletes the oldest of more than 10,000 archived tasks, and there may be many Workers.
	mostInArchive = 500
)

// archiveSnoozeError is the error with which asynq archives a task that is snoozed by way of the archive.
type archiveSnoozeError struct {
	snoozed *verdict.Snooze
	kept    atomic.Pointer[string] // what asynq records as the last error; nil until the ErrorHandler is called
	failing chan struct{}          // closed when asynq is about to archive the task
}

// begins notes text, which asynq records as the last error. The ErrorHandler calls it.
func (e *archiveSnoozeError) begins(text string) {
	if e.kept.Swap(&text) == nil {
		close(e.failing)
	}
}

// recorded returns what asynq records as the last error, or "" if the ErrorHandler has not been called yet.
func (e *archiveSnoozeError) recorded() string {
	if kept := e.kept.Load(); kept != nil {
		return *kept
	}
	return ""
}

func (e *archiveSnoozeError) Error() string { return jobline.ArchiveText + e.snoozed.Err.Error() }

func (e *archiveSnoozeError) Unwrap() error { return e.snoozed }

// snoozeByArchive returns the error with which asynq archives a task that carries locks, for a snooze.
func (a *attempt) snoozeByArchive(snoozed *verdict.Snooze) error {
	if errors.Is(snoozed, joblock.ErrUnavailable) {
		return a.archiveAndRerun(snoozed, nil, nil) // no mark without the store
	}
	mark, err := a.mark()
	return a.archiveAndRerun(snoozed, mark, err)
}

// mark acquires the task's mark: a lock on the key keyspace.Again(a.job), bound to the job. If this process dies, the
// keeper finds the task by the mark. If another snooze keeps the mark, the error is joblock.ErrTimeout. If half of the
// attempt's time passes without an answer from the store, the error is joblock.ErrUnavailable.
func (a *attempt) mark() (*core.Lock, error) {
	left := a.left()
	mark, err, ok := bounded(a, left/2, func() (*core.Lock, error) { return a.tryMark(min(markWait, left/4)) }, a.dropLate)
	if !ok {
		return nil, errLate
	}
	return mark, err
}

func (a *attempt) tryMark(wait time.Duration) (*core.Lock, error) {
	ctx := context.WithoutCancel(a.ctx) // mark bounds the calls
	lock, err := a.w.locks.Acquire(ctx, keyspace.Again(a.job), core.OwnKey, joblock.MaxWait(wait))
	if err != nil {
		return nil, err
	}
	token, err := lock.Park(ctx, joblock.Reserve(a.w.cfg.Reserve), joblock.ForJob(a.job))
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	lock, err = a.w.locks.Resume(ctx, token, joblock.ForJob(a.job), joblock.Reserve(a.w.cfg.Reserve))
	return (*core.Lock)(lock), err
}

// archiveAndRerun returns the error with which asynq archives the task. As soon as asynq has archived the task, a
// goroutine moves the task to the tasks that wait for a retry, due when the pause ends, and releases mark. If this
// process cannot move the task, the keeper finds the task by the mark. If mark is nil, the task then stays in the
// archive. unmarked is the error of attempt.mark, or nil.
func (a *attempt) archiveAndRerun(snoozed *verdict.Snooze, mark *core.Lock, unmarked error) error {
	if unmarked != nil && !verdict.IsBusy(unmarked) { // busy: another snooze has the mark
		a.log().Warn("worker: could not mark a task that is snoozed by way of asynq's archive; if this process dies now, the task stays in the archive", "err", unmarked)
	}
	a.logSnoozed(snoozed)
	e := &archiveSnoozeError{snoozed: snoozed, failing: make(chan struct{})}
	due := time.Now().Add(snoozed.Delay)
	a.w.life.Go(func() {
		done := e.rerun(a, due)
		if !done {
			a.log().Error("worker: a snoozed task is still in asynq's archive; if keeper_runs_it is false, run the task by hand",
				"keeper_runs_it", mark != nil)
		}
		switch {
		case mark == nil:
		case done:
			a.release(core.Locks{mark}, verdict.ReasonOver)
		default:
			mark.StopRenewing()
		}
	})
	return e
}

// rerun waits until asynq has archived the task with the error e, and then moves the task to the tasks that wait for a
// retry, due at due. It returns true if the task is no longer in the archive, for whatever reason, and false after
// rerunGiveUp, or answerWait if Worker.Close was called: the task may be in the archive now or later.
func (e *archiveSnoozeError) rerun(a *attempt, due time.Time) bool {
	start := time.Now()
	sleep.AtMost(answerPoll, e.failing)
	for pause := soonest; ; pause = min(2*pause, 5*time.Second) {
		if a.w.batched.CanPostpone() && a.w.batched.Postpone(a.queue, a.id, cmp.Or(e.recorded(), e.Error()), due) == nil {
			return true
		}
		if pause > firstLook { // asynq has written by now, unless its Redis is slow
			if e.left(a, due) {
				return true
			}
			took := time.Since(start)
			if took > rerunGiveUp || took > answerWait && a.w.life.Context().Err() != nil {
				return false
			}
		}
		time.Sleep(pause)
	}
}

// left looks the task up, and takes the task out of the archive if asynq has archived it with the error e. It returns
// true if the task is neither in the archive nor about to be archived. With a version of asynq whose scripts are not
// known here, the task waits in the archive until due, or until Worker.Close: another server may run the task then.
func (e *archiveSnoozeError) left(a *attempt, due time.Time) bool {
	info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
	switch verdict.LeaveArchive(info, err, e.recorded()) {
	case verdict.LookAgain:
		if err != nil {
			a.log().Warn("worker: cannot look up a task that was snoozed by way of asynq's archive", "err", err)
		}
		return false
	case verdict.GiveUp:
		if err != nil {
			a.log().Warn("worker: a task that was snoozed by way of asynq's archive is gone from asynq: " +
				"it was run or deleted while it was in the archive, or the archive was full")
		}
		return true
	}
	if a.w.batched.CanPostpone() {
		return a.w.batched.Postpone(a.queue, a.id, info.LastErr, due) == nil
	}
	if a.w.inArchive.Add(1) <= mostInArchive {
		_ = sleep.For(a.w.life.Context(), time.Until(due))
	}
	defer a.w.inArchive.Add(-1)
	return a.w.inspector.RunTask(a.queue, a.id) == nil
}
