package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Steerer is the part of an *asynq.Inspector with which a Desk changes tasks. If the Inspector of a Database lacks these
// methods, its tasks cannot be changed.
type Steerer interface {
	RunTask(queue, id string) error
	DeleteTask(queue, id string) error
	ArchiveTask(queue, id string) error
	CancelProcessing(id string) error
}

var (
	deletable   = []TaskState{"pending", "scheduled", "retry", "archived", "completed", "aggregating"}
	archivable  = []TaskState{"pending", "scheduled", "retry", "aggregating"}
	cancellable = []TaskState{"active"}
)

// Check returns the error with which the action with this name refuses the task, because of its state or because the
// state is not known, or nil.
func (t Task) Check(name string) error {
	states := []TaskState{t.State}
	if v := VerbOf(name); v != nil && v.States != nil {
		states = v.States
	}
	return t.in(name, states)
}

// ErrMovedOn means that a task is no longer at the step that the request named. It matches joblock.ErrBusy.
var ErrMovedOn error = &refused{"the task has moved on", joblock.ErrBusy, nil}

// CheckStep returns the error with which an action refuses a task that is no longer at the given Step, or nil. The step
// "" matches any task.
func (t Task) CheckStep(action string, step string) error {
	if step == "" || t.Step == step {
		return nil
	}
	return refusal(action, t.Job(), ErrMovedOn, fmt.Sprintf("the task has moved on: it is at step %s by now, not at %s", cmp.Or(t.Step, string(t.State)), visible(step)))
}

// RunTask makes asynq run a task now that is scheduled, waits for a retry or is archived. A job that has halted its
// sequence then continues under its lock. RunTask refuses a task whose job waits for its turn in a line, because the task
// would only go back to waiting.
//
// asynq has no call that checks the step of a task, so RunTask checks the step just before: a task that moves on in
// between is run nevertheless, if its new state allows it.
//
// Errors, after which nothing was changed: ErrNotFound if there is no such task; ErrBusy if the task has another step,
// runs, is about to run, waits in a line, or was completed and is not in the archive; ErrInvalid; and ErrNotRecorded.
// After ErrUnavailable the task may run.
type RunTask struct {
	Queue  string `path:"queue"`
	ID     string `path:"id"`
	Step   string `match:"task"`  // the Task.Step that the operator has seen; "" means any step
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (RunTask) Verb() string { return ActRunTask }

func (req RunTask) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	return steering{d, ActRunTask, req}.do(ctx, func(s Steerer) error { return s.RunTask(req.Queue, req.ID) })
}

// DropTask deletes a task that does not run. A keeper then gives its lock or its place in line to the next, within about
// a minute. See RunTask about the step.
//
// Errors, after which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task has another step or
// runs, ErrInvalid, and ErrNotRecorded. After ErrUnavailable the task may have been deleted.
type DropTask struct {
	Queue  string `path:"queue"`
	ID     string `path:"id"`
	Step   string `match:"task"`  // the Task.Step that the operator has seen; "" means any step
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (DropTask) Verb() string { return ActDeleteTask }

func (req DropTask) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	return steering{d, ActDeleteTask, RunTask(req)}.do(ctx, func(s Steerer) error { return s.DeleteTask(req.Queue, req.ID) })
}

// ArchiveTask moves a task that does not run from its queue into asynq's archive, for inspection or a later run: see
// RunTask. A keeper then gives its lock or its place in line to the next, within about a minute; a job that is
// run later acquires its lock again, or joins the line again. But the key of a sequence that halts on failure stays with
// the job: the sequence halts. asynq deletes archived tasks after 90 days, and the oldest beyond 10,000. See RunTask
// about the step.
//
// Errors, after which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task has another step,
// runs, or has ended, ErrInvalid, and ErrNotRecorded. After ErrUnavailable the task may have been archived.
type ArchiveTask struct {
	Queue  string `path:"queue"`
	ID     string `path:"id"`
	Step   string `match:"task"`  // the Task.Step that the operator has seen; "" means any step
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (ArchiveTask) Verb() string { return ActArchive }

func (req ArchiveTask) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	return steering{d, ActArchive, RunTask(req)}.do(ctx, func(s Steerer) error { return s.ArchiveTask(req.Queue, req.ID) })
}

