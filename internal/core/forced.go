package core

import (
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// watchForced subscribes to the pushes of ForceRelease, once, if Config.WatchForced is set. All locks of a Locker share
// the subscription, which the first lock makes. Do not call watchForced after stop.
func (e *engine) watchForced() {
	if e.l.cfg.WatchForced {
		e.watch.Do(func() { e.watching.Go(e.subscribeForced) })
	}
}

// subscribeForced calls forced with each push of a forced release, until stop. No call waits for the subscription: until
// it exists, renewals find forced releases.
func (e *engine) subscribeForced() { e.l.subscribe(e.ctx, driver.ForcedInbox, e.forced) }

// forcedPause is the time between two checks of one lock. It bounds the cost of forged pushes.
const forcedPause = 200 * time.Millisecond

// forced starts a check of the lock that the push f names, because a push is only a hint. It searches all locks: an
// index by key would cost every lock something, for a rare event.
func (e *engine) forced(f driver.Push) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.queue {
		if k.h.key != f.Key || e.stopped {
			continue
		}
		k.mu.Lock()
		check := k.h.doubted(f.Fence)
		k.mu.Unlock()
		if check {
			e.calls.Go(func() { e.verify(k) })
		}
	}
}

// verify reads the record of k and passes it to the holding. Pushes that come in the meantime make verify read again.
// If the store does not answer, the next renewal will show a forced release.
func (e *engine) verify(k *Lock) {
	for {
		k.mu.Lock()
		fence, check := k.h.verifyBegun()
		k.mu.Unlock()
		if !check {
			return
		}
		recs, err := e.l.Inspect(e.ctx, "watch", k.h.key, driver.InspectRequest{Keys: []string{k.h.key}})
		if err != nil {
			e.l.cfg.Logger.Debug("joblock: could not read the record of a lock after a notification of its forced release", "key", k.h.key, "err", err)
		} else {
			k.mu.Lock()
			k.unlock(k.h.verified("watch", fence, recs[0]))
		}
		select {
		case <-time.After(forcedPause):
		case <-e.ctx.Done():
			return
		}
	}
}
