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
	// settleFor bounds how long Enqueue goes on after its context has ended, or after asynq
	// has reported an error: it finds out whether the task exists, and takes the locks
	// back. After that they stay parked, and the search goes on in the background; see
	// watchFor. asynq's Client and Inspector can take longer: by default go-redis gives up
	// on a silent server only after some twenty seconds, whatever ctx says.
	settleFor = 3 * time.Second

	// rereadPause lies between the two lookups after an enqueue without a definite answer:
	// at the first one the command may still be on its way.
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

// settling returns a context with the values of ctx that does not end with ctx, but after
// settleFor.
func settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleFor)
}

// settle finds out what an enqueue has done that failed, or had not returned when ctx
// ended. dctx bounds the search. The error is nil if the task was enqueued, and that of the
// call otherwise.
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

// refused reports whether err is a definite answer of the enqueue script: no command is
// still under way. It may answer the repetition of a command that had been applied, so the
// task may still be ours.
func refused(err error) bool {
	return errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
}

// find finds out, until ctx ends, what the enqueue has done; with unknown the error says
// why not. It first waits for asynq to return, because asynq may write the task after any
// lookup. It looks twice if the first lookup had no answer, or if the enqueue had no
// definite one and may yet be applied: a server that was frozen answers new questions and
// applies older commands in no particular order.
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

// read asks the Inspector for the task once.
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
