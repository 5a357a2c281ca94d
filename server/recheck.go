package server

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/joblock/toolkit/server/internal/problem"
)

const (
	// recheckEvery is how often the rights of a caller are looked up again while its stream is open or its request waits.
	recheckEvery = 10 * time.Second

	// rightsGrace is how long a caller keeps its rights while they cannot be looked up again.
	rightsGrace = time.Minute

	// confirmAfter is the shortest wait after which the rights are looked up once more before the answer, and confirmTime
	// is how long the answer may be delayed for that.
	confirmAfter = time.Second
	confirmTime  = 2 * time.Second
)

// A watch looks up the rights of a caller again and again while its call lasts. It calls the Authorizer in a goroutine of
// its own, so a slow Authorizer delays no ping.
type watch struct {
	c   *call
	may func(*Principal) bool
	end func(*problem.Problem)

	began time.Time

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	who     Principal // as the Authorizer last returned it
	failing time.Time // since when the Authorizer has failed; zero if it works
	stopped bool
}

// watch calls end, at most once, when the function may no longer returns true for the caller, because its account was
// removed, changed or has expired. The result is nil for callers whose rights do not change. End a watch with Stop.
func (c *call) watch(may func(*Principal) bool, end func(*problem.Problem)) *watch {
	if c.s.cfg.anyone() {
		return nil
	}
	w := &watch{c: c, may: may, end: end, began: time.Now(), who: c.who}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.next(w.began), w.look)
	return w
}

// mayLock returns the condition of a watch for a caller that waits for the lock on key, or whose lock the server renews.
func mayLock(key string) func(*Principal) bool {
	return func(p *Principal) bool { return p.may(ScopeLock) && p.mayUse(key) }
}

// Confirm looks up the rights once more before a caller that has waited gets its lock.
func (w *watch) Confirm() {
	if w == nil || time.Since(w.began) < confirmAfter {
		return
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		w.look()
	}()
	late := time.NewTimer(confirmTime)
	defer late.Stop()
	select {
	case <-looked:
	case <-late.C: // an answer that arrives later still counts
	}
}

// Stop ends the watch: it does not call end any more.
func (w *watch) Stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}

// next returns how long to wait before the next lookup: no longer than until the rights expire.
func (w *watch) next(now time.Time) time.Duration {
	if w.who.Expires.IsZero() {
		return recheckEvery
	}
	return min(recheckEvery, max(0, w.who.Expires.Sub(now)))
}

func (w *watch) look() {
	who, err := w.ask()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	now := time.Now()
	if p := w.judge(who, err, now); p != nil {
		w.stopped = true
		w.end(p)
		return
	}
	w.timer.Reset(w.next(now))
}

// ask calls the Authorizer. It recovers from a panic, which would end the process in this goroutine.
func (w *watch) ask() (who Principal, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the Authorizer panicked: %v", v)
		}
	}()
	return w.c.s.whoIs(w.c.r)
}

// judge records the result of the Authorizer. It returns nil while the caller keeps its rights.
func (w *watch) judge(who Principal, err error, now time.Time) *problem.Problem {
	switch {
	case errors.Is(err, ErrUnauthorized):
		return rightsEnded()
	case err != nil:
		if w.failing.IsZero() {
			w.failing = now
			w.c.s.cfg.Logger.Warn("server: could not look up a caller's rights again; the caller keeps them for now",
				"request", w.c.id, "principal", w.who.ID, "for", rightsGrace, "err", err)
		}
		if now.Sub(w.failing) >= rightsGrace {
			return rightsUnknown()
		}
	case who.ID != w.who.ID || !w.may(&who):
		return rightsEnded()
	default:
		w.who, w.failing = who, time.Time{}
	}
	if w.who.expired(now) {
		return rightsEnded()
	}
	return nil
}
