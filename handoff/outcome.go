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
	// SettleFor bounds how long Enqueue goes on after its context has ended, or
	// after asynq has reported an error, to find out what has become of the task
	// and to take the locks back. What is not known by then stays parked and is
	// found out in the background; see WatchFor. Neither asynq's Client nor its
	// Inspector can be counted on to be shorter: with default settings go-redis
	// gives up on a silent server only after some twenty seconds, whatever ctx says.
	SettleFor = 3 * time.Second

	// lookPause lies between the two looks after an enqueue without a definite
	// answer: the command may still be on its way when the first look is made.
	lookPause = 200 * time.Millisecond
)

// world is what an enqueue that did not just succeed has really done.
type world uint8

const (
	worldUnknown world = iota
	worldOurs          // the task exists and carries our tokens
	worldAbsent        // it does not, or a task of somebody else has its ID
)

var (
	errSending = errors.New("asynq has not returned from the enqueue yet")
	errSilent  = errors.New("asynq's inspector has not answered in time")
)

// settling returns the context under which the fate of a task is decided: that of
// the request, but neither cut short by its end nor longer than SettleFor.
func settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), SettleFor)
}

// settle decides what an enqueue has done that failed, or had not returned when
// ctx ended, and lets exactly one side have the locks: the job if it exists,
// otherwise the caller. Where it cannot be known the locks stay parked, which
// harms neither.
func (h *handover) settle(ctx context.Context) (*asynq.TaskInfo, error) {
	dctx, cancel := settling(ctx)
	defer cancel()
	info, found, lookErr := h.find(dctx)
	cause := h.sending.failure()
	if found == worldOurs && cause == nil {
		return info, nil
	}
	if ended := context.Cause(ctx); ended != nil && !errors.Is(cause, ended) {
		cause = errors.Join(cause, ended) // asynq has flattened it to text
	}
	switch found {
	case worldOurs:
		h.c.logger.InfoContext(ctx, "handoff: the task was enqueued although asynq reported an error",
			"job", h.job, "err", cause)
		return info, nil
	case worldAbsent:
		return nil, h.fail(dctx, cause)
	}
	const unknown = "it is unknown whether the task was enqueued"
	h.c.logger.WarnContext(ctx, "handoff: "+unknown, "job", h.job, "err", cause, "lookup", lookErr)
	if len(h.parked) > 0 { // none when it is to replace another, which then keeps them
		h.c.watch(h)
	}
	return nil, &joblock.Error{
		Code: joblock.CodeUnavailable, Op: "enqueue", Key: h.locks[0].Key(), Job: h.job,
		Detail: unknown, Err: errors.Join(cause, lookErr),
	}
}

// refused reports whether err is a definite answer of the enqueue script. It may
// be the answer to a re-send of a command that had been applied, so it does not
// mean that the task is not ours; it does mean that no command is still under way.
func refused(err error) bool {
	return errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
}

// find tells what the enqueue has done, as far as it can be told before ctx ends;
// with worldUnknown comes the reason. While asynq is still at it no look is worth
// anything, for it may write the task after the look. Then find looks: once, and
// a second time when there was no answer, or when the enqueue had none and may yet
// be applied. A server that was frozen answers a look, and applies the command
// that it had received before, in no particular order.
func (h *handover) find(ctx context.Context) (*asynq.TaskInfo, world, error) {
	if h.sending == nil { // not all locks could be parked, and nothing was sent
		return nil, worldAbsent, nil
	}
	select {
	case <-h.sending.done:
	case <-ctx.Done():
		return nil, worldUnknown, errSending
	}
	if h.sending.err == nil {
		return h.sending.info, worldOurs, nil
	}
	info, found, err := h.look(ctx)
	if found == worldOurs || found == worldAbsent && refused(h.sending.err) {
		return info, found, err
	}
	select {
	case <-time.After(lookPause):
		return h.look(ctx)
	case <-ctx.Done():
		return nil, worldUnknown, errSilent
	}
}

// look asks the Inspector once.
func (h *handover) look(ctx context.Context) (*asynq.TaskInfo, world, error) {
	info, err := ask(ctx, func() (*asynq.TaskInfo, error) { return h.c.inspector.GetTaskInfo(h.queue, h.id) })
	switch {
	case isGone(err):
		return nil, worldAbsent, nil
	case err != nil:
		return nil, worldUnknown, err
	case info.Headers[envelope.Header] != h.seal:
		return nil, worldAbsent, nil
	}
	return info, worldOurs, nil
}

// ask makes a call of asynq's Inspector, which takes no context: its goroutine ends
// when the Inspector's Redis client gives up, which may be after ask has.
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

// isGone reports whether err is the Inspector's word that there is no such task.
func isGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}
