package core

import (
	"context"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// cleanBatches is how many batches of new clean-ups may be under way at a time. With several batches, one slow node
	// of a cluster does not delay the other nodes.
	cleanBatches = 4

	// maxOverdue is how many strays are kept past their time while the store does not answer. Without a bound all strays
	// of an outage would pile up.
	maxOverdue = 10_000
)

// janitor repeats releases that had no answer, until the store confirms them or the leases have ended anyway. Its
// goroutines live only while there are clean-ups. Its cost is linear in the number of clean-ups: there are many when
// the store is busy or has just come back.
type janitor struct {
	l      *Locker
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // buffered 1: there is something to send or to wait for

	mu      sync.Mutex // guards what follows
	running chan struct{}
	stopped bool

	// Each clean-up is in one of these lists, or in a batch under way.
	fresh   cleanups    // not sent yet
	crowded int         // the length of fresh at which thin runs again
	silent  cleanups    // had no answer
	doubted [2]cleanups // strays that the store did not find, once or twice

	flying   int       // batches under way
	retrying bool      // a batch from the list silent is under way
	retryAt  time.Time // when the next such batch is due
	pause    *pauses   // between such batches
	overdue  int       // how many clean-ups in silent are kept after their time
	answered time.Time // when the store answered last, or was first asked after an idle time
}

type cleanup struct {
	req   driver.ReleaseRequest
	until time.Time // when the lease has ended, and only a stray still needs cleaning up

	// stray means that the call to undo had no answer, and may still reach the store. So the answer "not there" settles a
	// stray only if the store repeats that answer CallTimeout later. During an outage the call may wait in a buffer of a
	// stopped server, so a stray is kept until the store has answered, even past its time.
	stray   bool
	refused time.Time // when the store first answered "not there"
	due     time.Time // when to ask again after refused
	overdue bool      // kept after until, and counted in janitor.overdue
}

// cleanups is a first-in, first-out list. To grow, it copies only the clean-ups that it still has.
type cleanups []cleanup

func (q *cleanups) push(c cleanup) { *q = append(*q, c) }

func (q *cleanups) pop() cleanup {
	c := (*q)[0]
	(*q)[0] = cleanup{} // the array stays reachable for a while, and must not keep the strings alive
	if *q = (*q)[1:]; len(*q) == 0 {
		*q = nil
	}
	return c
}

func newJanitor(l *Locker) *janitor {
	j := &janitor{l: l, wake: make(chan struct{}, 1), pause: newPauses()}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// add repeats the release c until the store answers or the time of c has passed.
func (j *janitor) add(c cleanup) {
	j.mu.Lock()
	if j.stopped {
		j.mu.Unlock()
		j.giveUp([]cleanup{c})
		return
	}
	defer j.mu.Unlock()
	j.fresh.push(c)
	if j.running == nil {
		j.running = make(chan struct{})
		go j.run(j.running)
		return
	}
	signal(j.wake)
}

// stop waits for the remaining clean-ups, as long as ctx lasts. When the store has not answered for CallTimeout, stop
// returns ErrUnavailable.
func (j *janitor) stop(ctx context.Context) error {
	j.mu.Lock()
	j.stopped = true
	running := j.running
	j.answered = j.l.now()
	j.pause, j.retryAt = newPauses(), j.answered // a pause may be longer than CallTimeout: ask at once
	j.mu.Unlock()
	signal(j.wake)
	defer j.cancel()
	if running == nil {
		return nil
	}
	patience := j.l.cfg.CallTimeout
	for {
		select {
		case <-running:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx) // the deferred cancel ends the calls under way
		case <-time.After(patience):
		}
		j.mu.Lock()
		patience = j.l.cfg.CallTimeout - j.l.now().Sub(j.answered)
		if j.flying == 0 && !j.retrying && len(j.silent) == 0 && len(j.fresh) == 0 {
			patience = j.l.cfg.CallTimeout // no call is open: what is left is only doubted, and not due yet
		}
		j.mu.Unlock()
		if patience <= 0 {
			return &Error{Code: driver.CodeUnavailable, Op: "close", Detail: "cleanup got no answer; the remaining leases and reservations will expire"}
		}
	}
}

