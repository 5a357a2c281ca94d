package enqueue

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

const (
	// settleFor bounds how long Enqueue goes on after the end of its context, or after an error of asynq. Then the Client
	// looks for the task in the background; see watchFor. asynq's Client and Inspector can take longer: by default
	// go-redis gives up on a silent server only after some twenty seconds, whatever the context says.
	settleFor = 3 * time.Second

	// rereadPause is the time between the two lookups after an enqueue without a definite answer. During the first
	// lookup the command may still be on its way.
	rereadPause = 200 * time.Millisecond
)

// enqueueOutcome is what an enqueue has really done.
type enqueueOutcome uint8

const (
	unknown     enqueueOutcome = iota
	enqueued                   // the task exists and carries our tokens
	notEnqueued                // there is no such task, or another task has its ID
)

var (
	errSending = errors.New("asynq has not returned from the enqueue yet")
	errSilent  = errors.New("asynq's inspector has not answered in time")
)

// settling returns a context with the values of ctx. It ends after settleFor, whether or not ctx ends.
func settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleFor)
}

// resolve finds out what an enqueue has done that has failed, or that has not returned before the end of ctx. dctx
// bounds the search. If the task was enqueued, the error is nil. Otherwise the error is the one for the caller of
// Enqueue.
func (d *dispatch) resolve(ctx, dctx context.Context) (*asynq.TaskInfo, enqueueOutcome, error) {
	info, outcome, readErr := d.find(dctx)
	var cause error
	select {
	case <-d.sent:
		if cause = d.sendErr; cause == nil {
			return d.info, enqueued, nil
		}
	default:
	}
	if ended := context.Cause(ctx); ended != nil && !errors.Is(cause, ended) {
		cause = errors.Join(cause, ended) // asynq has flattened the error of ctx to text
	}
	switch outcome {
	case enqueued:
		d.c.logger.InfoContext(ctx, "handoff: the task was enqueued although asynq reported an error",
			"job", d.job, "err", cause)
		return info, enqueued, nil
	case notEnqueued:
		return nil, notEnqueued, d.wrap(cause)
	}
	const detail = "it is unknown whether the task was enqueued"
	d.c.logger.WarnContext(ctx, "handoff: "+detail, "job", d.job, "err", cause, "lookup", readErr)
	return nil, unknown, own(&joblock.Error{
		Code: joblock.CodeOf(joblock.ErrUnavailable), Op: opEnqueue, Key: d.tokens[0].Key(), Job: d.job,
		Detail: detail, Err: errors.Join(cause, readErr),
	})
}

// refused reports whether err is a definite answer of the enqueue script: no command is still under way. But the
// answer may be to the repetition of a command that Redis had applied, so the task may still be ours.
func refused(err error) bool {
	return errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
}

// find determines, until ctx ends, what the enqueue has done. If the outcome is unknown, the error says why.
//
// It first waits for asynq to return, because asynq may write the task after any lookup, and then looks the task up. If
// that lookup was not decisive, it looks again after rereadPause. A lookup that finds no task is decisive only after a
// definite answer of the enqueue: a server that was frozen answers new questions and applies older commands in no
// particular order.
func (d *dispatch) find(ctx context.Context) (*asynq.TaskInfo, enqueueOutcome, error) {
	if d.sent == nil { // not all locks could be parked, and nothing was sent
		return nil, notEnqueued, nil
	}
	if sleep.Until(ctx, d.sent) != nil {
		return nil, unknown, errSending
	}
	if d.sendErr == nil {
		return d.info, enqueued, nil
	}
	info, outcome, err := d.read(ctx)
	if outcome == enqueued || outcome == notEnqueued && refused(d.sendErr) {
		return info, outcome, err
	}
	if sleep.For(ctx, rereadPause) != nil {
		return nil, unknown, errSilent
	}
	return d.read(ctx)
}

func (d *dispatch) read(ctx context.Context) (*asynq.TaskInfo, enqueueOutcome, error) {
	info, err := d.c.taskInfo(ctx, d.queue, d.id)
	switch {
	case isGone(err):
		return nil, notEnqueued, nil
	case err != nil:
		return nil, unknown, err
	case info.Headers[envelope.Header] != d.header:
		return nil, notEnqueued, nil
	}
	return info, enqueued, nil
}

func (c *Client) taskInfo(ctx context.Context, queue, id string) (info *asynq.TaskInfo, err error) {
	return ask(ctx, func() (*asynq.TaskInfo, error) { return c.inspector.GetTaskInfo(queue, id) })
}

// ask calls asynq's Inspector, which takes no context. The goroutine of the call ends when the Inspector's Redis
// client gives up, perhaps long after ask has returned.
func ask[T any](ctx context.Context, call func() (T, error)) (got T, err error) {
	type answer struct {
		got T
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		got, err := call()
		answers <- answer{got, err}
	}()
	select {
	case a := <-answers:
		return a.got, a.err
	case <-ctx.Done():
		return got, errSilent
	}
}

// isGone reports whether err says that there is no such task.
func isGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}