// CancelTask cancels the context of the handler that runs a task. If the handler respects its context, the attempt then
// ends as it does after a timeout. asynq sends the message once: a process that is cut off does not get it. See RunTask
// about the step. asynq cancels by the ID alone, so CancelTask refuses a task while a task of another queue with the same
// ID runs.
//
// With a Then, CancelTask waits up to EndWait for the handler to return, and deletes or archives the task before another
// attempt begins. If an attempt begins nevertheless, CancelTask cancels that one too. ActionResult.Outcome says what
// happened to the task. A task that succeeds meanwhile is left alone. So is a task whose handler does not return in time;
// the record then has OutcomeAsked.
//
// Errors, after which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task has another step,
// does not run, or is not the only running task with its ID, ErrInvalid, and ErrNotRecorded. After ErrUnavailable the
// message may have been sent, and with a Then the task may have been deleted or archived.
type CancelTask struct {
	Queue  string `path:"queue"`
	ID     string `path:"id"`
	Step   string `match:"task"`          // the Task.Step that the operator has seen; "" means any step
	Then   Then   `json:"then,omitempty"` // what to do with the task when the handler has returned
	Reason string `json:"reason"`         // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (req CancelTask) Verb() string {
	switch req.Then {
	case ThenArchive:
		return ActEndArchive
	case ThenDrop:
		return ActEndDelete
	}
	return ActCancelTask
}

func (req CancelTask) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	if req.Then != "" {
		return req.end(ctx, d)
	}
	return steering{d, ActCancelTask, req.task()}.do(ctx, func(s Steerer) error {
		if err := s.CancelProcessing(req.ID); err != nil {
			return err
		}
		return &outcome{OutcomeAsked, ""}
	})
}

// task returns the part of req that all actions on tasks share.
func (req CancelTask) task() RunTask {
	return RunTask{Queue: req.Queue, ID: req.ID, Step: req.Step, Reason: req.Reason}
}

// steering is an action on a task.
type steering struct {
	d      *Desk
	action string
	req    RunTask
}

// do changes the task if its state allows the action.
func (s steering) do(ctx context.Context, do func(Steerer) error) (ActionResult, error) {
	d, action, req := s.d, s.action, s.req
	job := envelope.Job(req.Queue, req.ID)
	if err := cmp.Or(d.who.check(action, "", req.Reason), core.CheckText(action, "", "step", req.Step, 0, driver.MaxLabelBytes)); err != nil {
		return ActionResult{}, err
	}
	if _, _, ok := envelope.ParseJob(job); !ok {
		return ActionResult{}, core.Invalid(action, "", "the job is %q, must be QUEUE/ID", job)
	}
	t, no := s.task(ctx)
	if errors.Is(no, joblock.ErrUnavailable) {
		no = nil // whether the task must be refused is not known
	}
	return d.record(ctx, req.Reason, AuditEntry{Action: action, Key: job, Step: req.Step, Keys: t.keys}, no, func(ctx context.Context) error {
		t, err := s.task(ctx)
		if err != nil {
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
			case err == nil, errors.As(err, &is), errors.Is(err, ErrMovedOn):
				return err
			case errors.Is(err, asynq.ErrTaskNotFound):
				return refusal(action, job, joblock.ErrNotFound, "there is no such task any more")
			}
			return refusal(action, job, joblock.ErrUnavailable, "asynq: "+err.Error())
		}
		return refusal(action, job, joblock.ErrNotFound, "the task has moved to another database")
	})
}

// task returns the task, and the error with which the action refuses it, or nil.
func (s steering) task(ctx context.Context) (Task, error) {
	d, action, req := s.d, s.action, s.req
	t := d.asynq().task(ctx, envelope.Job(req.Queue, req.ID))
	err := t.Check(action)
	if err == nil || errors.Is(err, joblock.ErrBusy) {
		err = cmp.Or(t.CheckStep(action, req.Step), err)
	}
	if err == nil && action == ActRunTask {
		err = s.checkTurn(ctx, t)
	}
	if err == nil && action != ActRunTask && action != ActDeleteTask && action != ActArchive {
		err = d.asynq().checkAlone(ctx, action, t)
	}
	return t, err
}

// checkTurn returns the error with which RunTask refuses a task whose job waits in a line, because the task would go back
// to waiting. A task whose turn has come is not refused.
func (s steering) checkTurn(ctx context.Context, t Task) error {
	if !t.Waits || t.Sequence == "" {
		return nil
	}
	recs, err := s.d.in.Inspect(ctx, ActRunTask, t.Sequence, driver.InspectRequest{Keys: []string{t.Sequence}, Places: []string{core.PlaceOf(t.Job())}})
	if err != nil {
		return err
	}
	if at := recs[0].Place; at != nil && at.Job == t.Job() {
		return refusal(ActRunTask, t.Job(), joblock.ErrBusy, fmt.Sprintf("the job waits in line for %q, place %d: it starts when its turn comes", t.Sequence, at.Ahead+1))
	}
	return nil
}

