package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// Enqueue hands lock over to a job: it parks the lock, enqueues task with the lock's token
// in a header, and returns what asynq's Client would. From then on the handle can do
// nothing, a deferred Release frees nothing, and the worker that processes the task holds
// the lock.
//
// opts override the options of task, as in asynq; task itself is not changed. Two things
// differ from a plain enqueue. A TaskID is chosen if none is given, because the lock is
// bound to the job before the job exists. And the task has one spare retry, which asynq's
// tools show; package worker says what it is for. A task can be enqueued again from its own
// handler: the header is replaced.
//
// The returned TaskInfo lacks the header: TaskInfos are logged, and whoever has the tokens
// in the header can take the locks. asynq's record of the task has the header, so the
// Inspector, asynqmon and the handler see it.
//
// An error matches a sentinel of joblock or an error of asynq. lock.Err tells who has the
// lock: see "The errors of Enqueue" in the package comment. Give Enqueue a ctx with a
// deadline. It returns at most three seconds after the end of ctx, or after an error of the
// locks' store or of asynq. Without a deadline it waits for a silent server as long as
// asynq's Redis client does.
func (c *Client) Enqueue(ctx context.Context, lock *joblock.Lock, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueAll(ctx, joblock.Locks{lock}, task, opts...)
}

// EnqueueAll is Enqueue for a job that carries several locks. The job gets all of them, or
// the caller keeps all that it still had. They can differ only after an error that leaves
// locks parked; ask each lock's Err. Errors match ErrInvalid for no locks, more than 64, or
// two on one key.
func (c *Client) EnqueueAll(ctx context.Context, locks joblock.Locks, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if err := c.check("enqueue"); err != nil {
		return nil, err
	}
	spec, err := c.readTask(task, opts)
	if err != nil {
		return nil, err
	}
	if err := c.checkLocks(locks, spec); err != nil {
		return nil, err
	}
	if err := c.ready(ctx, spec); err != nil {
		return nil, err
	}
	h := &handover{dispatch: dispatch{taskSpec: spec, c: c}}
	info, err := h.run(ctx, locks)
	return shown(info), err
}

// handover is a task and the locks on their way into it.
type handover struct {
	dispatch
	parked []parked
}

// parked is a lock that was moved from its handle to its token.
type parked struct {
	lock  *joblock.Lock
	token joblock.Token
}

// checkLocks refuses locks that cannot be handed over to the task of spec.
func (c *Client) checkLocks(locks joblock.Locks, spec *taskSpec) error {
	if len(locks) == 0 || len(locks) > envelope.MaxTokens {
		return badTask("%d locks, must be from 1 to %d", len(locks), envelope.MaxTokens)
	}
	seen := make(map[string]bool, len(locks))
	for _, lock := range locks {
		if err := c.checkLock(lock); err != nil {
			return fmt.Errorf("handoff: enqueue %s: %w", spec.job, err)
		}
		if seen[lock.Key()] {
			return invalid("enqueue", lock.Key(), "two locks on this key")
		}
		seen[lock.Key()] = true
	}
	return nil
}

// checkLock refuses a lock that cannot be handed over.
func (c *Client) checkLock(lock *joblock.Lock) error {
	if lock == nil {
		return badTask("a lock is nil: if joblock.FromContext gave it, the request was not served behind a handoff.Middleware, " +
			"or with Claim.NoLock")
	}
	if !door.Of(c.locks).Owns(lock) {
		return invalid("enqueue", lock.Key(), "the lock is not of this Client's Locker: the worker could not find it")
	}
	err := lock.Err()
	var e *joblock.Error
	if errors.As(err, &e) && errors.Is(e, joblock.ErrAlreadyReleased) && e.Reason == reasonRequestOver {
		err = fmt.Errorf("%w; enqueue before the handler returns, or keep the lock with handoff.Keep", err)
	}
	return err
}

// run hands the locks over, all or none, and returns the task that has them.
func (h *handover) run(ctx context.Context, locks joblock.Locks) (*asynq.TaskInfo, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, h.wrap(err)
	}
	if err := h.park(ctx, locks); err != nil {
		return nil, h.undo(ctx, err)
	}
	if err := h.seal(ctx); err != nil {
		return nil, h.undo(ctx, err)
	}
	if info := h.send(ctx); info != nil {
		return info, nil
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	info, outcome, err := h.settle(ctx, dctx)
	switch outcome {
	case enqueued:
		return info, nil
	case notEnqueued:
		return nil, h.takeBack(dctx, err)
	}
	h.c.watch(h)
	return nil, err
}

// park moves all locks from their handles to their tokens. After an error the first
// ones may be parked.
func (h *handover) park(ctx context.Context, locks joblock.Locks) error {
	for _, lock := range locks {
		token, err := lock.Park(ctx, joblock.Reserve(h.delay()+h.c.reserve), joblock.ForJob(h.job))
		if err != nil {
			return h.wrap(err)
		}
		h.parked = append(h.parked, parked{lock, token})
		h.tokens = append(h.tokens, token)
	}
	return nil
}

// undo takes the locks back when nothing was sent.
func (h *handover) undo(ctx context.Context, err error) error {
	ctx, cancel := settling(ctx)
	defer cancel()
	return h.takeBack(ctx, err)
}

// takeBack takes the locks back because of err, until ctx ends, and returns err as the
// call's error.
func (h *handover) takeBack(ctx context.Context, err error) error {
	if rerr := h.reclaim(ctx); rerr != nil {
		h.c.logger.WarnContext(ctx, "handoff: locks of a job that was not enqueued could not be taken back",
			"job", h.job, "err", rerr)
		if errors.Is(rerr, joblock.ErrUnavailable) {
			h.c.watch(h)
		}
		err = fmt.Errorf("%w; and its locks could not be taken back: %w", err, rerr)
	}
	return err
}

// reclaim takes back what was parked, last first.
func (h *handover) reclaim(ctx context.Context) error {
	var errs []error
	for _, p := range slices.Backward(h.parked) {
		errs = append(errs, p.lock.Reclaim(ctx))
	}
	return errors.Join(errs...)
}
