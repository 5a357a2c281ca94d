package enqueue

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
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
	return unlessGone(t.c.starter.Release(ctx, core.Tokens(t.tokens[:1]), core.Release{IfIdle: true, Job: t.job, Reason: reasonNotEnqueued})[0])
}

// leftToCopies reports whether to leave what ask has taken to the copies of the Call, because the task of a copy may
// need it. No copy can have a task if another task has the TaskID: then asynq refuses the copies too. The task of a
// copy carries the same token, or the token of the place in line from which its turn has come since. The token of a
// place has no fence to compare, so the state of the task decides: if that task has ended, it does not need what ask
// has taken. But if ask has taken the key, not a place (inLine is false), an archived task may still need the key: its
// sequence may have halted with it.
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
	if err != nil {
		return true
	}
	own := core.Token(t.tokens[0])
	for _, token := range tokens {
		of := core.Token(token)
		switch {
		case token.Key() != t.tokens[0].Key() || of.Owner() != own.Owner():
		case of.Fence() == 0:
			return other.State != asynq.TaskStateCompleted && (other.State != asynq.TaskStateArchived || !inLine)
		case of.Fence() == own.Fence():
			return true
		}
	}
	return false
}
