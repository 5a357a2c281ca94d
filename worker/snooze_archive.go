package worker

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// This file snoozes tasks by way of asynq's archive, as the package comment says. Inspector.RunTask takes a task out of
// the archive with the same ID, payload, headers, options, asynq.Unique lock and count of retries.
//
// During the pause this process holds a mark: a lock that is bound to the job. If the process dies, the keeper finds
// the mark and calls RunTask.
//
// Roads not taken: a clone under a new ID would lose the ID, the Unique lock and the result. If this package moved the
// task inside asynq's Redis, a repeated command of asynq for this attempt could archive or delete a later attempt.

// archiveSnoozeText is in the last error of each task that was snoozed by way of the archive: at the beginning, unless
// another middleware has wrapped the error. An archived task without archiveSnoozeText has failed in a later run, and
// stays in the archive.
const archiveSnoozeText = "worker: snoozed without charge, by way of the archive: "

const (
	// markWait is how long the method mark waits for a busy mark. The process that last ran the task again may not have
	// released the mark yet.
	markWait = 2 * time.Second

	// rerunGiveUp is how long rerun waits for asynq to archive the task and for RunTask to succeed. When rerun has
	// given up, the keeper must run the task. rerunGiveUp is longer than asynq's lease on the task, half a minute:
	// asynq repeats a failed write until the lease ends.
	rerunGiveUp = 45 * time.Second

	// mostInArchive is how many tasks of this process stay in the archive for their whole pause. Further tasks run
	// again at once. asynq deletes the oldest of more than 10,000 archived tasks, and there may be many processes.
	mostInArchive = 500
)

// archiveSnoozeError is the error with which an attempt snoozes a task that has no retries left.
type archiveSnoozeError struct {
	snoozed *snoozeError
	kept    atomic.Pointer[string] // the task's last error in asynq; another middleware may have replaced the text
}

func (e *archiveSnoozeError) Error() string { return archiveSnoozeText + e.snoozed.err.Error() }

func (e *archiveSnoozeError) Unwrap() error { return e.snoozed }

// canSnoozeByArchive reports whether the task can be snoozed by way of asynq's archive. A task that carries locks
// cannot, because the keeper would free the locks after a minute in the archive. Such a task has a spare retry, and can
// be snoozed by way of the archive only in a rerun beyond the spare retry.
func (a *attempt) canSnoozeByArchive() bool {
	return a.w.delay.Load() != nil && a.retried >= a.limit && (!a.mayCarry() || a.spent())
}

// snoozeByArchive snoozes, by way of the archive, a task that carries locks.
func (a *attempt) snoozeByArchive(snoozed *snoozeError) error {
	if errors.Is(snoozed, joblock.ErrUnavailable) {
		return a.archiveAndRerun(snoozed, nil) // no mark without the store
	}
	mark, err := a.mark()
	a.logUnmarked(err)
	return a.archiveAndRerun(snoozed, mark)
}

// logUnmarked logs err, the error of the method mark, unless err says that another process has the mark.
func (a *attempt) logUnmarked(err error) {
	if err != nil && !busy(err) {
		a.log().Warn("worker: a task is snoozed by way of asynq's archive without a mark for the keeper", "err", err)
	}
}

// The method mark acquires the mark of the attempt's task.
func (a *attempt) mark() (*joblock.Lock, error) {
	ctx := context.WithoutCancel(a.ctx) // joblock bounds each call
	lock, err := a.w.locks.Acquire(ctx, keyspace.Again(a.job()), door.OwnKey[joblock.Option](), joblock.MaxWait(markWait))
	if err != nil {
		return nil, err
	}
	token, err := lock.Park(ctx, joblock.Reserve(a.w.cfg.Reserve), joblock.ForJob(a.job()))
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	return a.w.locks.Resume(ctx, token, joblock.ForJob(a.job()), joblock.Reserve(a.w.cfg.Reserve))
}

// archiveAndRerun returns the error with which asynq archives the task. In the background, archiveAndRerun runs the
// task again after the pause. If mark is nil, a crash leaves the task in the archive.
func (a *attempt) archiveAndRerun(snoozed *snoozeError, mark *joblock.Lock) error {
	a.logSnoozed(snoozed)
	e := &archiveSnoozeError{snoozed: snoozed}
	pause := snoozed.delay
	if a.w.inArchive.Add(1) > mostInArchive {
		pause = 0
	}
	a.w.open.background(func() {
		defer a.w.inArchive.Add(-1)
		_ = sleep.For(a.w.open.closing, pause) // when this server stops, another server may run the task at once
		done := a.rerun(e)
		if !done {
			a.log().Error("worker: a snoozed task is still in asynq's archive; run the task by hand unless the keeper knows of it",
				"keeper_knows", mark != nil)
		}
		switch {
		case mark == nil:
		case done:
			a.release(joblock.Locks{mark}, reasonOver)
		default:
			mark.StopRenewing()
		}
	})
	return e
}

// The method rerun runs the task again as soon as asynq has archived the task with the error e. The result is false if
// the task may still be in the archive, or asynq may still archive the task.
func (a *attempt) rerun(e *archiveSnoozeError) bool {
	start := time.Now()
	for pause := answerPoll; ; pause = min(2*pause, 5*time.Second) {
		info, err := a.w.inspector.GetTaskInfo(a.queue, a.id)
		switch {
		case noTask(err):
			a.log().Warn("worker: a task that was snoozed by way of asynq's archive is gone: " +
				"somebody has run or deleted the task, or the archive was full")
			return true
		case err != nil:
			a.log().Warn("worker: cannot look up a task that was snoozed by way of asynq's archive", "err", err)
		case snoozedInArchive(info), e.archived(info):
			if err = a.w.inspector.RunTask(a.queue, a.id); err == nil {
				return true
			}
		case info.State != asynq.TaskStateActive:
			return true // somebody else has run the task
		}
		took := time.Since(start)
		if took > rerunGiveUp || took > answerWait && a.w.open.closing.Err() != nil {
			return false
		}
		time.Sleep(pause)
	}
}

// snoozedInArchive reports whether a task is in the archive only for the pause of a snooze.
func snoozedInArchive(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, archiveSnoozeText)
}

// The method archived reports whether a task is in the archive because of e, even if another middleware has replaced
// e's text.
func (e *archiveSnoozeError) archived(info *asynq.TaskInfo) bool {
	kept := e.kept.Load()
	return info.State == asynq.TaskStateArchived && kept != nil && info.LastErr == *kept
}
