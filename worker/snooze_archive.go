package worker

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// asynq archives a task that has no retries left, whatever error its attempt returns. But
// Inspector.RunTask takes a task out of the archive as it was: the same ID, payload,
// headers, options, asynq.Unique lock and count of retries. So that is how a task without a
// spare retry is snoozed: asynq archives it, and this process runs it again when the pause
// is over.
//
// If the process dies in between, the keeper runs the task. It knows of it by a mark, a lock
// bound to the job that this process holds meanwhile.
//
// The roads not taken: a clone under a new ID loses the ID, its Unique lock and its result.
// If the task is moved in asynq's Redis, behind its back, asynq may archive or delete a
// later attempt when it repeats a command for this one.

// archiveSnoozeText is in the last error of a task that was snoozed this way: at its
// beginning, unless another middleware has wrapped the error. An archived task without it
// was run since, has failed, and stays where it is.
const archiveSnoozeText = "worker: snoozed without charge, by way of the archive: "

const (
	// markWait is how long to wait for a mark: the process that last took the task out of
	// the archive may not have released it yet.
	markWait = 2 * time.Second

	// rerunGiveUp is how long rerun waits for asynq to archive the task, and tries to run
	// it again; after that the task is left to the keeper. It is longer than the task's
	// lease of half a minute: for so long asynq repeats a write that Redis has not taken.
	rerunGiveUp = 45 * time.Second

	// mostInArchive is how many tasks of this process stay in the archive for their whole
	// pause; further ones are run again at once. asynq deletes the oldest of more than
	// 10,000 archived tasks, and there may be many processes.
	mostInArchive = 500
)

// archiveSnoozeError is a snoozeError of a task without retries left.
type archiveSnoozeError struct {
	snoozed *snoozeError

	// The text that asynq keeps, as Configure's ErrorHandler has heard: another middleware
	// may have replaced ours.
	kept atomic.Pointer[string]
}

func (e *archiveSnoozeError) Error() string { return archiveSnoozeText + e.snoozed.err.Error() }

func (e *archiveSnoozeError) Unwrap() error { return e.snoozed }

// canSnoozeByArchive reports whether the task can be snoozed by way of asynq's archive. A
// task that carries locks cannot: the keeper would free them after a minute in the archive.
// It has a spare retry instead, unless somebody has run it again beyond that.
func (w *Worker) canSnoozeByArchive(a *attempt) bool {
	return w.delay.Load() != nil && a.retried >= a.limit && (!a.mayCarry() || a.spent())
}

// snoozeByArchive snoozes a task that carries locks and that asynq is about to archive.
func (w *Worker) snoozeByArchive(a *attempt, snoozed *snoozeError) error {
	var mark *joblock.Lock
	if !errors.Is(snoozed, joblock.ErrUnavailable) { // else the store cannot give one
		var err error
		if mark, err = w.mark(a); err != nil && !busy(err) {
			w.cfg.Logger.Warn("worker: a task is snoozed by way of asynq's archive, and the keeper does not know of it",
				"job", a.job(), "task", a.task.Type(), "err", err)
		}
	}
	return w.archiveAndRerun(a, snoozed, mark)
}

// mark takes the lock that tells the keeper, if this process dies, to take the task out of
// the archive.
func (w *Worker) mark(a *attempt) (*joblock.Lock, error) {
	ctx := context.WithoutCancel(a.ctx) // joblock bounds each call
	lock, err := w.locks.Acquire(ctx, keyspace.Again(a.job()), door.OwnKey[joblock.Option](), joblock.MaxWait(markWait))
	if err != nil {
		return nil, err
	}
	token, err := lock.Park(ctx, joblock.Reserve(w.cfg.Reserve), joblock.ForJob(a.job()))
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	return w.locks.Resume(ctx, token, joblock.ForJob(a.job()), joblock.Reserve(w.cfg.Reserve))
}

// archiveAndRerun returns the error with which asynq archives the task, and in the
// background runs the task again after the pause. mark may be nil; then a crash leaves the
// task in the archive.
func (w *Worker) archiveAndRerun(a *attempt, snoozed *snoozeError, mark *joblock.Lock) error {
	w.tellSnoozed(a, snoozed)
	e := &archiveSnoozeError{snoozed: snoozed}
	pause := snoozed.delay
	if w.inArchive.Add(1) > mostInArchive {
		pause = 0
	}
	w.open.more()
	go func() {
		defer w.open.end()
		defer w.inArchive.Add(-1)
		_ = sleep.For(w.open.closing, pause) // another server may run it as soon as this one stops
		if !w.rerun(a.queue, a.id, e) {
			w.cfg.Logger.Error("worker: a task that was snoozed is still in asynq's archive; the keeper will run it, or run it by hand",
				"job", a.job(), "task", a.task.Type(), "keeper_knows", mark != nil)
			if mark != nil {
				mark.StopRenewing()
			}
			return
		}
		if mark != nil {
			a.release(joblock.Locks{mark}, reasonOver)
		}
	}()
	return e
}

// rerun takes a task out of the archive as soon as asynq has put it there for e. It reports
// false if the task may still be there.
func (w *Worker) rerun(queue, id string, e *archiveSnoozeError) bool {
	start := time.Now()
	for pause := answerPoll; ; pause = min(2*pause, 5*time.Second) {
		info, err := w.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			w.cfg.Logger.Warn("worker: a task that was snoozed by way of asynq's archive is gone: somebody has run or deleted it, or the archive was full",
				"job", envelope.Job(queue, id))
			return true
		case err != nil:
			w.cfg.Logger.Warn("worker: cannot run a snoozed task again", "job", envelope.Job(queue, id), "err", err)
		case snoozedInArchive(info), e.archived(info):
			if err = w.inspector.RunTask(queue, id); err == nil {
				return true
			}
		case info.State != asynq.TaskStateActive:
			return true // somebody else has run it
		}
		took := time.Since(start)
		if took > rerunGiveUp || took > answerWait && w.open.closing.Err() != nil {
			return false
		}
		time.Sleep(pause)
	}
}

// snoozedInArchive reports whether a task is in the archive only because it was snoozed.
func snoozedInArchive(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, archiveSnoozeText)
}

// archived reports whether a task is in the archive because of e, whatever its last error.
func (e *archiveSnoozeError) archived(info *asynq.TaskInfo) bool {
	kept := e.kept.Load()
	return info.State == asynq.TaskStateArchived && kept != nil && info.LastErr == *kept
}
