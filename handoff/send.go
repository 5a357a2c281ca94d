package handoff

import (
	"context"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// dispatch is a task on its way into asynq, with the tokens that it carries. It does not
// deal with the locks' handles.
type dispatch struct {
	*taskSpec
	c      *Client
	unique Unique // zero but for EnqueueUnique
	tokens []joblock.Token
	header string // identifies the task as ours

	sending *sending // nil until the task is sent off
}

// sending is an enqueue under way. It can outlast its context, and the Client: it
// ends when asynq's Redis client gives up.
type sending struct {
	done chan struct{} // closed when what follows is set
	info *asynq.TaskInfo
	err  error
}

// failure returns the error of the enqueue; nil if none is known yet.
func (s *sending) failure() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// seal makes the header in which the task carries its locks.
func (d *dispatch) seal(ctx context.Context) error {
	env := envelope.Envelope{Tokens: d.tokens, Retries: d.retries}
	err := d.unique.mark(&env, d.tokens[0])
	if err == nil {
		d.header, err = env.Seal(ctx, d.c.ring, d.job, d.task.Type())
	}
	return d.wrap(err)
}

// send enqueues the task with its header, and waits for asynq's answer or the end of ctx.
// It returns nil if asynq reported an error or has not answered.
func (d *dispatch) send(ctx context.Context) *asynq.TaskInfo {
	task, opts := d.sealed(d.header)
	s := &sending{done: make(chan struct{})}
	d.sending = s
	go func() {
		defer close(s.done)
		s.info, s.err = d.c.client.EnqueueContext(ctx, task, opts...)
	}()
	select {
	case <-s.done:
		if s.err == nil {
			return s.info
		}
	case <-ctx.Done():
	}
	return nil
}

// wrap returns err as the error of the call; nil stays nil.
func (d *dispatch) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("handoff: enqueue %s: %w", d.job, err)
}