func (j *janitor) run(running chan struct{}) {
	defer close(running)
	for {
		failed, wait, more := j.sendDue()
		j.giveUp(failed)
		if !more {
			return
		}
		select {
		case <-time.After(wait):
		case <-j.wake:
		case <-j.ctx.Done():
		}
		if j.ctx.Err() != nil {
			j.giveUp(j.abort())
			return
		}
	}
}

// sendDue sends what is due. failed has the clean-ups whose time has passed, and wait is how long to wait. more is
// false when no clean-up is left: then the goroutine must end.
func (j *janitor) sendDue() (failed []cleanup, wait time.Duration, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.l.now()
	failed = j.thin(now)
	if len(j.silent) > 0 && !j.retrying && !now.Before(j.retryAt) {
		batch, over := j.retry(now)
		failed = append(failed, over...)
		if len(batch) > 0 {
			j.retrying = true
			j.send(batch, true)
		}
	}
	for j.flying < cleanBatches {
		batch := j.next(now)
		if len(batch) == 0 {
			break
		}
		j.send(batch, false)
	}
	wait = time.Hour // or until a signal in wake
	if len(j.silent) > 0 && !j.retrying {
		wait = min(wait, j.retryAt.Sub(now))
	}
	waiting := len(j.silent) + len(j.fresh)
	for i := range j.doubted {
		if q := &j.doubted[i]; len(*q) > 0 {
			waiting += len(*q)
			if j.flying < cleanBatches {
				wait = min(wait, (*q)[0].due.Sub(now))
			}
		}
	}
	more = waiting > 0 || j.flying > 0 || j.retrying
	if !more {
		j.running = nil
	}
	return failed, max(0, wait), more
}

// thin removes clean-ups whose time has passed from the list fresh. While the store hangs, more clean-ups may come than
// can be sent. Up to maxOverdue strays stay. thin looks through the list only when its length has doubled, so each
// clean-up is examined only a few times.
func (j *janitor) thin(now time.Time) (over []cleanup) {
	if len(j.fresh) < max(j.crowded, maxOverdue) {
		if len(j.fresh) == 0 {
			j.crowded = 0
		}
		return nil
	}
	for range len(j.fresh) {
		switch c := j.fresh.pop(); {
		case now.Before(c.until):
			j.fresh.push(c)
		case c.stray && j.overdue < maxOverdue:
			c.overdue = true
			j.overdue++
			j.silent.push(c)
		default:
			over = append(over, c)
		}
	}
	j.crowded = 2 * len(j.fresh)
	return over
}

// next takes a batch: first doubted clean-ups that are due, then new clean-ups.
func (j *janitor) next(now time.Time) (batch []cleanup) {
	for i := range j.doubted {
		for q := &j.doubted[i]; len(*q) > 0 && len(batch) < renewBatch && !now.Before((*q)[0].due); {
			batch = append(batch, q.pop())
		}
	}
	for len(j.fresh) > 0 && len(batch) < renewBatch {
		batch = append(batch, j.fresh.pop())
	}
	return batch
}

// retry takes the next batch of clean-ups that had no answer from j.silent. over has the clean-ups whose time has
// passed.
func (j *janitor) retry(now time.Time) (batch, over []cleanup) {
	for n := len(j.silent); n > 0 && len(batch) < renewBatch; n-- {
		c := j.silent.pop()
		if c.overdue {
			j.overdue--
		}
		switch c.overdue = !now.Before(c.until); {
		case !c.overdue, c.stray && j.overdue < maxOverdue:
			batch = append(batch, c)
		case c.refused.IsZero():
			over = append(over, c)
		}
	}
	return batch, over
}

