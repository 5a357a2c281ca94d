package handoff

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

const (
	// watchFor is how long a Client goes on looking, in the background, for a task whose enqueue was still unclear
	// after settleFor. Afterwards the task's locks are left to their reservation. A fail-over takes less time than
	// watchFor. A longer outage needs an operator.
	watchFor = 5 * time.Minute

	// maxWatches bounds the watches of one Client. In an outage, every request that had parked a lock starts a watch.
	maxWatches = 256

	watchPauseMin = 500 * time.Millisecond
	watchPauseMax = 10 * time.Second
)

// watch finds out in the background whether the task of h exists, and releases the locks if the task does not exist.
func (c *Client) watch(h *handover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil || c.watches >= maxWatches {
		c.logger.Warn("handoff: too many enqueues of unknown outcome, or the Client is closed: locks are left to their reservation",
			"job", h.job)
		return
	}
	c.watches++
	c.running.Go(func() {
		h.reconcile(c.closing)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watches--
	})
}

// reconcile looks the task up until its enqueue is clear, and then acts.
func (h *handover) reconcile(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	for pause := watchPauseMin; sleep.For(ctx, pause) == nil; pause = min(2*pause, watchPauseMax) {
		actx, cancel := context.WithTimeout(ctx, settleFor)
		_, outcome, err := h.find(actx)
		cancel()
		if outcome == notEnqueued {
			err = h.abandon(ctx)
		}
		if err == nil {
			h.c.logger.Info("handoff: it is known now whether a task was enqueued", "job", h.job, "enqueued", outcome == enqueued)
			return
		}
	}
	h.c.logger.Warn("handoff: it is still unknown whether a task was enqueued: its locks are left to their reservation",
		"job", h.job)
}

// abandon releases the locks of a task that does not exist. Locks with handles are released through their handles: a
// handle knows whether an earlier Reclaim was answered. abandon skips a handle whose token is not that of the enqueue:
// the caller has used that handle since. An error means that the store has not answered for a lock.
func (h *handover) abandon(ctx context.Context) error {
	if h.parked == nil {
		if err := h.undo(ctx); errors.Is(err, joblock.ErrUnavailable) {
			return err
		}
		return nil
	}
	var errs []error
	for i, lock := range h.parked {
		if lock.Token() != h.tokens[i] {
			continue
		}
		err := lock.Reclaim(ctx)
		if err == nil {
			err = lock.Release(ctx, joblock.Reason(reasonNotEnqueued))
		}
		if errors.Is(err, joblock.ErrUnavailable) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close ends the Client's background work: the search for tasks whose enqueue was unclear, and the release of their
// locks. Locks that are still unclear are left to their reservations. Close waits until the work has ended. If ctx
// ends first, Close returns ctx's cause. Without Close the work ends by itself after five minutes at most.
//
// Close the Client before its Locker, through which the Client releases locks. A closed Client can still enqueue, but
// does no background work. Close of a Client that NewClient has not made returns joblock.ErrInvalid.
func (c *Client) Close(ctx context.Context) error {
	if err := c.check("close client"); err != nil {
		return err
	}
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	return sleep.While(ctx, c.running.Wait)
}
