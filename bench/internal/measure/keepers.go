package measure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
)

// keepers renew the locks of libraries that do not, the way their users would: a
// goroutine with a ticker for each.
type keepers struct {
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	ttl     time.Duration
	running sync.WaitGroup
	failed  atomic.Int64 // locks
}

func newKeepers(ctx context.Context, ttl time.Duration) *keepers {
	k := &keepers{ttl: ttl}
	k.ctx, k.cancel = context.WithCancel(ctx)
	return k
}

// keep renews held until stop, if it has to be renewed.
func (k *keepers) keep(held peer.Held) {
	r, ok := held.(peer.Refresher)
	if !ok {
		return
	}
	k.running.Go(func() {
		tick := time.NewTicker(k.ttl / renewalsPerTTL)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-k.ctx.Done():
				return
			}
			if err := r.Refresh(k.ctx, k.ttl); err != nil {
				if k.ctx.Err() == nil {
					k.failed.Add(1)
				}
				return
			}
		}
	})
}

// stop ends all renewing and waits for it.
func (k *keepers) stop() {
	k.cancel()
	k.running.Wait()
}
