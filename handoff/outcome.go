package handoff

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

const (
	// settleFor bounds how long Enqueue goes on after its context has ended, or after
	// asynq has reported an error, to find out whether the task exists and to take the
	// locks back. What is not known by then stays parked, and is found out in the
	// background; see watchFor. Neither asynq's Client nor its Inspector is certain to be
	// quicker: with default settings go-redis gives up on a silent server only after some
	// twenty seconds, whatever ctx says.
	settleFor = 3 * time.Second

	// rereadPause lies between the two readings after an enqueue without a definite
	// answer: the command may still be on its way at the first.
	rereadPause = 200 * time.Millisecond
)

// enqueueOutcome is what an enqueue that did not just succeed has really done.
type enqueueOutcome uint8

const (
	unknown     enqueueOutcome = iota
	enqueued                   // the task exists and carries our tokens
	notEnqueued                // it does not, or a task of somebody else has its ID
)

var (
	errSending = errors.New("asynq has not returned from the enqueue yet")
	errSilent  = errors.New("asynq's inspector has not answered in time")
)

// settling returns the context for finding out whether a task exists: that of the request,
// but it does not end with the request, and lasts for settleFor at most.
func settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleFor)
}

// settle finds out what an enqueue has done that failed, or had not returned when ctx
// ended. dctx is that of settling. The error is that of the call, unless the task was
// enqueued.
func (d *dispatch) settle(ctx, dctx context.Context) (*asynq.TaskInfo, enqueueOutcome, error) {
	info, outcome, readErr := d.find(dctx)
	cause := d.sending.failure()
	if outcome == enqueued && cause == nil {
		return info, enqueued, nil
	}
	if ended := context.Cause(ctx); ended != nil && !errors.Is(cause, ended) {
		cause = errors.Join(cause, ended) // asynq has flattened it to text
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
		Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "enqueue", Key: d.tokens[0].Key(), Job: d.job,
		Detail: detail, Err: errors.Join(cause, readErr),
	})
}

// refused reports whether err is a definite answer of the enqueue script. It may be the
// answer to the repetition of a command that had been applied, so the task may be ours. But
// it does mean that no command is still under way.
func refused(err error) bool {
	return errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
}

// find tells what the enqueue has done, as far as it can be told before ctx ends. With
// unknown comes the reason. While asynq is still at it no reading is worth anything, for
// asynq may write the task after it. Then find reads: once, and a second time when there
// was no answer, or when the enqueue had none and may yet be applied. A server that was
// frozen answers a question, and applies the command that it had received before, in no
// particular order.
func (d *dispatch) find(ctx context.Context) (*asynq.TaskInfo, enqueueOutcome, error) {
	if d.sending == nil { // not all locks could be parked, and nothing was sent
		return nil, notEnqueued, nil
	}
	select {
	case <-d.sending.done:
	case <-ctx.Done():
		return nil, unknown, errSending
	}
	if d.sending.err == nil {
		return d.sending.info, enqueued, nil
	}
	info, outcome, err := d.read(ctx)
	if outcome == enqueued || outcome == notEnqueued && refused(d.sending.err) {
		return info, outcome, err
	}
	select {
	case <-time.After(rereadPause):
		return d.read(ctx)
	case <-ctx.Done():
		return nil, unknown, errSilent
	}
}

// read asks the Inspector once.
func (d *dispatch) read(ctx context.Context) (*asynq.TaskInfo, enqueueOutcome, error) {
	info, err := ask(ctx, func() (*asynq.TaskInfo, error) { return d.c.inspector.GetTaskInfo(d.queue, d.id) })
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

// ask calls asynq's Inspector, which takes no context. The call's goroutine ends when the
// Inspector's Redis client gives up, maybe long after ask has returned.
func ask[T any](ctx context.Context, call func() (T, error)) (T, error) {
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
		var none T
		return none, errSilent
	}
}

// isGone reports whether err says that there is no such task.
func isGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}
