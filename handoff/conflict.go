package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Reasons that Status shows for locks that were freed here.
const (
	reasonOver     = "its job was over"
	reasonReplaced = "its job was replaced"
)

// conflict decides what to do when another job or request has the key, as held says. It
// returns what tryUnique returns.
func (c *Client) conflict(ctx context.Context, u Unique, spec *taskSpec, held *joblock.Error) (done Enqueued, again bool, err error) {
	// If the key has no job, or its job does not exist, most likely an enqueue is under
	// way. Reject need not wait for it.
	soon := u.OnConflict != Reject
	queue, id, ok := envelope.ParseJob(held.Job)
	if !ok {
		return Enqueued{}, soon, held
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	other, err := ask(dctx, func() (*asynq.TaskInfo, error) { return c.inspector.GetTaskInfo(queue, id) })
	switch {
	case isGone(err):
		return Enqueued{}, soon, held
	case err != nil && u.OnConflict == Reject:
		return Enqueued{}, false, held
	case err != nil:
		return Enqueued{}, false, fmt.Errorf("%w; and its task could not be read: %w", held, err)
	}
	// The task that the record names may be another caller's: a lock can be parked for a
	// TaskID that exists, until that enqueue is refused. Replace notices when it resumes
	// the token.
	over := other.State == asynq.TaskStateArchived || other.State == asynq.TaskStateCompleted
	if over || u.OnConflict == Skip {
		carried, err := c.carried(dctx, held, other)
		switch {
		case err != nil && u.OnConflict == Reject:
			return Enqueued{}, false, held
		case err != nil:
			return Enqueued{}, false, fmt.Errorf("%w; and whether its task carries it could not be read: %w", held, err)
		case !carried:
			e := *held
			e.Detail = "task " + held.Job + " exists, but does not carry this lock"
			return Enqueued{}, soon, own(&e)
		}
	}
	switch other.State {
	case asynq.TaskStateArchived, asynq.TaskStateCompleted:
		return c.freeOver(ctx, held)
	case asynq.TaskStateActive:
		// Perhaps it is active only to find its lock busy, because somebody else is
		// replacing it.
		soon = u.replaces()
	default:
		if u.replaces() {
			return c.replace(ctx, u, spec, other, held)
		}
		soon = false
	}
	if u.OnConflict == Skip {
		return Enqueued{TaskInfo: other, Duplicate: true}, false, nil
	}
	return Enqueued{}, soon, held
}

// carried reports whether task carries the current token of the lock in held.
func (c *Client) carried(ctx context.Context, held *joblock.Error, task *asynq.TaskInfo) (bool, error) {
	tokens, err := c.tokensOf(ctx, task)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(tokens, func(t joblock.Token) bool { return t.Key() == held.Key })
	if i < 0 {
		return false, nil
	}
	sts, err := c.locks.Status(ctx, held.Key)
	if err != nil {
		return false, err
	}
	st := sts[0]
	return st.Locked() && st.Owner == tokens[i].Digest(), nil
}

// freeOver frees the key of a job that is over, unless its handler still runs.
func (c *Client) freeOver(ctx context.Context, held *joblock.Error) (Enqueued, bool, error) {
	err := jobs.Free(ctx, c.locks, jobs.Release{Key: held.Key, Job: held.Job, Reason: reasonOver})[0]
	if err == nil {
		c.logger.InfoContext(ctx, "handoff: freed the lock of a job that is over", "key", held.Key, "job", held.Job)
	}
	switch {
	case joblock.CodeOf(err) == "", errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrNotOwner): // free, or another's by now
		return Enqueued{}, true, held
	case errors.Is(err, joblock.ErrBusy):
		return Enqueued{}, false, held
	}
	return Enqueued{}, false, err
}
