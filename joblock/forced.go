package joblock

import (
	"context"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// forcedWatch receives the pushes of ForceRelease, if Config.WatchForced is set: one
// subscription for all locks of a Locker, made with the first.
type forcedWatch struct {
	l      *Locker
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	done   sync.WaitGroup
}

func newForcedWatch(l *Locker) *forcedWatch {
	w := &forcedWatch{l: l}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// begin is called for every lock that the engine takes on, and never after its stop.
func (w *forcedWatch) begin() {
	if w.l.cfg.WatchForced {
		w.once.Do(func() { w.done.Go(w.run) })
	}
}

// run subscribes, and tries until it works. Nobody waits for it: renewals find what it
// misses meanwhile.
func (w *forcedWatch) run() {
	var stop func()
	for pause := newRetryPause(); ; {
		err := w.l.call(w.ctx, "watch", "", func(ctx context.Context) (err error) {
			stop, err = w.l.store.Subscribe(ctx, driver.ForcedInbox, w.l.engine.forced)
			return err
		})
		if err == nil {
			break
		}
		if !pause.wait(w.ctx) {
			return
		}
	}
	<-w.ctx.Done()
	stop()
}

func (w *forcedWatch) close() {
	w.cancel()
	w.done.Wait()
}

// forcedPause passes between two checks of one lock. It also bounds the cost of forged
// pushes.
const forcedPause = 200 * time.Millisecond

// forced starts a check of the lock that the push is about. A push is only a hint. It
// searches all locks: an index by key would cost every lock something, for a rare
// event.
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

// verify reads the record of k and tells the holding, again after each push meanwhile.
// If the store does not answer, the next renewal will find out.
func (e *engine) verify(k *Lock) {
	for {
		k.mu.Lock()
		fence, check := k.h.verifyBegun()
		k.mu.Unlock()
		if !check {
			return
		}
		rec, err := e.l.inspect(e.ctx, "watch", k.h.key)
		if err != nil {
			e.l.cfg.Logger.Debug("joblock: could not read the record of a lock that is said to have been forced", "key", k.h.key, "err", err)
		} else {
			k.mu.Lock()
			k.unlock(k.h.verified("watch", fence, rec))
		}
		select {
		case <-time.After(forcedPause):
		case <-e.ctx.Done():
			return
		}
	}
}
