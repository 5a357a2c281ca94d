package handoff

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// dispatch is a task on its way into asynq, with the tokens that the task carries. A dispatch does not use the handles
// of the locks.
type dispatch struct {
	*taskSpec
	c        *Client
	unique   Unique      // zero but for EnqueueUnique
	sequence *Sequence   // nil but for EnqueueInSequence
	waits    *door.Place // the job's place in line; nil if the job has its locks
	tokens   []joblock.Token
	header   string            // distinguishes this task from another one with its TaskID
	trace    map[string]string // further headers: they name the span of the enqueue

	// sent is closed when asynq has returned from the enqueue, perhaps after Client.Close; nil before send.
	sent    chan struct{}
	info    *asynq.TaskInfo // asynq's result; may be read after sent is closed
	sendErr error           // likewise
}

// seal makes the header in which the task carries its locks.
func (d *dispatch) seal(ctx context.Context) error {
	env := envelope.Envelope{Tokens: d.tokens, Retries: d.retries}
	err := d.unique.mark(&env, d.tokens[0])
	d.markSequence(&env)
	if err == nil {
		d.header, err = env.Seal(ctx, d.c.ring, d.job, d.task.Type())
	}
	d.trace = door.Of(d.c.locks).TraceHeaders(ctx)
	return d.wrap(err)
}

// send enqueues the task with its header, and waits for asynq's answer or the end of ctx. send returns nil if asynq has
// reported an error or has not answered.
func (d *dispatch) send(ctx context.Context) *asynq.TaskInfo {
	task, opts := d.sealed(d.header, d.trace)
	switch {
	case d.waits != nil:
		opts = append(opts, asynq.ProcessAt(time.Now().Add(envelope.Wait)))
	case d.sequence != nil && !d.at.IsZero():
		opts = append(opts, asynq.ProcessAt(d.wholeSecond()))
	}
	d.sent = make(chan struct{})
	send := func() {
		defer close(d.sent)
		d.info, d.sendErr = d.c.client.EnqueueContext(ctx, task, opts...)
	}
	if ctx.Done() == nil { // ctx cannot end while asynq waits for Redis
		send()
	} else {
		d.c.senders.Go(send) // a silent Redis must not hold up the caller
	}
	if sleep.Until(ctx, d.sent) != nil || d.sendErr != nil {
		return nil
	}
	return d.info
}
