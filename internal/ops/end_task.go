package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
)

const (
	actEnd = "end task"

	// endWait is how long EndTask waits for the handler to return.
	endWait = 10 * time.Second

	// endEvery is how often EndTask looks meanwhile.
	endEvery = 100 * time.Millisecond
)

// EndTask ends a task whose attempt runs, for good: it cancels the attempt as CancelTask does, waits up to ten seconds for the
// handler to return, and deletes the task before another attempt begins. If another one begins all the same, EndTask cancels that
// one too. If the handler does not return in that time, the task stays, which the record of the action says (OutcomeAsked). A task
// that ends well meanwhile is left alone. See RunTask about the step.
//
// Errors, with which nothing was changed: ErrNotFound if there is no such task, ErrBusy if the task has another step or does not
// run, ErrInvalid, and ErrNotRecorded. After ErrUnavailable the attempt may be cancelled, and the task deleted.
func (d *Desk) EndTask(ctx context.Context, req TaskRequest) (Acted, error) {
	job := envelope.Job(req.Queue, req.ID)
	return d.steer(ctx, actEnd, req, cancellable, func(s Steerer) error {
		began := d.lookUp(ctx, job)
		if began.State != "active" {
			return &outcome{OutcomeFailed, "the attempt has ended just now, and the task was not changed"}
		}
		cancelled := began.Step
		if err := s.CancelProcessing(req.ID); err != nil {
			return err
		}
		for until := time.Now().Add(endWait); ; {
			t := d.lookUp(ctx, job)
			switch {
			case t.State == "active" && t.Step != cancelled: // the next attempt
				if err := s.CancelProcessing(req.ID); err != nil {
					return err
				}
				cancelled = t.Step
			case t.State == "active", t.State == TaskUnknown: // not yet, or not known
			case t.State == "completed", t.State == TaskAbsent, t.State == TaskNoQueue:
				return nil
			case t.State == "pending" && t.Attempt < began.Attempt && began.Attempt > 1:
				return &outcome{OutcomeAsked, "somebody has enqueued the task anew, and it was left alone"}
			default:
				err := s.DeleteTask(req.Queue, req.ID)
				if err == nil || errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
					return nil
				}
				if now := d.lookUp(ctx, job); now.State != "active" {
					return err
				}
			}
			if !time.Now().Before(until) {
				return &outcome{OutcomeAsked, fmt.Sprintf("the handler has not returned within %s, so the task was not deleted; delete it when the handler has returned", length(endWait))}
			}
			if err := sleep.For(ctx, endEvery); err != nil {
				return err
			}
		}
	})
}
