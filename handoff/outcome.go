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
	// lookTimeout bounds one look for the task. The Inspector takes no context, and
	// a go-redis client with default settings gives up on a silent server only
	// after some twenty seconds.
	lookTimeout = 3 * time.Second

	// lookPause lies between the two looks after an enqueue without a definite
	// answer: the command may still be on its way when the first look is made.
	lookPause = 200 * time.Millisecond
)

// world is what an enqueue that reported an error has really done.
type world uint8

const (
	worldUnknown world = iota
	worldOurs          // the task exists and carries our tokens
	worldAbsent        // it does not, or a task of somebody else has its ID
)

// settle decides what an enqueue that failed with cause has done, and lets
// exactly one side have the locks: the job if it exists, otherwise the caller.
// Where it cannot be known the locks stay parked, which harms neither.
func (h *handover) settle(ctx context.Context, cause error) (*asynq.TaskInfo, error) {
	info, found, lookErr := h.find(refused(cause))
	switch found {
	case worldOurs:
		h.c.logger.InfoContext(ctx, "handoff: the task was enqueued although asynq reported an error",
			"job", h.job, "err", cause)
		return info, nil
	case worldAbsent:
		return nil, h.fail(ctx, cause)
	}
	h.c.logger.WarnContext(ctx, "handoff: it is unknown whether a task was enqueued; its locks stay parked for it",
		"job", h.job, "err", cause, "lookup", lookErr)
	h.c.watch(h)
	return nil, &joblock.Error{
		Code: joblock.CodeUnavailable, Op: "enqueue", Key: h.locks[0].Key(), Job: h.job,
		Detail: "whether the task exists could not be found out; its locks stay parked for it",
		Err:    errors.Join(cause, lookErr),
	}
}

// refused reports whether err is a definite answer of the enqueue script. It may
// be the answer to a re-send of a command that had been applied, so it does not
// mean that the task is not ours; it does mean that no command is still under way.
func refused(err error) bool {
	return errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
}

// find looks for the task: once, and a second time when there was no answer, or
// when the enqueue had none and may yet be applied.
func (h *handover) find(definite bool) (*asynq.TaskInfo, world, error) {
	info, found, err := h.look()
	if found == worldOurs || found == worldAbsent && definite {
		return info, found, err
	}
	time.Sleep(lookPause) // not cut short by the request's end: the locks' fate is decided here
	return h.look()
}

// look asks the Inspector once. Its goroutine ends when the Inspector's client
// gives up, which may be after look has.
func (h *handover) look() (*asynq.TaskInfo, world, error) {
	type answer struct {
		info *asynq.TaskInfo
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		info, err := h.c.inspector.GetTaskInfo(h.queue, h.id)
		answers <- answer{info, err}
	}()
	timeout := time.NewTimer(lookTimeout)
	defer timeout.Stop()
	var a answer
	select {
	case a = <-answers:
	case <-timeout.C:
		return nil, worldUnknown, context.DeadlineExceeded
	}
	switch {
	case errors.Is(a.err, asynq.ErrTaskNotFound), errors.Is(a.err, asynq.ErrQueueNotFound):
		return nil, worldAbsent, nil
	case a.err != nil:
		return nil, worldUnknown, a.err
	case a.info.Headers[envelope.TokensHeader] != h.seal:
		return nil, worldAbsent, nil
	}
	return a.info, worldOurs, nil
}
