package handoff

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock"
)

const (
	// watchFor is how long a Client goes on looking, in the background, for a task
	// of which it could not find out within settleFor whether it was enqueued.
	// Afterwards its locks are left to their reservation. An outage that lasts longer is one of people, not of fail-overs.
	watchFor = 5 * time.Minute

	// maxWatches bounds the look-outs of one Client: in an outage every request
	// that had parked a lock makes one.
	maxWatches = 256

	watchPauseMin = 500 * time.Millisecond
	watchPauseMax = 10 * time.Second
)

// reasonNotEnqueued is what Status says about a lock that a look-out released.
const reasonNotEnqueued = "its job was not enqueued"

// watch looks in the background for the task of h, whose fate is unknown, and
// releases its locks if it turns out not to exist.
func (c *Client) watch(h *handover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil || c.watches >= maxWatches {
		c.logger.Warn("handoff: too many enqueues of unknown outcome, or the Client is closed: locks are left to their reservation",
			"job", h.job)
		return
	}
	c.watches++
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		h.reconcile(c.closing)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watches--
	}()
}

// reconcile asks until there is an answer and it has been acted upon.
func (h *handover) reconcile(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	for pause := watchPauseMin; ; pause = min(2*pause, watchPauseMax) {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			h.c.logger.Warn("handoff: it is still unknown whether a task was enqueued: its locks are left to their reservation", "job", h.job)
			return
		}
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
}

// abandon releases locks whose task does not exist. It goes through the handles,
// which know whether a Reclaim of before has got its answer yet; a handle that
// has moved on since it was parked, which its fence tells, is left alone. It
// returns an error while there is a lock that the store did not answer for.
func (h *handover) abandon(ctx context.Context) error {
	var errs []error
	for _, p := range h.parked {
		if p.lock.Token() != p.token {
			continue
		}
		err := p.lock.Reclaim(ctx)
		if err == nil {
			err = p.lock.Release(ctx, joblock.Reason(reasonNotEnqueued))
		}
		if errors.Is(err, joblock.ErrUnavailable) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close ends the look-outs for tasks of unknown outcome and waits for them, as
// long as ctx lets it; its error is ctx's. Their locks are left to their
// reservations. A Client can be used on after Close, without such look-outs.
// Without Close they end by themselves, after five minutes at the latest. Close the
// Client before its Locker: a look-out releases locks through it. It returns
// ErrInvalid for a Client that NewClient has not made.
func (c *Client) Close(ctx context.Context) error {
	if err := c.check("close client"); err != nil {
		return err
	}
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
