package joblock

import (
	"context"
	"sync"
	"time"
)

// janitor repeats releases that had no answer until the store confirms them or
// the leases concerned have run out anyway. Its goroutine lives only while there
// is something to clean up.
type janitor struct {
	l      *Locker
	ctx    context.Context
	cancel context.CancelFunc
	fresh  chan struct{} // holds one token when something new is to be done

	mu      sync.Mutex
	todo    []cleanup
	running chan struct{} // closed when the goroutine ends; nil when none runs
	stopped bool
}

type cleanup struct {
	req   ReleaseRequest
	until time.Time // afterwards there is nothing left to clean up
	tried bool

	// What is to be undone had no answer and may itself be on its way yet: "not
	// there" settles it only when it is still so CallTimeout later.
	stray   bool
	refused time.Time // when the store first answered "not there"
}

func newJanitor(l *Locker) *janitor {
	j := &janitor{l: l, fresh: make(chan struct{}, 1)}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// add has a release repeated until it is answered, or until its time is over.
func (j *janitor) add(c cleanup) {
	j.mu.Lock()
	if j.stopped {
		j.mu.Unlock()
		j.giveUp([]cleanup{c})
		return
	}
	defer j.mu.Unlock()
	j.todo = append(j.todo, c)
	j.wake()
	if j.running == nil {
		j.running = make(chan struct{})
		go j.run()
	}
}

// stop finishes what is to be done, as long as ctx lasts.
func (j *janitor) stop(ctx context.Context) error {
	j.mu.Lock()
	j.stopped = true
	running := j.running
	j.mu.Unlock()
	defer j.cancel()
	if running == nil {
		return nil
	}
	select {
	case <-running:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) // the call under way is cut off
	}
}

func (j *janitor) run() {
	pause := newRetryPause()
	again := true // it is time to repeat what had no answer
	var due time.Time
	for {
		j.giveUp(j.over())
		batch, ok := j.next(again)
		if !ok {
			return
		}
		if len(batch) > 0 && j.finish(batch, j.send(batch)) {
			pause, again = newRetryPause(), true // the store answers: no reason to wait
			continue
		}
		if again {
			due = j.l.now().Add(pause.next())
		}
		t := time.NewTimer(due.Sub(j.l.now()))
		select {
		case <-t.C:
			again = true
		case <-j.fresh:
			t.Stop()
			again = false
		case <-j.ctx.Done():
			t.Stop()
		}
	}
}

// over takes what there is no more time for off the list, after stop that is all,
// and returns what of it never had an answer.
func (j *janitor) over() (failed []cleanup) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.l.now()
	var rest []cleanup
	for _, c := range j.todo {
		switch {
		case now.Before(c.until) && j.ctx.Err() == nil:
			rest = append(rest, c)
		case c.refused.IsZero():
			failed = append(failed, c)
		}
	}
	j.todo = rest
	return failed
}

// giveUp tells of clean-ups that had no answer in time.
func (j *janitor) giveUp(failed []cleanup) {
	if len(failed) == 0 {
		return
	}
	j.l.cfg.Logger.Warn("joblock: clean-up had no answer in time, what is left of the locks runs out by itself", "locks", len(failed))
	j.l.tellCleanupFailed(failed)
}

// next returns what to send now, which is then at the front of the list: what is
// new, and with again also what had no answer. When nothing is left it ends the
// goroutine: false.
func (j *janitor) next(again bool) ([]cleanup, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var fresh, tried []cleanup
	for _, c := range j.todo {
		if c.tried {
			tried = append(tried, c)
		} else {
			fresh = append(fresh, c)
		}
	}
	n := len(fresh)
	j.todo = append(fresh, tried...)
	if len(j.todo) == 0 {
		close(j.running)
		j.running = nil
		return nil, false
	}
	if n > renewBatch {
		j.wake() // for those that do not fit
	}
	if again {
		n = len(j.todo)
	}
	n = min(renewBatch, n)
	for i := range n {
		j.todo[i].tried = true
	}
	return append([]cleanup(nil), j.todo[:n]...), true
}

// wake tells the goroutine that there is something that was not tried yet.
func (j *janitor) wake() {
	select {
	case j.fresh <- struct{}{}:
	default:
	}
}

// send releases a batch. Errors need no report here: an item without an answer
// is tried again.
func (j *janitor) send(batch []cleanup) []Reply {
	ctx, cancel := context.WithTimeout(j.ctx, j.l.cfg.CallTimeout)
	defer cancel()
	reqs := make([]ReleaseRequest, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	replies, err := j.l.store.Release(ctx, reqs)
	if err != nil {
		j.l.cfg.Logger.Debug("joblock: clean-up had no answer, trying again", "locks", len(batch), "err", err)
	}
	return replies
}

// finish takes what is settled off the list and puts the rest at its end. It
// reports whether all of the batch was settled.
func (j *janitor) finish(batch []cleanup, replies []Reply) bool {
	now := j.l.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	all := true
	rest := append([]cleanup(nil), j.todo[len(batch):]...)
	for i, c := range batch {
		var out Outcome
		if i < len(replies) {
			out = replies[i].Outcome
		}
		switch out {
		case OutcomeOK, OutcomeLapsed, OutcomeForeign:
			continue
		case OutcomeUnknown:
		default:
			if c.refused.IsZero() {
				c.refused = now
			}
			if !c.stray || now.Sub(c.refused) >= j.l.cfg.CallTimeout {
				continue
			}
		}
		rest = append(rest, c)
		all = false
	}
	j.todo = rest
	return all
}