// in returns an error unless the task is in one of the given states.
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
	if t.State == "active" && (action == ActDeleteTask || action == ActArchive) {
		then := map[string]Then{ActDeleteTask: ThenDrop, ActArchive: ThenArchive}[action]
		detail += fmt.Sprintf(": cancel it with then=%s, which waits for its handler", then)
	}
	return refusal(action, t.Job(), joblock.ErrBusy, detail)
}

// refused is an error about a job or a sequence that matches a sentinel of package joblock. The sentinel's own text is
// not shown, because it is about locks.
type refused struct {
	text     string
	sentinel error
	away     error
}

func (e *refused) Error() string { return e.text }
func (e *refused) Unwrap() error { return e.sentinel }

// Away returns the Redis client's error of a read that got no answer, otherwise nil.
func (e *refused) Away() error { return e.away }

func refusal(action string, job string, sentinel error, detail string) error {
	return &refused{fmt.Sprintf("%s %q: %s", action, job, detail), sentinel, nil}
}

// SkipJob moves a sequence past a failed job that halts it: SkipJob frees the key, and the next job in line gets the key
// and is started. The task of the failed job stays in asynq's archive. If the key has another fence by now, SkipJob
// changes nothing.
//
// Errors, after which the sequence stays as it is:
//
//	ErrNotRecorded   the action could not be recorded, so it was not begun
//	ErrNotOwner      the key has another fence by now
//	ErrNotFound      no job has the key
//	ErrBusy          the job that has the key has not failed
//	ErrInvalid       the key, the fence, the reason or the operator's name is bad
//	ErrClosed
//
// ErrUnavailable means that asynq did not answer, in which case the sequence stays as it is, or that the locks' store did
// not, in which case the sequence may have moved on.
type SkipJob struct {
	Key    string `json:"key"`    // of the sequence
	Fence  int64  `match:"lock"`  // of the holding that the operator has seen: Sequence.Lock.Fence
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (SkipJob) Verb() string { return ActSkipJob }

func (req SkipJob) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	const op = ActSkipJob
	key, fence := req.Key, req.Fence
	if err := d.who.check(op, key, req.Reason); err != nil {
		return ActionResult{}, err
	}
	before, err := d.read(ctx, op, key)
	if err != nil {
		return ActionResult{}, err
	}
	refuse := func(sentinel error, detail string) error { return refusal(ActSkipJob, key, sentinel, detail) }
	if before.State == joblock.StateForeign {
		return ActionResult{}, core.Refusal(op, key, driver.Reply{Outcome: driver.OutcomeForeign})
	}
	if _, _, ok := envelope.ParseJob(before.Job); !ok || !before.Locked() {
		return ActionResult{}, refuse(joblock.ErrNotFound, "no job has the key")
	}
	if before.Fence != fence {
		return ActionResult{}, refuse(joblock.ErrNotOwner, fmt.Sprintf("the key has the fence %d by now, not %d", before.Fence, fence))
	}
	switch t := d.asynq().task(ctx, before.Job); {
	case t.hidden:
		return ActionResult{}, refuse(joblock.ErrBusy, t.Problem)
	case t.State == TaskUnknown:
		return ActionResult{}, refuse(joblock.ErrUnavailable, t.Problem)
	case t.Snoozed:
		return ActionResult{}, refuse(joblock.ErrBusy, "the job has not failed: its task is in the archive for a pause only")
	case t.State == TaskNoQueue:
		return ActionResult{}, refuse(joblock.ErrBusy, "none of the databases of asynq has the queue of the job's task")
	case !t.Ended():
		return ActionResult{}, refuse(joblock.ErrBusy, fmt.Sprintf("the job has not failed: its task is %s", t.State))
	case t.State == TaskAbsent && before.Age.Duration() < envelope.EnqueueGrace:
		return ActionResult{}, refuse(joblock.ErrBusy, "the job's task does not exist, perhaps not yet")
	}
	return d.record(ctx, req.Reason, AuditEntry{Action: op, Key: key, Fence: fence, Before: &before}, nil, func(ctx context.Context) error {
		var starts sync.WaitGroup
		defer starts.Wait()
		starter := jobline.Starter{Locks: d.cfg.Locks, Inspectors: asynqprivate.All(d.asynq().inspectors()), Logger: slog.New(slog.DiscardHandler), Go: starts.Go}
		return starter.Free(ctx, core.JobRelease{
			Key: key, Job: before.Job, Fence: fence, Reason: signed("the sequence goes on without its job: "+req.Reason, d.who.by),
		})[0]
	})
}
