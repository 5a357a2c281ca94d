package ops

import (
	"context"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
)

// ActAnnotate is the name of AnnotateJob.
const ActAnnotate = "annotate job"

// AnnotateJob leaves a note about a job for other operators: in the explanation of its keys, on its page, and in the
// record of actions, with the author and the time. It changes nothing else.
//
// Errors: joblock.ErrNotFound if there is no such task, ErrInvalid, ErrUnavailable, and ErrNotRecorded.
type AnnotateJob struct {
	Queue  string `path:"queue"`
	ID     string `path:"id"`
	Reason string `json:"reason"` // the note, from 1 to 256 bytes
}

// Verb implements Action.
func (AnnotateJob) Verb() string { return ActAnnotate }

func (req AnnotateJob) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	job := envelope.Job(req.Queue, req.ID)
	if err := d.who.check(ActAnnotate, "", req.Reason); err != nil {
		return ActionResult{}, err
	}
	if _, _, ok := envelope.ParseJob(job); !ok {
		return ActionResult{}, core.Invalid(ActAnnotate, "", "the job is %q, must be QUEUE/ID", job)
	}
	t := d.asynq().task(ctx, job)
	if err := t.Check(ActAnnotate); err != nil {
		return ActionResult{}, err
	}
	return d.record(ctx, req.Reason, AuditEntry{Action: ActAnnotate, Key: job, Keys: t.keys}, nil, func(context.Context) error { return nil })
}
