package joblock

import (
	"context"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// cleanBatches is how many batches of new clean-ups may be under way at a time, so
	// that one slow node of a cluster does not hold up the others.
	cleanBatches = 4

	// maxOverdue is how many strays are kept beyond their time while the store does not
	// answer. Without a bound all strays of an outage would pile up.
	maxOverdue = 10_000
)

// janitor repeats releases that had no answer, until the store confirms them or the
// leases have run out anyway. Its goroutines live only while there is something to
// clean up. Its cost is linear in that, because there is much of it when the store is
// busy or has just come back.
type janitor struct {
	l      *Locker
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // buffered 1: there is something to send or to wait for

	mu      sync.Mutex // guards what follows
	running chan struct{}
	stopped bool

	// A clean-up is in one of these lists, or in a batch under way.
	fresh   cleanups    // not sent yet
	crowded int         // the length of fresh at which it is thinned again
	silent  cleanups    // had no answer
	doubted [2]cleanups // answered "not there" once or twice, to be asked again

	flying   int       // batches under way
	retrying bool      // a batch of silent is under way
	retryAt  time.Time // when the next batch of silent is due
	pause    *backoff  // between batches of silent
	overdue  int       // how many in silent are beyond their time
	answered time.Time // since when the store is silent: its latest answer, or the first question after it
}

type cleanup struct {
	req   driver.ReleaseRequest
	until time.Time // afterwards there is nothing left to clean up, unless it is a stray

	// stray: the call to undo had no answer and may still arrive. So "not there"
	// settles it only if that is still the answer CallTimeout later. While the store
	// is away the call may be in a buffer of a stopped server. So a stray is kept until
	// the store has answered, even beyond its time.
	stray   bool
	refused time.Time // when the store first answered "not there"
	due     time.Time // when to ask again after that
	overdue bool
}

// cleanups is a first-in, first-out list. When append grows it, only what is left moves.
type cleanups []cleanup

func (q *cleanups) push(c cleanup) { *q = append(*q, c) }

func (q *cleanups) pop() cleanup {
	c := (*q)[0]
	(*q)[0] = cleanup{} // the array stays for a while, and must not keep the strings
	if *q = (*q)[1:]; len(*q) == 0 {
		*q = nil
	}
	return c
}

func newJanitor(l *Locker) *janitor {
	j := &janitor{l: l, wake: make(chan struct{}, 1), pause: newRetryPause()}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// add takes on a release. It is repeated until it is answered or its time is over.
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
	j.rewake()
}

func (j *janitor) rewake() {
	signal(j.wake)
}

// stop waits for the rest of the work, as long as ctx lasts. It gives up when the store
// has not answered for CallTimeout.
func (j *janitor) stop(ctx context.Context) error {
	j.mu.Lock()
	j.stopped = true
	running := j.running
	j.answered = j.l.now()
	j.mu.Unlock()
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
			return context.Cause(ctx) // the calls under way are cut off
		case <-time.After(patience):
		}
		j.mu.Lock()
		patience = j.l.cfg.CallTimeout - j.l.now().Sub(j.answered)
		j.mu.Unlock()
		if patience <= 0 {
			return &Error{Code: codeUnavailable, Op: "close", Detail: "clean-up had no answer; what is left of the locks runs out by itself"}
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

// sendDue sends what is due. It returns the clean-ups whose time is over, and how long
// to wait. If more is false nothing is left, and the goroutine must end.
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
	wait = time.Hour // rewake ends it early
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

// thin drops clean-ups whose time is over from a long list of new ones: while the store
// hangs, more may come than can be sent. Of strays it keeps as many as retry does. It
// runs when the list has doubled, so it examines each clean-up only a few times.
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

// next takes a batch of new clean-ups, and of doubted ones that are due.
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

// retry takes a batch of silent. over are those whose time is over.
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

// abort empties the lists and returns the clean-ups that never had an answer.
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

// giveUp logs and tells that clean-ups were not answered in time.
func (j *janitor) giveUp(failed []cleanup) {
	if len(failed) == 0 {
		return
	}
	j.l.cfg.Logger.Warn("joblock: clean-up had no answer in time, what is left of the locks runs out by itself", "locks", len(failed))
	j.l.tellCleanupFailed(failed)
}

func (l *Locker) tellCleanupFailed(given []cleanup) {
	if l.cfg.Observer == nil {
		return
	}
	for _, c := range given {
		l.tell(event.Event{
			Kind: event.CleanupFailed, Key: c.req.Key, Owner: digest(c.req.Owner), Fence: c.req.Fence, Reason: c.req.Reason,
			Err: &Error{Code: codeUnavailable, Op: "clean up", Key: c.req.Key, Detail: "what was left of the lock runs out by itself"},
		})
	}
}

func (j *janitor) send(batch []cleanup, retry bool) {
	if !retry {
		if j.flying == 0 && !j.retrying && len(j.silent) == 0 {
			j.answered = j.l.now() // nobody was asked, so the silence begins here
		}
		j.flying++
	}
	go func() {
		failed := j.finish(batch, j.release(batch), retry)
		j.giveUp(failed)
		j.rewake()
	}()
}

// release sends one batch. An error is only logged: what had no answer is tried again.
func (j *janitor) release(batch []cleanup) []driver.Reply {
	ctx, cancel := context.WithTimeout(j.ctx, j.l.cfg.CallTimeout)
	defer cancel()
	reqs := make([]driver.ReleaseRequest, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	replies, err := j.l.store.Release(ctx, reqs)
	if err != nil {
		j.l.cfg.Logger.Debug("joblock: clean-up had no answer, trying again", "locks", len(batch), "err", err)
	}
	return replies
}

// finish drops what is settled and puts the rest on the right lists. After stop it
// returns the clean-ups that never had an answer.
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
		j.pause, j.retryAt = newRetryPause(), now // the store answers: no reason to wait
	case unanswered > 0 && !now.Before(j.retryAt):
		j.retryAt = now.Add(j.pause.next())
	}
	return failed
}

// doubt lists a stray that is not there, to ask again twice. Once soon: what was in the
// buffers of a stopped server arrives as soon as it goes on. And once when every
// connection that could deliver the call has certainly ended.
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
