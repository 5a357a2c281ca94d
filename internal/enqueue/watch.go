package enqueue

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
)

const (
	// watchFor is how long a Client goes on looking, in the background, for a task whose enqueue was still unclear after
	// settleFor. Afterwards the task's locks are left to their reservation. A fail-over takes less time; a longer outage
	// needs an operator.
	watchFor = 5 * time.Minute

	// maxWatches bounds the watches of one Client. In an outage, every request that had parked a lock starts a watch.
	maxWatches = 256

	watchPauseMin = 500 * time.Millisecond
	watchPauseMax = 10 * time.Second
)

// watch finds out in the background whether the task of d exists, and releases the locks if it does not. It is worth
// its lines: without it each enqueue of unknown outcome, hundreds in a fail-over, would reserve its keys for an hour
// although no job exists.
func (c *Client) watch(d *dispatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watched := func() {
		d.reconcile(c.life.Context())
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watches--
	}
	if c.watches >= maxWatches || !c.life.TryGo(watched) {
		c.logger.Warn("handoff: too many enqueues of unknown outcome, or the Client is closed: their locks stay until the reservations end",
			"job", d.job)
		return
	}
	c.watches++
}

// reconcile looks the task up until its enqueue is clear, and then acts.
func (d *dispatch) reconcile(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	for pause := watchPauseMin; sleep.For(ctx, pause) == nil; pause = min(2*pause, watchPauseMax) {
		actx, cancel := context.WithTimeout(ctx, settleFor)
		_, outcome, err := d.find(actx)
		cancel()
		if outcome == notEnqueued {
			err = d.kind.abandon(ctx)
		}
		if err == nil {
			d.c.logger.Info("handoff: the outcome of an enqueue is now known", "job", d.job, "enqueued", outcome == enqueued)
			return
		}
	}
	d.c.logger.Warn("handoff: it is still unknown whether a task was enqueued; its locks stay until their reservations end",
		"job", d.job)
}
