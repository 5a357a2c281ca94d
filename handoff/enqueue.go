package handoff

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// handover is a task and the locks on their way into it.
type handover struct {
	*taskSpec
	c      *Client
	locks  joblock.Locks
	unique Unique        // zero but for EnqueueUnique
	parked joblock.Locks // of locks, from the first on
	tokens []joblock.Token
	seal   string // the task's header: by it the task is recognised as ours

	sending *sending // nil until the task is sent off
}

// sending is an enqueue under way. It can outlast its context, and the Client: it
// ends when asynq's Redis client gives up.
type sending struct {
	done chan struct{} // closed when what follows is set
	info *asynq.TaskInfo
	err  error
}

// failure returns the error of an enqueue that has returned one by now.
func (s *sending) failure() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
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
	if !c.locks.Owns(lock) {
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
func (h *handover) run(ctx context.Context) (*asynq.TaskInfo, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("handoff: enqueue %s: %w", h.job, err)
	}
	if err := h.park(ctx); err != nil {
		return nil, err
	}
	return h.enqueue(ctx)
}

// park moves all locks from their handles to their tokens, or none.
func (h *handover) park(ctx context.Context) error {
	opts := joblock.ParkOptions{Hold: h.delay() + h.c.reserve, Job: h.job}
	for _, lock := range h.locks {
		token, err := lock.Park(ctx, opts)
		if err != nil {
			return h.undo(ctx, err)
		}
		h.parked = append(h.parked, lock)
		h.tokens = append(h.tokens, token)
	}
	return nil
}

// enqueue sends the task off with its tokens.
func (h *handover) enqueue(ctx context.Context) (*asynq.TaskInfo, error) {
	var err error
	if h.seal, err = h.envelope(ctx); err != nil {
		return nil, h.undo(ctx, err)
	}
	task, opts := h.sealed(h.seal)
	s := &sending{done: make(chan struct{})}
	h.sending = s
	go func() {
		defer close(s.done)
		s.info, s.err = h.c.client.EnqueueContext(ctx, task, opts...)
	}()
	select {
	case <-s.done:
		if s.err == nil {
			return s.info, nil
		}
	case <-ctx.Done():
	}
	return h.settle(ctx)
}

// envelope returns the header in which the task carries its locks.
func (h *handover) envelope(ctx context.Context) (string, error) {
	env := envelope.Envelope{Tokens: h.tokens, Retries: h.retries}
	if err := h.unique.mark(&env, h.tokens[0]); err != nil {
		return "", err
	}
	return env.Seal(ctx, h.c.ring, h.job, h.task.Type())
}

// undo is fail where nothing was sent.
func (h *handover) undo(ctx context.Context, err error) error {
	ctx, cancel := settling(ctx)
	defer cancel()
	return h.fail(ctx, err)
}

// fail takes the locks back because of err, as far as it can before ctx ends, and
// returns err as the call's error.
func (h *handover) fail(ctx context.Context, err error) error {
	err = fmt.Errorf("handoff: enqueue %s: %w", h.job, err)
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
	for i := len(h.parked) - 1; i >= 0; i-- {
		errs = append(errs, h.parked[i].Reclaim(ctx))
	}
	return errors.Join(errs...)
}