// abort empties the lists, and returns the clean-ups that never had an answer.
func (j *janitor) abort() (failed []cleanup) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, q := range []*cleanups{&j.fresh, &j.silent} {
		for len(*q) > 0 {
			if c := q.pop(); c.refused.IsZero() {
				failed = append(failed, c)
			}
		}
	}
	j.doubted = [2]cleanups{}
	j.running = nil
	return failed
}

// giveUp logs and reports the clean-ups in failed, which had no answer in time.
func (j *janitor) giveUp(failed []cleanup) {
	if len(failed) == 0 {
		return
	}
	j.l.cfg.Logger.Warn("joblock: cleanup timed out; the remaining leases and reservations will expire", "locks", len(failed))
	for _, c := range failed {
		j.l.Emit(event.Event{
			Kind: event.CleanupFailed, Key: c.req.Key, Owner: Digest(c.req.Owner), Fence: c.req.Fence, Reason: c.req.Reason,
			Err: &Error{Code: driver.CodeUnavailable, Op: "clean up", Key: c.req.Key, Detail: "the remaining lease or reservation will expire"},
		})
	}
}

func (j *janitor) send(batch []cleanup, retry bool) {
	if !retry {
		if j.flying == 0 && !j.retrying && len(j.silent) == 0 {
			j.answered = j.l.now() // the first call after an idle time
		}
		j.flying++
	}
	go func() {
		failed := j.finish(batch, j.release(batch), retry)
		j.giveUp(failed)
		signal(j.wake)
	}()
}

// release sends one batch. Errors are only logged, because clean-ups without an answer are sent again.
func (j *janitor) release(batch []cleanup) []driver.Reply {
	ctx, cancel := context.WithTimeout(j.ctx, j.l.cfg.CallTimeout)
	defer cancel()
	reqs := make([]driver.ReleaseRequest, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	replies, err := j.l.store.Release(ctx, reqs)
	if err != nil {
		j.l.cfg.Logger.Debug("joblock: cleanup got no answer; trying again", "locks", len(batch), "err", err)
	}
	return replies
}

// finish drops the clean-ups that are settled, and puts each of the remaining ones on its list. After stop was called, failed
// has the clean-ups that never had an answer.
func (j *janitor) finish(batch []cleanup, replies []driver.Reply, retry bool) (failed []cleanup) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.l.now()
	unanswered := 0
	for i, c := range batch {
		var out driver.Outcome
		if i < len(replies) {
			out = replies[i].Outcome
		}
		switch out {
		case driver.OutcomeOK, driver.OutcomeLapsed, driver.OutcomeForeign:
		case driver.OutcomeUnknown:
			unanswered++
			switch {
			case j.ctx.Err() == nil:
				if c.overdue {
					j.overdue++
				}
				j.silent.push(c)
			case c.refused.IsZero():
				failed = append(failed, c)
			}
		default:
			j.doubt(c, now)
		}
	}
	if retry {
		j.retrying = false
	} else {
		j.flying--
	}
	if unanswered < len(batch) {
		j.answered = now
	}
	switch {
	case unanswered == 0 && retry:
		j.pause, j.retryAt = newPauses(), now // the store answers, so there is no reason to wait
	case unanswered > 0 && !now.Before(j.retryAt):
		j.retryAt = now.Add(j.pause.next())
	}
	return failed
}

// doubt keeps a stray that the store did not find, to ask the store about it twice more. The first time is soon: a
// server that was stopped applies its buffered calls as soon as it runs again. The second time is when every connection
// that could deliver the call has certainly ended.
func (j *janitor) doubt(c cleanup, now time.Time) {
	if !c.stray || j.ctx.Err() != nil {
		return
	}
	timeout := j.l.cfg.CallTimeout
	switch {
	case c.refused.IsZero():
		c.refused, c.due = now, now.Add(timeout/16)
		j.doubted[0].push(c)
	case now.Sub(c.refused) < timeout:
		c.due = c.refused.Add(timeout)
		j.doubted[1].push(c)
	}
}
