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
	"github.com/joblock/toolkit/joblock"
)

// asynq archives a task that has no retries left whatever error its attempt returns,
// and has no call by which an attempt could put its task back. But a task in the archive
// is not lost, and Inspector.RunTask takes it out as it was: the same ID, payload,
// headers, options, asynq.Unique lock and count of retries. So where nobody has given a
// task a spare retry, that is how it is put back: asynq archives it, and this process
// runs it again when the pause is over.
//
// If the process dies in between, the keeper does it. It knows of the task by a mark,
// a lock bound to the job that this process holds meanwhile. The roads not taken: a
// clone under a new ID loses the ID, its Unique lock and its result; moving the task
// behind asynq's back, in its Redis, has asynq archive or delete a later attempt when it
// repeats what it could not do with this one.

// againText is in what asynq keeps as the last error of such a task, and begins it unless
// somebody else's middleware has put its own words before. Without it an archived task is
// left where it is: it was run since, and has failed.
const againText = "worker: put back without charge, by way of the archive: "

const (
	// markWait is for the process that took the task out of the archive last, to
	// give up its mark.
	markWait = 2 * time.Second

	// againGiveUp bounds how long asynq is given to archive the task, and to run it
	// again when it does not answer. It repeats what Redis did not take for as long as
	// its lease lasts, half a minute. After that the keeper sees to the task.
	againGiveUp = 45 * time.Second

	// mostInArchive is how many tasks of this process stay in the archive for as long as
	// their pauses say; those that come while there are as many go out of it at once. From
	// an archive that has 10,000 tasks asynq deletes the oldest, whatever is to become of
	// it, and there may be many processes.
	mostInArchive = 500
)

// againError is a putBackError of a task without retries left.
type againError struct {
	pb *putBackError

	// What asynq is about to keep instead, as Configure's ErrorHandler has heard: somebody
	// else's middleware may have made another error of it that does not show its text.
	kept atomic.Pointer[string]
}

func (e *againError) Error() string { return againText + e.pb.err.Error() }
func (e *againError) Unwrap() error { return e.pb }

// byArchive reports whether the task can be put back by way of asynq's archive. One that
// carries locks has a spare retry, unless somebody has run it again beyond that: longer
// than a minute in the archive, and the keeper would free its locks.
func (a *attempt) byArchive() bool {
	return a.w.delay.Load() != nil && a.retried >= a.limit && (!a.mayCarry() || a.spent())
}

// viaArchive puts a task back that carries locks and that asynq is about to archive.
func (a *attempt) viaArchive(pb *putBackError) error {
	var mark *joblock.Lock
	if !errors.Is(pb, joblock.ErrUnavailable) { // else there is nobody to be asked for one
		var err error
		if mark, err = a.mark(); err != nil && !busy(err) {
			a.w.cfg.Logger.Warn("worker: a task is put back by way of asynq's archive, and the keeper does not know of it",
				"job", a.job(), "task", a.task.Type(), "err", err)
		}
	}
	return a.again(pb, mark)
}

// mark takes the lock that tells the keeper, if this process dies, that the task is not
// to stay in the archive.
func (a *attempt) mark() (*joblock.Lock, error) {
	ctx := context.WithoutCancel(a.ctx) // joblock bounds each call
	lock, err := a.w.locks.Acquire(ctx, keyspace.Again(a.job()), door.OwnKey[joblock.Option](), joblock.MaxWait(markWait))
	if err != nil {
		return nil, err
	}
	token, err := lock.Park(ctx, joblock.ParkOptions{Hold: a.w.cfg.Hold, Job: a.job()})
	if err != nil {
		return nil, errors.Join(err, lock.Release(ctx))
	}
	return a.w.locks.Resume(ctx, token, joblock.ForJob(a.job()), joblock.Reserve(a.w.cfg.Hold))
}

// again returns the error with which asynq archives the task, and has it run again
// afterwards. Without a mark, which may be nil, a crash leaves the task in the archive.
func (a *attempt) again(pb *putBackError, mark *joblock.Lock) error {
	a.tellPutBack(pb)
	e := &againError{pb: pb}
	pause := pb.delay
	if a.w.inArchive.Add(1) > mostInArchive {
		pause = 0
	}
	a.w.open.more()
	go func() {
		defer a.w.open.end()
		defer a.w.inArchive.Add(-1)
		sleep(a.w.open.closing, pause) // another server may run it as soon as this one stops
		if !a.w.runAgain(a.queue, a.id, e) {
			a.w.cfg.Logger.Error("worker: a task that was put back is still in asynq's archive; the keeper will run it, or run it by hand",
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

// runAgain takes a task out of the archive as soon as asynq has put it there for e. It
// reports false when it could not.
func (w *Worker) runAgain(queue, id string, e *againError) bool {
	start := time.Now()
	for pause := verdictPoll; ; pause = min(2*pause, 5*time.Second) {
		info, err := w.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			w.cfg.Logger.Warn("worker: a task that was put back by way of asynq's archive is gone: somebody has run or deleted it, or the archive was full",
				"job", envelope.Job(queue, id))
			return true
		case err != nil:
			w.cfg.Logger.Warn("worker: cannot run a task again that was put back", "job", envelope.Job(queue, id), "err", err)
		case toRunAgain(info), e.archived(info):
			if err = w.inspector.RunTask(queue, id); err == nil {
				return true
			}
		case info.State != asynq.TaskStateActive:
			return true // somebody else has run it
		}
		took := time.Since(start)
		if took > againGiveUp || took > verdictWait && w.open.closing.Err() != nil {
			return false
		}
		time.Sleep(pause)
	}
}

// toRunAgain reports whether a task is in the archive only because it was put back.
func toRunAgain(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, againText)
}

// archived reports whether e is why a task is in the archive, whatever its text there.
func (e *againError) archived(info *asynq.TaskInfo) bool {
	kept := e.kept.Load()
	return info.State == asynq.TaskStateArchived && kept != nil && info.LastErr == *kept
}
