package enqueue

import (
	"context"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// taking is the part of a kind that takes a key for its job.
type taking struct{ *dispatch }

func (t *taking) undo(ctx context.Context) error {
	if t.leftToCopies(ctx, false) {
		return nil
	}
	return t.release(ctx)
}

func (t *taking) abandon(ctx context.Context) error { return ifUnavailable(t.release(ctx)) }

// release frees the key, unless it is free already or another owner has it.
func (t *taking) release(ctx context.Context) error {
	if t.tokens == nil {
		return nil
	}
	return unlessGone(t.c.next.Release(ctx, core.Tokens(t.tokens[:1]), core.Release{IfIdle: true, Job: t.job, Reason: reasonNotEnqueued})[0])
}

// leftToCopies reports whether a copy of the Call may have a task under what ask has taken. No copy can if another task
// has the TaskID, so that asynq refuses the copies too. The task of a copy has the same token. A token of a place
// (inLine) has no fence, so if that task has ended, the place is a later one.
func (t *taking) leftToCopies(ctx context.Context, inLine bool) bool {
	if t.call.Owner == "" {
		return false
	}
	if t.sent == nil || !refused(t.sendErr) {
		return true
	}
	other, err := t.c.taskInfo(ctx, t.queue, t.id)
	if err != nil {
		return true
	}
	tokens, err := t.c.tokensOf(ctx, other)
	over := other.State == asynq.TaskStateArchived || other.State == asynq.TaskStateCompleted
	carries := slices.ContainsFunc(tokens, func(token joblock.Token) bool { return sameHolding(token, t.tokens[0]) })
	return err != nil || carries && !(inLine && over)
}
