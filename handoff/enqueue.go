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

// Enqueue hands lock over to a job: it parks the lock, enqueues task with the
// lock's token in a header, and returns what asynq's Client would. From then on
// the handle can do nothing, a deferred Release frees nothing, and the worker that
// processes the task holds the lock.
//
// opts override the options that the task was made with, as in asynq. Both are
// kept, and so are the task's headers; task itself is not changed. Two things
// differ from a plain enqueue: the TaskID is chosen here if none is given, so that
// the lock can be bound to the job before the job exists, and the task is enqueued
// with one retry more than asked for (asynq's tools show n+1). The worker takes
// that one away again: asynq archives a task whose retries are used up before it
// looks at whether the last attempt was charged, so without a spare one a busy
// lock would cost the job. The header of an earlier envelope, on a task that
// is enqueued again from its own handler, is overwritten.
//
// The TaskInfo that is returned lacks that header: the owner tokens in it are good for
// the locks, and TaskInfos are logged. The header is in asynq's record of the task, and
// so in what the Inspector and asynqmon show and in the Headers of the task that a
// handler is given.
//
// On error lock.Err tells in which state each lock is:
//
//   - nil: the caller holds it, as before the call. The error is ErrInvalid for
//     anything wrong with the arguments, Park's, another lock's, or asynq's:
//     asynq.ErrTaskIDConflict and asynq.ErrDuplicateTask match. asynq makes mere
//     text of the errors of Redis; that of ctx is joined.
//   - ErrLost: it was lost, before the call or during it; neither the caller nor
//     this job has it.
//   - ErrAlreadyReleased: the caller had released it before the call.
//   - ErrNotOwner: the caller does not hold it. Either it had been handed over
//     before the call, and the error is ErrNotOwner too; or this call has parked
//     it, for a job that may or may not exist.
//
// In that last case the error matches joblock.ErrUnavailable where it could not be
// found out whether the task exists, or whether the lock was taken back. Until it
// is found out neither side runs under the lock and nobody else gets it: if the
// task exists it runs under it, and if not the lock is released. That is as soon as
// Redis answers, within five minutes; after that, or after Close, or with very many
// such enqueues at once, it is when the reservation ends. The error matches ErrBusy
// or ErrAlreadyReleased where the lock could not be taken back because a job has
// it, or has ended it: then the enqueue had succeeded although asynq reported an
// error.
//
// Enqueue returns three seconds after the end of ctx at the latest, or three seconds after
// an error of the lock's store or of asynq if that comes first. Give it a ctx with a deadline: without one a
// server that is silent is waited for as long as asynq's Redis client does.
//
// The package comment says how the outcome of a failed enqueue is found out.
func (c *Client) Enqueue(ctx context.Context, lock *joblock.Lock, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueAll(ctx, joblock.Locks{lock}, task, opts...)
}

// EnqueueAll is Enqueue for a job that carries several locks: all of them go to
// the job, or all that were the caller's stay with the caller. Only where Enqueue
// would leave its one lock parked may they differ; each one's Err tells. It returns ErrInvalid for no locks, more
// than 64, or two on one key.
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
	if errors.As(err, &e) && e.Code == joblock.CodeAlreadyReleased && e.Reason == reasonRequestOver {
		err = fmt.Errorf("%w; enqueue before the handler returns, or have it take the lock along with handoff.Keep", err)
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

// undo is takeBack where nothing was sent.
func (h *handover) undo(ctx context.Context, err error) error {
	ctx, cancel := settling(ctx)
	defer cancel()
	return h.takeBack(ctx, err)
}

// takeBack takes the locks back because of err, as far as it can before ctx ends, and
// returns err as the call's error.
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
