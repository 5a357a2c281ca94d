package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// settling is how old a lock is before a node gets in line for it, and how long a
	// node that was too late waits before it looks again: most runs are over by then.
	settling = 500 * time.Millisecond

	// unanswered is when to ask again for a ledger that had no answer while others had:
	// one node of a cluster is away.
	unanswered = 2 * time.Second

	// unreadable is when to look again at what is no ledger.
	unreadable = time.Minute
)

// look reads the ledgers of the jobs and the orders, in one round trip, and starts what
// is to be done. If nothing was answered it fails; the jobs are on the agenda again then.
func (s *Scheduler) look(ctx, work context.Context, jobs []*job) error {
	keys := make([]string, 1, len(jobs)+1)
	keys[0] = s.control
	for _, j := range jobs {
		keys = append(keys, j.key)
	}
	wrote, sent := s.written(), s.clock.local()
	views, err := s.locks.Peek(ctx, keys...)
	if err == nil && views[0].Now.IsZero() {
		err = s.found(ctx)
		views = nil // without that record it is not known what time it is
	}
	known := 0
	for i, v := range views {
		if err != nil && v.Now.IsZero() {
			continue
		}
		known++
		if i == 0 {
			s.learn(sent, v.Now)
			s.heed(v.Memo, wrote)
		}
	}
	now := s.clock.now()
	for i, j := range jobs {
		switch {
		case known == 0:
			s.lookAt(j, now)
		case err != nil && views[i+1].Now.IsZero():
			s.lookAt(j, now.Add(unanswered))
		default:
			s.attend(work, j, views[i+1], now)
		}
	}
	if known > 0 {
		return nil
	}
	return err
}

// learn takes in the store's clock. If it was set back what was planned is far off.
func (s *Scheduler) learn(sent, store time.Time) {
	if s.clock.learn(sent, store) < -time.Minute {
		s.lookAgain()
	}
}

// lookAgain has all jobs looked at.
func (s *Scheduler) lookAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if !j.busy {
			s.agenda.put(j, time.Time{})
		}
	}
}

// found makes the record with the orders: on a new store, or if it was lost.
func (s *Scheduler) found(ctx context.Context) error {
	lock, err := s.locks.TryAcquire(ctx, s.control, s.lockOptions()...)
	if errors.Is(err, joblock.ErrHeld) {
		return nil // somebody else is at it
	}
	if err == nil {
		err = lock.Release(ctx)
	}
	return err
}

// written is how many orders this node has written.
func (s *Scheduler) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

// heed takes in the orders, and has jobs looked at for which there are new ones. wrote
// is how many this node had written when they were read.
func (s *Scheduler) heed(memo []byte, wrote int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Equal(memo, s.memo) {
		return
	}
	o, err := decodeOrders(memo)
	if err != nil {
		s.memo = memo
		s.cfg.Logger.Error("scheduler: orders cannot be read, those before them stand", "key", s.control, "err", err)
		return
	}
	if wrote != s.wrote && o.newest() < s.orders.newest() {
		return // read before this node wrote its last order, and answered after
	}
	s.memo, s.orders = memo, o
	for name, order := range o.Jobs {
		if j := s.jobs[name]; j != nil && !j.busy && j.heed != order.Fence {
			s.agenda.put(j, time.Time{})
		}
	}
	s.rouse()
}

// attend does what is to be done about a job as v shows it.
func (s *Scheduler) attend(work context.Context, j *job, v joblock.View, now time.Time) {
	if v.State == joblock.StateForeign {
		s.complain(j, errors.New("scheduler: the value at the job's key is no lock"))
		return
	}
	l, err := decodeLedger(v.Memo)
	if err != nil {
		s.complain(j, err)
		return
	}
	if v.State != joblock.StateFree {
		s.waitFor(work, j, v, now)
		return
	}
	m := s.moment(j, l)
	s.watchClock(j, l, m.now)
	changed, _ := l.update(j, m, false)
	_, more, _ := l.next(j, m)
	if !changed && !more {
		s.well(j)
		s.lookNext(j, l)
		return
	}
	select {
	case s.slots <- struct{}{}:
		s.start(j, func() { s.claim(work, j) })
	default:
		s.lookAt(j, now.Add(settling)) // as busy as it may be; others may have it
	}
}

