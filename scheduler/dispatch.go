package scheduler

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	batch      = 500             // how many ledgers a node reads in one round trip
	unreadable = time.Minute     // the pause before the next read of a memo that is not a ledger
	unanswered = 2 * time.Second // the pause before the next read if the store has answered only for other keys
)

// dispatch reads the orders and the ledgers of jobs in one round trip, and starts claims and standbys. ctx is the
// context of the round trip. work is the context of the claims and standbys. If the store answers for no key, dispatch
// returns an error, and the jobs stay due. While this node has never read the orders, it executes no job: the job may be
// paused.
func (s *Scheduler) dispatch(ctx, work context.Context, jobs []*job) error {
	keys := []string{s.ordersKey}
	for _, j := range jobs {
		keys = append(keys, j.key)
	}
	sent := s.clock.local()
	views, err := s.readAnswered(ctx, keys)
	switch {
	case err != nil || !views[0].Now.IsZero():
	case views[0].State == joblock.StateForeign: // without the store's time
		s.applyView(views[0], sent)
		if !s.clock.synced() {
			return errOrdersUnread
		}
	default:
		err = s.touchOrders(ctx)
		views = nil // the store's time comes with the record of the orders
	}
	answered := func(v memo.View) bool { return err == nil || !v.Now.IsZero() }
	if len(views) > 0 && !views[0].Now.IsZero() {
		s.learnTime(sent, views[0].Now)
		s.applyView(views[0], sent)
		if stale(views[0]) {
			if err := s.touchOrders(ctx); err != nil {
				s.cfg.Logger.Warn("scheduler: the record of pauses and triggers was not kept alive; the next read tries again", "key", s.ordersKey, "err", err)
			}
		}
	}
	now := s.clock.now()
	if !slices.ContainsFunc(views, answered) {
		for _, j := range jobs {
			s.recheck(j, now)
		}
		return err
	}
	if err := s.withoutOrders(); err != nil {
		pause := unanswered
		if answered(views[0]) {
			pause = unreadable
		}
		for _, j := range jobs {
			s.setTrouble(j, err)
			s.recheck(j, now.Add(pause))
		}
		return nil
	}
	for i, j := range jobs {
		if v := views[i+1]; answered(v) {
			s.consider(work, j, v, now)
		} else {
			s.recheck(j, now.Add(unanswered))
		}
	}
	return nil
}

// readAnswered is memo.Read, except that an ErrUnavailable comes with views of all keys: while one node of a cluster is
// down, the jobs whose ledgers are on the others run. The view of a key without an answer has no Now.
func (s *Scheduler) readAnswered(ctx context.Context, keys []string) ([]memo.View, error) {
	const op = "read ledgers"
	in := door.Of(s.locks)
	if err := in.Check(op, keys...); err != nil {
		return nil, err
	}
	var recs []driver.Record
	err := in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		recs, err = store.Inspect(ctx, driver.InspectRequest{Keys: keys, Memo: true})
		return err
	})
	views := make([]memo.View, len(keys))
	for i, rec := range recs[:min(len(recs), len(keys))] {
		views[i] = memo.View{Status: door.Status[joblock.Status](rec), Memo: rec.Memo}
	}
	return views, err
}

// consider decides what to do about a job: claim the job, wait for its lock, or read its ledger again later.
func (s *Scheduler) consider(work context.Context, j *job, v memo.View, now time.Time) {
	l, err := ledger.Decode(v.Memo)
	if v.State == joblock.StateForeign {
		err = errors.New("scheduler: the value at the job's key is no lock")
	}
	if err != nil {
		s.reportUnreadable(j, err)
		s.recheck(j, s.clock.now().Add(unreadable))
		return
	}
	if v.State != joblock.StateFree {
		s.considerStandBy(work, j, v, now)
		return
	}
	keep := stale(v) // to take the lock keeps the ledger
	m, err := s.momentOf(j, l)
	if err != nil {
		s.reportUnreadable(j, err)
		s.recheck(j, now.Add(unreadable))
		return
	}
	s.reportClock(j, l, m.Now)
	if j.AtOnce > 1 || len(l.Lanes) > 0 {
		s.considerLanes(work, j, l, m, keep)
		return
	}
	changed, _ := l.Update(&j.Job, m, false) // on a copy: only to see whether anything is due
	_, more, _ := l.Begin(&j.Job, m)
	if !changed && !more && !keep || !s.hasRoom(j) {
		s.setTrouble(j, nil)
		s.recheck(j, s.nextCheck(j, l))
		return
	}
	select {
	case s.slots <- struct{}{}:
		if !s.start(j, func() time.Time { return s.claim(work, j) }) {
			<-s.slots
		}
	default:
		s.recheck(j, now.Add(settling)) // this node is full; another may have the job
	}
}

// considerStandBy decides whether to wait for the lock of a job that another node executes. One node waits, and gets
// the lock as soon as the lock is free. The other nodes read the ledger again later.
func (s *Scheduler) considerStandBy(work context.Context, j *job, v memo.View, now time.Time) {
	if j.AtOnce > 1 && v.Age < settling { // another node begins or ends an execution
		s.recheck(j, within(4*spread, now))
		return
	}
	if v.Age < settling {
		// This spread is wider than that of a tick: nodes that read in the same step would all wait for the lock.
		s.recheck(j, within(4*spread, now.Add(settling-v.Age)))
		return
	}
	if v.Waiters == 0 && s.hasRoom(j) {
		select {
		case s.standbys <- struct{}{}:
			if !s.start(j, func() time.Time { return s.standBy(work, j) }) {
				<-s.standbys
			}
			return
		default:
		}
	}
	s.recheck(j, soon(now.Add(v.Reserved)))
}

// The method start calls f in a goroutine. The job j is busy until f has returned. The result of f is the time of the
// next read of the ledger. If the job is gone, start does nothing and returns false. Only the loop of Run may call start.
func (s *Scheduler) start(j *job, f func() time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.gone {
		return false
	}
	j.busy = true
	if j.index >= 0 { // a new order may have put the job into the heap
		heap.Remove(&s.due, j.index)
	}
	s.started.Go(func() { s.recheck(j, f()) })
	return true
}

// reportClock reports, once for each Ledger.Last, that the store's clock was set back behind the ledger.
func (s *Scheduler) reportClock(j *job, l *ledger.Ledger, now time.Time) {
	s.mu.Lock()
	isNew := l.Behind(now) > 0 && j.behind != l.Last
	if isNew {
		j.behind = l.Last
	}
	s.mu.Unlock()
	if !isNew {
		return
	}
	last := l.LastTick()
	s.report(Event{Kind: EventClock, Tick: Tick{Name: j.name, At: last, Cause: CauseTick}, Node: s.cfg.Node,
		Err: fmt.Errorf("scheduler: the job's latest tick is %s, but the store's clock shows %s, so it was set back; the next tick to be executed is %s",
			last.Format(time.RFC3339), now.UTC().Format(time.RFC3339), s.inForce(j, l).Spec.Next(last).Format(time.RFC3339))})
}
