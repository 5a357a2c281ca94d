package joblock

import (
	"context"
	"sync"
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
			stop, err = w.l.store.Watch(ctx, w.l.engine.forced)
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

// forced ends the lock that was taken away. It looks at every lock: an index by
// key would cost each of them something, for what people do once in a while.
func (e *engine) forced(f Forced) {
	e.mu.Lock()
	var hit *Lock
	for _, k := range e.queue {
		if k.key == f.Key && k.Fence() == f.Fence {
			hit = k
		}
	}
	e.mu.Unlock()
	if hit != nil {
		hit.lose(hit.lost("watch", Reply{Outcome: OutcomeReleased, Ended: EndedForced, Reason: f.Reason}))
	}
}
