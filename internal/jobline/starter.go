// Package jobline starts asynq tasks that wait in the line of a key. The call that gives the key to such a task's job
// does not start the task, because asynq may use another Redis. A task that waits is scheduled, or waits for a retry, at
// a time that is far away; see envelope.Wait. To start the task is to run it: see asynq.Inspector.RunTask.
//
// If a Starter gives up, the keeper of package worker starts the task.
package jobline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// reasonOver is the reason with which a Starter frees the key of a job whose task ended while the job waited.
const reasonOver = "its job was over before its turn"

// pauses are the delays between attempts to start a task. The job has its place before its task exists, so the job's turn
// may come before the enqueue. And a task that asks too early is active until asynq has snoozed it.
var pauses = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
}

// Starter starts tasks. All fields are required.
type Starter struct {
	Locks      *joblock.Locker
	Inspectors []*asynqprivate.Inspector // of all asynq databases whose tasks have locks in Locks
	Logger     *slog.Logger
	Go         func(func()) // runs a function in the background; the owner of the Starter waits for that function
}

// Free is jobs.Free, and starts the tasks of the jobs that get the keys.
func (s *Starter) Free(ctx context.Context, releases ...core.JobRelease) []error {
	return s.locks().FreeJobs(ctx, s.Granted, releases)
}

// Reserve is jobs.Reserve, and starts the tasks of the jobs that get the keys.
func (s *Starter) Reserve(ctx context.Context, reservations ...core.Reservation) []error {
	return s.locks().ReserveForJobs(ctx, s.Granted, reservations)
}

// Release is joblock.Locker.Release for several tokens, and starts the tasks of the jobs that get the keys.
func (s *Starter) Release(ctx context.Context, tokens []core.Token, r core.Release) []error {
	r.Granted = s.Granted
	return s.locks().Release(ctx, tokens, r)
}

// ReleaseLocks is joblock.Lock.Release for several locks, and starts the tasks of the jobs that get the keys.
func (s *Starter) ReleaseLocks(ctx context.Context, locks core.Locks, r core.Release) []error {
	r.Granted = s.Granted
	return locks.Release(ctx, r)
}

func (s *Starter) locks() *core.Locker { return (*core.Locker)(s.Locks) }

// Granted starts the task of job, which has just got key, in the background. The attempts take about a second, or longer
// if asynq does not answer.
func (s *Starter) Granted(key, job string) { s.Go(func() { s.run(key, job, false) }) }

// Pushed is Granted for a caller that cannot be certain that job has just got key: a push may be late, repeated or forged.
func (s *Starter) Pushed(key, job string) { s.Go(func() { s.run(key, job, true) }) }

func (s *Starter) run(key, job string, check bool) {
	for try := 0; ; try++ {
		// After an unanswered attempt the task may have run, and may be halting the sequence.
		done, err := s.start(key, job, check || try > 0)
		if done {
			return
		}
		if try == len(pauses) {
			s.Logger.Warn("joblock: a job has its turn in line, but its task could not be started; the keeper will start it",
				"job", job, "key", key, "err", err)
			return
		}
		time.Sleep(pauses[try])
	}
}

var (
	errActive = errors.New("the task is active")
	errAbsent = errors.New("the task does not exist")
)

// start attempts once to start the task of job, which has got key. done is true if nothing is left to do: the task runs,
// is about to run, or has ended. In the last case start frees the key. If check is true, start does nothing unless the
// key is parked for the job and the task waits.
func (s *Starter) start(key, job string, check bool) (done bool, err error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return true, nil // not a job of asynq
	}
	var fence int64
	if check {
		locks, err := s.Locks.Status(context.Background(), key)
		if err != nil {
			return errors.Is(err, joblock.ErrClosed), err
		}
		if locks[0].Job != job || locks[0].State != joblock.StateParked || locks[0].Fence != locks[0].First {
			return true, nil
		}
		fence = locks[0].Fence
	}
	err = errAbsent
	for _, in := range s.Inspectors {
		if !check { // a task that waits is scheduled, unless an operator has changed it
			if err := in.RunScheduled(queue, id); !errors.Is(err, asynq.ErrTaskNotFound) {
				return err == nil, err
			}
		}
		info, ierr := in.GetTaskInfo(queue, id)
		switch {
		case errors.Is(ierr, asynq.ErrTaskNotFound), errors.Is(ierr, asynq.ErrQueueNotFound):
			continue
		case ierr != nil:
			err = ierr
			continue
		}
		switch {
		case info.State == asynq.TaskStateScheduled, info.State == asynq.TaskStateRetry, InArchive(info):
			if check && !Waits(envelope.MayWait(info.Headers), info) {
				return true, nil
			}
			err = in.RunTask(queue, id)
			return err == nil, err
		case info.State == asynq.TaskStateActive:
			return false, errActive
		case info.State == asynq.TaskStateArchived, info.State == asynq.TaskStateCompleted:
			return s.free(key, job, fence)
		}
		return true, nil // pending
	}
	return false, err
}

// free passes the key on from a job whose task has ended. If fence is not 0, free does nothing when the key has another
// fence.
func (s *Starter) free(key, job string, fence int64) (done bool, err error) {
	err = s.Free(context.Background(), core.JobRelease{Key: key, Job: job, Fence: fence, Reason: reasonOver})[0]
	switch {
	case errors.Is(err, joblock.ErrUnavailable):
		return false, fmt.Errorf("free the key of a task that has ended: %w", err)
	case err == nil:
		s.Logger.Info("joblock: a job's turn in line has come, but its task has ended; the key goes to the next job", "job", job, "key", key)
	}
	return true, err
}

// Waits reports whether the task of info waits for its turn, or was waiting when its turn came; it returns false once the
// task has been started. seq is the Sequence in the header of the task, or nil.
func Waits(seq *envelope.Sequence, info *asynq.TaskInfo) bool {
	switch {
	case info.State == asynq.TaskStateScheduled:
		return seq != nil && seq.Waits
	case info.State == asynq.TaskStateRetry, InArchive(info):
		return strings.Contains(info.LastErr, WaitText)
	}
	return false
}
