package handoff

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// handover is one call of EnqueueAll: a task and the locks on their way into it.
type handover struct {
	*taskSpec
	c      *Client
	locks  joblock.Locks
	parked joblock.Locks // of locks, from the first on
	tokens []joblock.Token
	seal   string // the tokens header: by it the task is recognised as ours

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

// newHandover checks everything that can be checked before anything is parked.
func (c *Client) newHandover(locks joblock.Locks, task *asynq.Task, opts []asynq.Option) (*handover, error) {
	if len(locks) == 0 || len(locks) > envelope.MaxTokens {
		return nil, badTask("%d locks, must be from 1 to %d", len(locks), envelope.MaxTokens)
	}
	spec, err := readTask(task, opts)
	if err != nil {
		return nil, err
	}
	if d := spec.delay(); d > joblock.MaxHoldLimit-c.hold {
		return nil, badTask("a delay of %s and Config.Hold of %s make more than the %s for which a lock can be reserved",
			d, c.hold, joblock.MaxHoldLimit)
	}
	seen := make(map[string]bool, len(locks))
	for _, lock := range locks {
		if err := c.checkLock(lock); err != nil {
			return nil, fmt.Errorf("handoff: enqueue %s: %w", spec.job, err)
		}
		if seen[lock.Key()] {
			return nil, invalid("enqueue", lock.Key(), "two locks on this key")
		}
		seen[lock.Key()] = true
	}
	return &handover{taskSpec: spec, c: c, locks: locks}, nil
}

// checkLock refuses a lock that cannot be handed over.
func (c *Client) checkLock(lock *joblock.Lock) error {
	if lock == nil {
		return badTask("a lock is nil")
	}
	if !c.locks.Owns(lock) {
		return invalid("enqueue", lock.Key(), "the lock is not of this Client's Locker: the worker could not find it")
	}
	return lock.Err()
}

// park moves all locks from their handles to their tokens, or none.
func (h *handover) park(ctx context.Context) error {
	opts := joblock.ParkOptions{Hold: h.delay() + h.c.hold, Job: h.job}
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
	headers, err := envelope.Envelope{Tokens: h.tokens, Retries: h.retries}.Seal()
	if err != nil {
		return nil, h.undo(ctx, err)
	}
	h.seal = headers[envelope.TokensHeader]
	task, opts := h.sealed(headers)
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
