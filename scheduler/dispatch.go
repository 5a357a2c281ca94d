package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	// batch is how many ledgers are read in one round trip.
	batch = 500

	// unanswered is the pause before the next read of a ledger if the store answered for
	// other ledgers only: one node of the store's cluster is away.
	unanswered = 2 * time.Second

	// unreadable is the pause before the next read of a memo that is not a ledger.
	unreadable = time.Minute
)

// dispatch reads the orders and the ledgers of jobs in one round trip, and starts claims and
// standbys. ctx is the context of the round trip; work is the context of what it starts. If
// the store answers nothing, dispatch fails and the jobs stay due.
func (s *Scheduler) dispatch(ctx, work context.Context, jobs []*job) error {
	keys := make([]string, 1, len(jobs)+1)
	keys[0] = s.ordersKey
	for _, j := range jobs {
		keys = append(keys, j.key)
	}
	wrote, sent := s.ordersWritten(), s.clock.local()
	views, err := memo.Read(ctx, s.locks, keys...)
	if err == nil && views[0].Now.IsZero() {
		err = s.createOrders(ctx)
		views = nil // the store's time comes with this record
	}
	known := 0
	for i, v := range views {
		if err != nil && v.Now.IsZero() {
			continue
		}
		known++
		if i == 0 {
			s.learnTime(sent, v.Now)
			s.applyOrders(v.Memo, wrote)
		}
	}
	now := s.clock.now()
	for i, j := range jobs {
		switch {
		case known == 0:
			s.recheck(j, now)
		case err != nil && views[i+1].Now.IsZero():
			s.recheck(j, now.Add(unanswered))
		default:
			s.consider(work, j, views[i+1], now)
		}
	}
	if known > 0 {
		return nil
	}
	return err
}

// consider decides what to do about a job: claim it, wait for its lock, or come back later.
func (s *Scheduler) consider(work context.Context, j *job, v memo.View, now time.Time) {
	if v.State == joblock.StateForeign {
		s.reportUnreadable(j, errors.New("scheduler: the value at the job's key is no lock"))
		s.recheck(j, s.clock.now().Add(unreadable))
		return
	}
	l, err := ledger.Decode(v.Memo)
	if err != nil {
		s.reportUnreadable(j, err)
		s.recheck(j, s.clock.now().Add(unreadable))
		return
	}
	if v.State != joblock.StateFree {
		s.considerStandBy(work, j, v, now)
		return
	}
	m := s.momentOf(j, l)
	s.reportClock(j, l, m.Now)
	changed, _ := l.Update(&j.Job, m, false) // on a copy: only to see whether there is anything to do
	_, more, _ := l.Begin(&j.Job, m)
	if !changed && !more {
		s.clearTrouble(j)
		s.recheck(j, s.nextCheck(j, l))
		return
	}
	select {
	case s.slots <- struct{}{}:
		s.start(j, func() time.Time { return s.claim(work, j) })
	default:
		s.recheck(j, now.Add(settling)) // this node is full; another may have the job
	}
}

// considerStandBy decides whether to wait for the lock of a job that another node executes.
// One node does, and learns at once that the lock is free. The others come back later.
func (s *Scheduler) considerStandBy(work context.Context, j *job, v memo.View, now time.Time) {
	if v.Age < settling {
		// Spread wider than a tick: nodes that read in the same step would all wait for the lock.
		s.recheck(j, within(4*spread, now.Add(settling-v.Age)))
		return
	}
	if v.Waiters == 0 {
		select {
		case s.standbys <- struct{}{}:
			s.start(j, func() time.Time { return s.standBy(work, j) })
			return
		default:
		}
	}
	s.recheck(j, soon(now.Add(v.Reserved)))
}

// start calls f in a goroutine. The job is busy until f returns when to read its ledger
// again. Only the loop of Run may call start.
func (s *Scheduler) start(j *job, f func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.busy = true
	s.due.drop(j) // a new order may have put it there
	s.started.Go(func() { s.recheck(j, f()) })
}

// reportClock reports, once, that the store's clock was set back behind the ledger.
func (s *Scheduler) reportClock(j *job, l *ledger.Ledger, now time.Time) {
	behind := l.Behind(now)
	if behind == 0 {
		return
	}
	s.mu.Lock()
	known := j.behind == l.Last
	j.behind = l.Last
	s.mu.Unlock()
	if known {
		return
	}
	last := l.LastTick()
	s.report(Event{Kind: EventClock, Tick: Tick{Name: j.name, At: last, Cause: CauseTick}, Node: s.cfg.Node,
		Err: fmt.Errorf("scheduler: the job's latest tick is %s, but the store's clock shows %s, so it was set back; the next tick to be executed is %s",
			last.Format(time.RFC3339), now.UTC().Format(time.RFC3339), j.Spec.Next(last).Format(time.RFC3339))})
}
