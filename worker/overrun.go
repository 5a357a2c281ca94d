package worker

import (
	"context"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
)

// limitOverrun makes the attempt stop renewing locks when Config.Overrun has passed since the end of a.ctx, so that a
// handler that hangs does not hold its locks forever. Call the returned function when the handler has ended.
func (a *attempt) limitOverrun(locks core.Locks) (returned func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(a.ctx, func() {
		if sleep.AtMost(a.w.cfg.Overrun, ended) {
			return
		}
		a.log().Warn("worker: handler still runs long after the end of its context; its locks are no longer renewed",
			"overrun", a.w.cfg.Overrun)
		for _, lock := range locks {
			lock.StopRenewing()
		}
	})
	return func() {
		stop()
		close(ended)
	}
}
