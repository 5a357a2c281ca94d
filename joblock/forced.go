package joblock

import (
	"context"
	"github.com/joblock/toolkit/joblock/driver"
	"sync"
	"time"
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

// forcedPause passes between two looks at one lock. Anybody may publish who is let, so
// it also bounds what pushes that nobody here has made can cost.
const forcedPause = 200 * time.Millisecond

// looking is how far the looks at a lock have come that pushes give rise to.
type looking uint8

const (
	lookNot   looking = iota // nobody looks
	lookOnce                 // a look is under way, or was made just now
	lookAgain                // and another push has come since
)

// forced has the lock looked at that is said to have been taken away: a push is no more
// than a hint. It searches all locks: an index by key would cost each of them something,
// for what people do once in a while.
func (e *engine) forced(f driver.Forced) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.queue {
		if k.key == f.Key && k.doubt(f.Fence) && !e.stopped {
			e.calls.Go(func() { e.verify(k) })
		}
	}
}

// doubt notes that a term of k is said to have been ended, and reports whether somebody
// has to go and look. While one does, he looks once more afterwards: the push may be about
// what has happened since.
func (k *Lock) doubt(fence int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != lockHeld || k.fence != fence {
		return false
	}
	first := k.look == lookNot
	k.look = lookAgain
	return first
}

// verify looks at k until there has been no push during the last look, and ends it if
// the store has it otherwise. A look without an answer is left to the next renewal.
func (e *engine) verify(k *Lock) {
	for {
		k.mu.Lock()
		if k.look == lookOnce || k.state != lockHeld {
			k.look = lookNot
			k.mu.Unlock()
			return
		}
		k.look = lookOnce
		fence := k.fence
		k.mu.Unlock()
		rec, err := e.l.inspect(e.ctx, "watch", k.key)
		if err != nil {
			e.l.cfg.Logger.Debug("joblock: a lock that is said to have been forced could not be looked at", "key", k.key, "err", err)
		} else if lost := k.contradicted(fence, rec); lost != nil {
			k.lose(lost)
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

// contradicted returns the loss of a lock of which the store says rec, nil if that is
// how it should be. A look at another term than the present says nothing, nor does one
// beside a Park whose answer is owed: the next renewal, which names both, tells.
func (k *Lock) contradicted(fence int64, rec driver.Record) *Error {
	k.mu.Lock()
	ours := rec.Owner == *k.owner
	silent := k.state != lockHeld || k.fence != fence || k.parkNonce != ""
	k.mu.Unlock()
	switch {
	case silent, ours && rec.Fence == fence && rec.State == StateHeld:
		return nil
	case ours && (rec.Ended == EndedReleased || rec.Ended == EndedForced):
		return k.lost("watch", driver.Reply{Outcome: driver.OutcomeReleased, Ended: rec.Ended, Reason: rec.Reason})
	case ours && rec.Fence == fence:
		return k.lost("watch", driver.Reply{Outcome: driver.OutcomeLapsed})
	case rec.State == StateForeign:
		return k.lost("watch", driver.Reply{Outcome: driver.OutcomeForeign})
	case rec.Fence == 0:
		return k.lost("watch", driver.Reply{Outcome: driver.OutcomeNotFound})
	}
	return k.lost("watch", driver.Reply{Outcome: driver.OutcomeNotOwner, Holder: rec.Holder, Job: rec.Job, Remaining: rec.Lease})
}
