package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// EndWait is how long CancelTask with a Then waits for the handler to return.
const EndWait = 10 * time.Second

// endEvery is the interval at which CancelTask then checks the task.
const endEvery = 100 * time.Millisecond

// Then says what to do with a task whose attempt is cancelled.
type Then string

// The values of Then. "" leaves the task to asynq: it is retried, or has failed for good.
const (
	ThenDrop    Then = "drop"    // it is deleted
	ThenArchive Then = "archive" // it is kept in asynq's archive, to be run later
)

// TaskOutcome is what happened to a task after a CancelTask with a Then.
type TaskOutcome string

// The values of TaskOutcome.
const (
	TaskOutcomeDropped  TaskOutcome = "dropped"
	TaskOutcomeArchived TaskOutcome = "archived"
	TaskOutcomeOver     TaskOutcome = "over"     // it succeeded meanwhile, or another caller deleted it
	TaskOutcomeReplaced TaskOutcome = "replaced" // it was enqueued again meanwhile, and left alone
	TaskOutcomeRunning  TaskOutcome = "running"  // its handler did not return within EndWait, so the task stays
	TaskOutcomeSnoozed  TaskOutcome = "snoozed"  // its handler returned with a snooze of more than EndWait, so the task will run again
)

// end cancels the attempt of a task, and then deletes or archives the task.
func (req CancelTask) end(ctx context.Context, d *Desk) (ActionResult, error) {
	if req.Then != ThenDrop && req.Then != ThenArchive {
		return ActionResult{}, checkThen(req.Then)
	}
	var became TaskOutcome
	done, err := steering{d, req.Verb(), req.task()}.do(ctx, func(s Steerer) (err error) {
		became, err = req.ending(ctx, d.asynq(), s)
		return err
	})
	if err == nil {
		done.Outcome = became
	}
	return done, err
}

// ending cancels the attempt, waits for the handler to return, and then deletes or archives the task before another
// attempt begins. If another attempt begins nevertheless, ending cancels it too.
func (req CancelTask) ending(ctx context.Context, dbs databases, s Steerer) (TaskOutcome, error) {
	job := envelope.Job(req.Queue, req.ID)
	began := dbs.lookUp(ctx, job)
	switch began.State {
	case "active":
	case TaskUnknown:
		return "", errors.New(strings.TrimSuffix(began.Problem, "."))
	default:
		return "", refusal(req.Verb(), job, ErrMovedOn, "the attempt has ended just now")
	}
	if err := s.CancelProcessing(req.ID); err != nil {
		return "", err
	}
	finish, did := s.DeleteTask, TaskOutcomeDropped
	if req.Then == ThenArchive {
		finish, did = s.ArchiveTask, TaskOutcomeArchived
	}
	cancelled := began.Step
	for until := time.Now().Add(EndWait); ; {
		t := dbs.lookUp(ctx, job)
		switch {
		case t.State == TaskUnknown: // the next look may succeed
		case t.State == "completed", t.State == TaskAbsent, t.State == TaskNoQueue:
			return TaskOutcomeOver, nil
		case t.newer(began):
			return TaskOutcomeReplaced, &outcome{OutcomeAsked, "the task was enqueued again, and was left alone"}
		case t.State == "active" && t.Step != cancelled: // the next attempt has begun
			if err := s.CancelProcessing(req.ID); err != nil {
				return "", err
			}
			cancelled = t.Step
		case t.State == "active": // the handler has not returned yet
		case t.State == "archived" && !t.Snoozed && req.Then == ThenArchive: // it was the last attempt
			return TaskOutcomeArchived, nil
		case t.Snoozed && req.Then == ThenArchive: // the snooze may end, and the task leave the archive, before EndWait is over
		default:
			err := finish(req.Queue, req.ID)
			if err == nil {
				return did, nil
			}
			if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
				return TaskOutcomeOver, nil
			}
			if now := dbs.lookUp(ctx, job); now.Step == t.Step { // the task is still at the step whose change was refused
				return "", err
			}
		}
		if !time.Now().Before(until) {
			if t.State == TaskUnknown {
				return "", errors.New(strings.TrimSuffix(t.Problem, "."))
			}
			if t.Snoozed {
				return TaskOutcomeSnoozed, &outcome{OutcomeAsked, "the handler has returned and snoozes its task, which comes back after the pause, so the task was not archived"}
			}
			verb := map[Then]string{ThenDrop: "deleted", ThenArchive: "archived"}[req.Then]
			return TaskOutcomeRunning, &outcome{OutcomeAsked, fmt.Sprintf("the handler has not returned within %s, so the task was not %s", length(EndWait), verb)}
		}
		if err := sleep.For(ctx, endEvery); err != nil {
			return "", err
		}
	}
}

// newer reports whether t is another task than began: enqueued with the same ID after the task began had ended. Each
// enqueue with a lock has a token of its own. Without a token, fewer finished attempts show that the task is another one:
// a worker that stops puts its task back with the same number.
func (t Task) newer(began Task) bool {
	behind := t.Attempt
	if t.State == "active" {
		behind-- // the running attempt is not finished
	}
	return !slices.Equal(t.owners, began.owners) || behind < began.Attempt-1
}

// checkThen returns the error for an unknown Then.
func checkThen(then Then) error {
	return &refused{fmt.Sprintf("%s: then is %q, must be %q or %q", ActCancelTask, visible(shorten(string(then), 40)), ThenDrop, ThenArchive), joblock.ErrInvalid, nil}
}