// waitFor decides when to look again at a job that somebody is running, and whether to get
// in line for it: one node stands by, and is told the moment the lock is free.
func (s *Scheduler) waitFor(work context.Context, j *job, v joblock.View, now time.Time) {
	if v.Age < settling {
		// Spread wider than a tick, for those that look in the same step all get in line.
		s.lookAt(j, within(4*spread, now.Add(settling-v.Age)))
		return
	}
	if v.Waiters == 0 {
		select {
		case s.standbys <- struct{}{}:
			s.start(j, func() { s.standBy(work, j) })
			return
		default:
		}
	}
	s.lookAt(j, soon(now.Add(v.Reserved)))
}

// start runs f, which ends by having the loop look at j again. It is for the loop.
func (s *Scheduler) start(j *job, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.busy = true
	s.agenda.drop(j) // where a new order has put it again
	s.turns.Go(f)
}

// complain is about a ledger that is none.
func (s *Scheduler) complain(j *job, err error) {
	s.note(j, err)
	s.cfg.Logger.Error("scheduler: the job is not run by this node", "job", j.name, "key", j.key, "err", err)
	s.lookAt(j, s.clock.now().Add(unreadable))
}

// fail is about a step for a job that the store refused or did not answer; it is tried
// again, and told once until it has worked out, or fails in another way.
func (s *Scheduler) fail(j *job, step string, err error) {
	err = fmt.Errorf("%s: %w", step, err)
	if s.note(j, err) {
		s.cfg.Logger.Warn("scheduler: the job is held up on this node", "job", j.name, "key", j.key, "err", err)
	}
}

// note keeps, for Entry, what keeps this node from running the job. It reports whether
// that is news.
func (s *Scheduler) note(j *job, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = j.trouble == nil || j.trouble.Error() != err.Error()
	j.trouble = err
	return news
}

// well says that nothing keeps this node from running the job.
func (s *Scheduler) well(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.trouble = nil
}

// watchClock tells, once, that the store's clock was set back behind the ledger. Until it
// is there again no tick is run: each would be run a second time.
func (s *Scheduler) watchClock(j *job, l *ledger, now time.Time) {
	last := time.UnixMilli(l.Last).UTC()
	ahead := last.Sub(now)
	if ahead <= setBack || ahead > clockReset {
		return
	}
	s.mu.Lock()
	told := j.behind == l.Last
	j.behind = l.Last
	s.mu.Unlock()
	if told {
		return
	}
	s.tell(Event{Kind: EventClock, Tick: j.tick(last), Node: s.cfg.Node,
		Err: fmt.Errorf("scheduler: the job has come to %s, and the store's clock shows %s: it was set back; the next tick is that of %s", stamp(last), stamp(now), stamp(j.spec.Next(last)))})
}

// moment is what l is to be looked at with.
func (s *Scheduler) moment(j *job, l *ledger) moment {
	now := s.clock.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.floor.IsZero() {
		j.floor = now
	}
	if last := time.UnixMilli(l.Last); last.After(j.floor) && last.Before(now) {
		j.floor = last // for the case that the ledger is lost
	}
	order := s.orders.Jobs[j.name]
	j.heed = order.Fence
	return moment{now: now, floor: j.floor, order: order, node: s.cfg.Node}
}

// lookNext has the loop look at j when its next tick comes, at the earliest.
func (s *Scheduler) lookNext(j *job, l *ledger) {
	now := s.clock.now()
	at := j.next(time.UnixMilli(l.Last))
	switch {
	case at.IsZero():
		at = now.Add(driver.MaxPeriod) // the spec has come to its end
	case at.After(now):
		at = soon(at)
	default:
		at = now.Add(settling + rand.N(settling))
	}
	s.lookAt(j, at)
}

// lockOptions are those of every lock: the ledger is in the memo, which outlives the
// longest pause between two ticks, and a run may be long.
func (s *Scheduler) lockOptions() []joblock.TryOption {
	return []joblock.TryOption{
		door.OwnKey[joblock.Option](), joblock.Holder(s.cfg.Node),
		joblock.WithMemo(), joblock.Retain(driver.MaxPeriod), joblock.MaxHold(driver.MaxPeriod),
	}
}

// waitOptions are lockOptions for a call that waits.
func (s *Scheduler) waitOptions() (opts []joblock.AcquireOption) {
	for _, opt := range s.lockOptions() {
		opts = append(opts, opt)
	}
	return opts
}
