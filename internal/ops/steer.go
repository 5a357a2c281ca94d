package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqbatch"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Steerer is the part of an *asynq.Inspector by which a Desk changes tasks. Where a Database has an Inspector without
// these methods, its tasks cannot be changed.
type Steerer interface {
	RunTask(queue, id string) error
	DeleteTask(queue, id string) error
	CancelProcessing(id string) error
}

// The actions of which CheckDelete and CheckCancel say whether the state of a task allows them.
const (
	actDelete = "delete task"
	actCancel = "cancel task"
)

var (
	deletable   = []TaskState{"pending", "scheduled", "retry", "archived", "completed", "aggregating"}
	cancellable = []TaskState{"active"}
)

// CheckDelete returns the error with which DeleteTask refuses a task that is in this state, or nil.
func (t Task) CheckDelete() error { return t.in(actDelete, deletable) }

// CheckCancel returns the error with which CancelTask refuses a task that is in this state, or nil.
func (t Task) CheckCancel() error { return t.in(actCancel, cancellable) }

// RunTask makes asynq run a task now that is scheduled, waits for a retry or is archived. A job that has halted its
// sequence then goes on under its lock. A task that waits for its turn in a line goes back to wait.
//
// Errors, with which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task runs, is about to run
// or was completed and is not in the archive, ErrInvalid, and ErrNotRecorded. After ErrUnavailable the task may run.
func (d *Desk) RunTask(ctx context.Context, who Actor, queue, id string) (Acted, error) {
	return d.steer(ctx, who, "run task", queue, id, []TaskState{"scheduled", "retry", "archived", "completed"},
		func(s Steerer) error { return s.RunTask(queue, id) })
}

// DeleteTask deletes a task that does not run. The keeper then gives its lock or its place in line to the next, within a
// minute or so.
//
// Errors, with which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task runs, ErrInvalid, and
// ErrNotRecorded. After ErrUnavailable the task may be gone.
func (d *Desk) DeleteTask(ctx context.Context, who Actor, queue, id string) (Acted, error) {
	return d.steer(ctx, who, actDelete, queue, id, deletable,
		func(s Steerer) error { return s.DeleteTask(queue, id) })
}

// CancelTask ends the context of the handler that runs a task. The attempt then ends as after a timeout, if the handler
// heeds its context. asynq sends the message once: a process that is cut off does not get it.
//
// Errors, with which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task does not run,
// ErrInvalid, and ErrNotRecorded. After ErrUnavailable the message may be sent.
func (d *Desk) CancelTask(ctx context.Context, who Actor, queue, id string) (Acted, error) {
	return d.steer(ctx, who, actCancel, queue, id, cancellable, func(s Steerer) error {
		if err := s.CancelProcessing(id); err != nil {
			return err
		}
		return &outcome{OutcomeAsked, ""}
	})
}

// The method steer changes a task that is in one of the given states.
func (d *Desk) steer(ctx context.Context, who Actor, action, queue, id string, states []TaskState, do func(Steerer) error) (Acted, error) {
	job := envelope.Job(queue, id)
	if err := who.check(action, ""); err != nil {
		return Acted{}, err
	}
	if _, _, ok := envelope.ParseJob(job); !ok {
		return Acted{}, door.Invalid(action, "", "the job is %q, must be QUEUE/ID", job)
	}
	t := d.task(ctx, job)
	return d.record(ctx, who, AuditEntry{Action: action, Key: job, Keys: t.keys}, func(ctx context.Context) error {
		if err := t.in(action, states); err != nil {
			return err
		}
		for _, db := range d.cfg.Databases {
			if db.Name != t.Database {
				continue
			}
			s, ok := db.Asynq.(Steerer)
			if !ok {
				return refusal(action, job, joblock.ErrInvalid, fmt.Sprintf("the tasks of the database %q cannot be changed", db.Name))
			}
			_, err := call(ctx, func() (struct{}, error) { return struct{}{}, do(s) })
			var is *outcome
			switch {
			case err == nil, errors.As(err, &is):
				return err
			case errors.Is(err, asynq.ErrTaskNotFound):
				return refusal(action, job, joblock.ErrNotFound, "there is no such task any more")
			}
			return refusal(action, job, joblock.ErrUnavailable, "asynq: "+err.Error())
		}
		return refusal(action, job, joblock.ErrNotFound, "the task has moved to another database")
	})
}

