package enqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// conflict does what OnConflict says when another job or a request has the key: it replaces the other job, or returns its
// task. It frees the key of a job that has ended. held is the ErrHeld that names the other job. The results are those of
// tryUnique.
func (u *unique) conflict(ctx context.Context, held *joblock.Error) (Result, again, error) {
	if after, cools := envelope.ParseCooling(held.Job); cools {
		return u.coolsDown(ctx, held, after)
	}
	// If the key has no job, or its job does not exist, an enqueue is most likely under way. Reject need not wait for it
	// to end.
	retry, contended := never, never
	if u.OnConflict != Reject {
		retry, contended = soon, changing
	}
	queue, id, ok := envelope.ParseJob(held.Job)
	if !ok {
		return Result{}, retry, held
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	other, err := u.c.taskInfo(dctx, queue, id)
	switch {
	case isGone(err):
		return Result{}, contended, held
	case err != nil && u.OnConflict == Reject:
		return Result{}, never, held
	case err != nil:
		return Result{}, never, fmt.Errorf("%w; and its task could not be read: %w", held, err)
	}
	// The lock can name another caller's task: if a call parks a lock for a TaskID that exists already, the lock is
	// bound to the other task until asynq refuses the enqueue. Replace notices that when it resumes the token.
	over := other.State == asynq.TaskStateArchived || other.State == asynq.TaskStateCompleted
	waiting := !over && other.State != asynq.TaskStateActive
	// Replace must not replace the task of another copy of its own call.
	replaces := u.replaces() && (held.Job != u.job || u.call.Owner == "")
	if held.Job == u.job && u.OnConflict != Skip && !(waiting && replaces) || held.Job == u.job && over {
		// asynq would refuse the task.
		return Result{}, never, fmt.Errorf("%w: %w", asynq.ErrTaskIDConflict, held)
	}
	if over || u.OnConflict == Skip {
		carried, err := u.c.carriesLock(dctx, held, other)
		switch {
		case err != nil && u.OnConflict == Reject:
			return Result{}, never, held
		case err != nil:
			return Result{}, never, fmt.Errorf("%w; could not read whether its task carries the lock: %w", held, err)
		case !carried:
			return Result{}, contended, heldWith(held, "task "+held.Job+" exists, but does not carry this lock")
		}
	}
	switch {
	case over && u.c.halts(dctx, held.Key, other):
		detail := "task " + held.Job + " has failed and halts a sequence: run the task again, delete it, or skip the job with \"joblock jobs skip\""
		return Result{}, never, heldWith(held, detail)
	case over:
		return u.c.freeOver(ctx, held)
	case other.State == asynq.TaskStateActive:
		// The task may be active only because a worker finds its lock busy: another call may be replacing the task.
		if u.replaces() {
			return Result{}, taskActive, held
		}
	case u.replaces():
		return u.replace(ctx, other, held)
	}
	if u.OnConflict == Skip {
		if err := u.mayTouch(other.Queue, nil); err != nil {
			return Result{}, never, err
		}
		return Result{Task: other, Duplicate: true}, never, nil
	}
	return Result{}, never, held
}

// coolsDown does what conflict does, for a key that is cooling down after the job named by after. With Skip the result
// has the task of that job, or its queue and ID if asynq no longer has the task.
func (u *unique) coolsDown(ctx context.Context, held *joblock.Error, after string) (Result, again, error) {
	queue, id, ok := envelope.ParseJob(after)
	if u.OnConflict != Skip || !ok {
		return Result{}, never, held
	}
	if err := u.mayTouch(queue, nil); err != nil {
		return Result{}, never, err
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	task, err := u.c.taskInfo(dctx, queue, id)
	if err != nil {
		task = &asynq.TaskInfo{Queue: queue, ID: id, State: asynq.TaskStateCompleted}
	}
	return Result{Task: task, Duplicate: true}, never, nil
}

// carriesLock reports whether task carries the current token of the lock that held is about.
func (c *Client) carriesLock(ctx context.Context, held *joblock.Error, task *asynq.TaskInfo) (bool, error) {
	tokens, err := c.tokensOf(ctx, task)
	token, _, ok := splitToken(tokens, held.Key)
	if err != nil || !ok {
		return false, err
	}
	sts, err := c.locks.Status(ctx, held.Key)
	return err == nil && sts[0].Locked() && sts[0].Owner == token.Digest(), err
}

// halts reports whether task, which has the lock on key, has failed and halts a sequence. It also returns true if it
// cannot read that: the locks' store does not answer, or this process cannot read what task carries.
func (c *Client) halts(ctx context.Context, key string, task *asynq.TaskInfo) bool {
	env, err := c.envelopeOf(ctx, task)
	seq := env.Sequence
	return err != nil || task.State == asynq.TaskStateArchived && seq != nil && seq.Halt && seq.Token.Key() == key
}

// freeOver frees the key of a job that has ended, unless the job's handler still runs.
func (c *Client) freeOver(ctx context.Context, held *joblock.Error) (Result, again, error) {
	err := jobs.Free(ctx, c.locks, jobs.Release{Key: held.Key, Job: held.Job, Reason: reasonOver})[0]
	if err == nil {
		c.logger.InfoContext(ctx, "handoff: freed the lock of a job that has ended", "key", held.Key, "job", held.Job)
	}
	switch {
	case joblock.CodeOf(err) == "", errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrNotOwner):
		return Result{}, changing, held // the key is free, or another owner has it by now
	case errors.Is(err, joblock.ErrBusy):
		return Result{}, never, held
	}
	return Result{}, never, err
}
