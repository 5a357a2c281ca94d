package joblock

import (
	"context"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// forcedWatch hears of locks that ForceRelease takes away, if Config.WatchForced
// says so: one subscription for all locks of a Locker, made with the first.
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

// begin is called with every lock that the engine takes on, and never after the
// engine has stopped.
func (w *forcedWatch) begin() {
	if w.l.cfg.WatchForced {
		w.once.Do(func() { w.done.Go(w.run) })
	}
}

// run subscribes, trying until it works: nobody waits for it, and what is missed
// meanwhile is found by renewals.
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

// forcedPause passes between two looks at one lock. Anybody may publish who is let, so
// it also bounds what pushes that nobody here has made can cost.
const forcedPause = 200 * time.Millisecond

// forced has the lock looked at that is said to have been taken away: a push is no more
// than a hint. It searches all locks: an index by key would cost each of them something,
// for what people do once in a while.
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

// verify looks at k until there has been no push during the last look, and ends it if
// the store has it otherwise. A look without an answer is left to the next renewal.
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
			e.l.cfg.Logger.Debug("joblock: a lock that is said to have been forced could not be looked at", "key", k.h.key, "err", err)
		} else {
			k.mu.Lock()
			k.unlock(k.h.verified("watch", fence, rec))
		}
		pause := time.NewTimer(forcedPause)
		select {
		case <-pause.C:
		case <-e.ctx.Done():
			pause.Stop()
			return
		}
	}
}