// The method in returns an error unless the task is in one of the given states.
func (t Task) in(action string, states []TaskState) error {
	switch t.State {
	case TaskUnknown:
		return refusal(action, t.Job(), joblock.ErrUnavailable, t.Problem)
	case TaskAbsent, TaskNoQueue:
		return refusal(action, t.Job(), joblock.ErrNotFound, "there is no such task")
	}
	for _, state := range states {
		if t.State == state {
			return nil
		}
	}
	detail := fmt.Sprintf("the task is %s", t.State)
	if action == actDelete && t.State == "active" {
		detail += ": cancel the task first, and delete it before its next attempt begins"
	}
	return refusal(action, t.Job(), joblock.ErrBusy, detail)
}

// The type refused is an error about a job or a sequence that matches a sentinel of package joblock. The texts of the sentinels
// themselves are about locks.
type refused struct {
	text     string
	sentinel error
}

func (e *refused) Error() string { return e.text }
func (e *refused) Unwrap() error { return e.sentinel }

func refusal(action, job string, sentinel error, detail string) error {
	return &refused{fmt.Sprintf("%s %q: %s", action, job, detail), sentinel}
}

// SkipJob moves a sequence on past the job that has failed and halts the sequence: SkipJob frees the key, and the next job in
// line gets the key and is started. The task of the job that has failed stays in asynq's archive. If the key has another
// fence by now, SkipJob changes nothing.
//
// Errors, with which the sequence stays as it is:
//
//	ErrNotRecorded   the action could not be recorded, so it was not begun
//	ErrNotOwner      the key has another fence by now
//	ErrNotFound      no job has the key
//	ErrBusy          the job that has the key has not failed
//	ErrInvalid       the key, the fence, the reason or the name of who acts is bad
//	ErrClosed
//
// ErrUnavailable can mean that asynq has not answered: then the sequence stays as it is, too. Or the locks' store has
// not: then the sequence may have moved on.
func (d *Desk) SkipJob(ctx context.Context, who Actor, key string, fence int64) (Acted, error) {
	const op = "skip"
	if err := who.check(op, key); err != nil {
		return Acted{}, err
	}
	before, err := d.read(ctx, op, key)
	if err != nil {
		return Acted{}, err
	}
	refuse := func(sentinel error, detail string) error { return refusal(op, key, sentinel, detail) }
	if _, _, ok := envelope.ParseJob(before.Job); !ok || !before.Locked() {
		return Acted{}, refuse(joblock.ErrNotFound, "no job has the key")
	}
	if before.Fence != fence {
		return Acted{}, refuse(joblock.ErrNotOwner, fmt.Sprintf("the key has the fence %d by now, not %d", before.Fence, fence))
	}
	switch t := d.task(ctx, before.Job); {
	case t.State == TaskUnknown:
		return Acted{}, refuse(joblock.ErrUnavailable, t.Problem)
	case t.Snoozed:
		return Acted{}, refuse(joblock.ErrBusy, "the job has not failed: its task is in the archive for a pause only")
	case t.State == TaskNoQueue:
		return Acted{}, refuse(joblock.ErrBusy, "none of the databases of asynq has the queue of the job's task")
	case !t.Ended():
		return Acted{}, refuse(joblock.ErrBusy, fmt.Sprintf("the job has not failed: its task is %s", t.State))
	case t.State == TaskAbsent && before.Age.Duration() < envelope.EnqueueGrace:
		return Acted{}, refuse(joblock.ErrBusy, "the job's task does not exist, perhaps not yet")
	}
	return d.record(ctx, who, AuditEntry{Action: op, Key: key, Fence: fence, Before: &before}, func(ctx context.Context) error {
		var starts sync.WaitGroup
		defer starts.Wait()
		starter := nextjob.Starter{Locks: d.cfg.Locks, Inspectors: asynqbatch.All(d.inspectors()), Logger: slog.New(slog.DiscardHandler), Go: starts.Go}
		return jobs.Free(starter.In(ctx), d.cfg.Locks, jobs.Release{
			Key: key, Job: before.Job, Fence: fence, Reason: signed("the sequence goes on without its job: "+who.Reason, who.By),
		})[0]
	})
}

// The method inspectors returns the databases by which a task can be started. The keepers start the others.
func (d *Desk) inspectors() (all []*asynq.Inspector) {
	for _, db := range d.cfg.Databases {
		if in, ok := db.Asynq.(*asynq.Inspector); ok {
			all = append(all, in)
		}
	}
	return all
}

// The method record is act, with the Acted of the action.
func (d *Desk) record(ctx context.Context, who Actor, e AuditEntry, do func(context.Context) error) (Acted, error) {
	var done Acted
	id, unrecorded, err := d.act(ctx, who, e, do)
	if done.Audit = id; unrecorded != "" {
		done.Problems = append(done.Problems, unrecorded)
	}
	return done, err
}
