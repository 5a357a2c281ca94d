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

	mu      sync.Mutex
	todo    []cleanup
	running chan struct{} // closed when the goroutine ends; nil when none runs
	stopped bool
}

type cleanup struct {
	req     ReleaseRequest
	until   time.Time // afterwards there is nothing left to clean up
	refused time.Time // when the store first answered "not there"
}

func newJanitor(l *Locker) *janitor {
	j := &janitor{l: l}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// add has req repeated until it is answered, or until the given time.
func (j *janitor) add(req ReleaseRequest, until time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stopped {
		return // the lease ends by itself
	}
	j.todo = append(j.todo, cleanup{req: req, until: until})
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
		j.cancel()
		<-running
		return context.Cause(ctx)
	}
}

func (j *janitor) run() {
	pause := newBackoff(20*time.Millisecond, time.Second)
	for {
		j.mu.Lock()
		now := j.l.now()
		keep := j.todo[:0]
		for _, c := range j.todo {
			if now.Before(c.until) {
				keep = append(keep, c)
			}
		}
		clear(j.todo[len(keep):])
		j.todo = keep
		if len(j.todo) == 0 || j.ctx.Err() != nil {
			j.todo = nil
			close(j.running)
			j.running = nil
			j.mu.Unlock()
			return
		}
		batch := append([]cleanup(nil), j.todo[:min(renewBatch, len(j.todo))]...)
		j.mu.Unlock()

		j.finish(batch, j.send(batch))

		t := time.NewTimer(pause.next())
		select {
		case <-t.C:
		case <-j.ctx.Done():
			t.Stop()
		}
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

// finish takes what is settled off the list and puts the rest at its end. "Not
// there" settles an item only when it is still so CallTimeout later: the call
// that is being undone may itself be on its way yet.
func (j *janitor) finish(batch []cleanup, replies []Reply) {
	now := j.l.now()
	j.mu.Lock()
	defer j.mu.Unlock()
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
			if now.Sub(c.refused) >= j.l.cfg.CallTimeout {
				continue
			}
		}
		rest = append(rest, c)
	}
	j.todo = rest
}
