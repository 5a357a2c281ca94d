package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/policy"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

const (
	batch      = 500                   // how many ledgers a node reads in one round trip
	unanswered = 2 * time.Second       // the pause before the next read if the store has answered only for other keys
	spreadStep = 10 * time.Millisecond // reads at the same multiple share a round trip
)

// The way of a tick, on every node that has the job:
//
//  1. loop takes the due jobs from the table. dispatch reads the orders and the ledgers of these jobs in one round trip.
//     look decodes each ledger, and consider has policy.Decide bring this copy up to date.
//  2. If a tick is due and the job's lock is free, tend calls claims.claim. If another node has the lock, one node waits
//     for it, once the execution has lasted for policy.Settling: standBy, which calls claims.inherit when it gets the
//     lock. The others read the ledger again later.
//  3. term.run has the lock and the ledger that came with it. begin calls policy.Decide again, moves the tick to
//     Ledger.Running, and writes the ledger: from now on, another node that gets the lock takes the tick over.
//  4. execution.run calls the function (job.call), and settle writes the result. Meanwhile book.keep writes the ticks
//     that come: with OverlapQueue they go to Ledger.Due, and term.work begins them under the same lock.
//  5. term.run releases the lock. The node that stands by gets it, finds nothing to take over, and reads the ledger again
//     at the next tick.
//
// With MaxConcurrent above 1, executions run in lanes of their own: run releases the job's lock before step 4, and
// execution.visit takes it again for each write.

// dispatcher reads ledgers when they are due, and starts what package policy decides.
type dispatcher struct {
	*node
	specs    *specs
	claims   *claims
	standbys chan struct{} // has an element for each lock for which this node waits
}

// The first and the longest pause after a request that the store has not answered.
const firstPause, lastPause = 500 * time.Millisecond, 8 * time.Second

// within returns a random multiple of spreadStep that is later than at, by at most d.
func within(d time.Duration, at time.Time) time.Time {
	return at.Truncate(spreadStep).Add(spreadStep * (1 + jitter.N(d/spreadStep)))
}

func soon(at time.Time) time.Time { return within(policy.Spread, at) }

func timeOf(a policy.Again) time.Time { return within(a.Within, a.At) }

// loop dispatches due jobs until ctx ends. work is the context of the goroutines that loop starts.
func (d *dispatcher) loop(ctx, work context.Context) error {
	var syncAt time.Time // when to ask for the store's clock if no job is due before
	for pause := firstPause; ctx.Err() == nil; {
		var jobs []*job
		now := d.clock.now()
		synced := d.clock.synced()
		if synced { // no job is due while the node does not know the store's time
			jobs = d.table.takeDue(now)
		}
		if len(jobs) == 0 && synced && now.Before(syncAt) {
			d.sleep(ctx, d.table.nextDue(syncAt))
			continue
		}
		err := d.dispatch(ctx, work, jobs)
		switch {
		case err == nil:
			pause = firstPause
			syncAt = d.clock.now().Add(d.cfg.Sync)
		case errors.Is(err, joblock.ErrClosed), errors.Is(err, joblock.ErrInvalid):
			return err
		case ctx.Err() == nil:
			if err != errOrdersUnread { // which obey has logged
				d.cfg.Logger.Warn("scheduler: the store does not answer", "err", err)
			}
			_ = sleep.For(ctx, pause/2+jitter.N(pause/2))
			pause = min(2*pause, lastPause)
		}
	}
	return nil
}

// sleep waits for the time until, or until a job becomes due earlier than expected.
func (d *dispatcher) sleep(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithTimeout(ctx, until.Sub(d.clock.now()))
	defer cancel()
	select {
	case <-ctx.Done():
	case <-d.table.woken:
	}
}

// dispatch reads the orders and the ledgers of jobs in one round trip, and starts claims and standbys. ctx is the
// context of the round trip. work is the context of the claims and standbys. If the store answers for no key, dispatch
// returns an error, and the jobs stay due. Until this node has read the orders once, it executes no job, because the
// job may be paused.
func (d *dispatcher) dispatch(ctx, work context.Context, jobs []*job) error {
	names := make([]string, len(jobs))
	for i, j := range jobs {
		names[i] = j.name
	}
	sent := d.clock.local()
	views, err := d.recs.ReadAnswered(ctx, names)
	switch {
	case err != nil || !views[0].Now.IsZero():
	case views[0].State == joblock.StateForeign: // without the store's time
		d.obey(d.orders.apply(views[0], sent))
		if !d.clock.synced() {
			return errOrdersUnread
		}
	default:
		err = d.recs.Touch(ctx)
		views = nil // the store's time comes with the record of the orders
	}
	answered := func(v memo.View) bool { return err == nil || !v.Now.IsZero() }
	if len(views) > 0 && !views[0].Now.IsZero() {
		d.learn(sent, views[0].Now)
		d.obey(d.orders.apply(views[0], sent))
		if records.Stale(views[0]) {
			if err := d.recs.Touch(ctx); err != nil {
				d.cfg.Logger.Warn("scheduler: could not extend the record of pauses and triggers; the next read tries again", "key", d.recs.OrdersKey(), "err", err)
			}
		}
	}
	now := d.clock.now()
	if !slices.ContainsFunc(views, answered) {
		for _, j := range jobs {
			d.table.recheck(j, now)
		}
		return err
	}
	if missing := d.orders.missing(); missing != nil {
		pause := unanswered
		if answered(views[0]) {
			pause = policy.Unreadable
		}
		for _, j := range jobs {
			d.table.setTrouble(j, missing)
			d.table.recheck(j, now.Add(pause))
		}
		return nil
	}
	for i, j := range jobs {
		if v := views[i+1]; answered(v) {
			d.consider(work, j, v, now)
		} else {
			d.table.recheck(j, now.Add(unanswered))
		}
	}
	return nil
}

// consider decides what to do about a job, and starts it.
func (d *dispatcher) consider(work context.Context, j *job, v memo.View, now time.Time) {
	l, m, err := d.look(j, v, now)
	if err != nil {
		d.unreadable(j, err)
		d.table.recheck(j, now.Add(policy.Unreadable))
		return
	}
	s := policy.Sight{Stale: records.Stale(v), Here: d.table.here(j), Mine: d.table.mine(j)}
	if v.State != joblock.StateFree {
		lock := records.LockOf(0, v)
		s.Lock = &lock
	}
	plan := policy.Decide(&j.Job, l, m, s)
	switch plan.Do {
	case policy.Claim, policy.Tend:
		d.start(j, func() time.Time { return d.tend(work, j, l, plan) })
	case policy.StandBy:
		if !d.takeStandby() {
			d.table.recheck(j, timeOf(plan.Again))
		} else if !d.start(j, func() time.Time { return d.standBy(work, j, 0) }) {
			<-d.standbys
		}
	default:
		if s.Lock == nil {
			d.table.setTrouble(j, nil)
		}
		d.table.recheck(j, timeOf(plan.Again))
	}
}

// look returns what a node must know of a job to decide, and reports a clock that was set back. While another node has
// the job's lock, the Moment has only Now.
func (d *dispatcher) look(j *job, v memo.View, now time.Time) (l *ledger.Ledger, m ledger.Moment, err error) {
	if v.State == joblock.StateForeign {
		return nil, m, errors.New("scheduler: the value at the job's key is not a lock")
	}
	if l, err = ledger.Decode(v.Memo); err != nil || v.State != joblock.StateFree {
		return l, ledger.Moment{Now: now}, err
	}
	if m, err = d.specs.moment(j, l); err == nil {
		d.reportClock(j, d.specs.inForce(j, l), l, m.Now)
	}
	return l, m, err
}

// start calls f in a goroutine. The job is busy until f has returned. f returns the time of the next read of the
// ledger. If the job is gone, start does nothing and returns false. Only the loop of Run may call start.
func (d *dispatcher) start(j *job, f func() time.Time) bool {
	if !d.table.occupy(j) {
		return false
	}
	d.started.Go(func() { d.table.recheck(j, f()) })
	return true
}

// tend looks after the executions of other nodes, and begins what is due. It returns the time of the next read of the
// ledger.
func (d *dispatcher) tend(ctx context.Context, j *job, l *ledger.Ledger, plan policy.Plan) time.Time {
	at := timeOf(plan.Again)
	var tending policy.Tending
	if len(plan.Others) > 0 {
		locks, err := d.recs.ReadLanes(ctx, j.name, plan.Others)
		if err != nil {
			if ctx.Err() == nil {
				d.trouble(j, "read the locks of executions", err)
			}
			return soon(d.clock.now().Add(unanswered))
		}
		tending = policy.TendTo(&j.Job, l, d.clock.now(), locks, d.table.here(j))
		for _, lane := range tending.StandBy {
			d.standByLane(ctx, j, lane)
		}
		at = earlier(at, timeOf(tending.Again))
	}
	if plan.Do == policy.Claim || len(tending.Dead) > 0 {
		if !d.takeSlot() { // another node may begin what is due
			return soon(d.clock.now().Add(policy.Settling))
		}
		next, ok := d.claims.claim(ctx, j, tending.Dead)
		if !ok {
			return next
		}
		at = earlier(at, next)
	}
	if k := tending.Foreign; k != nil {
		d.trouble(j, "take an execution over", fmt.Errorf("scheduler: the value at the key %s of an execution is not a lock", d.recs.LaneKey(j.name, k.Lane)))
	} else {
		d.table.setTrouble(j, nil)
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// takeStandby counts one more lock for which this node waits. It returns false if the node waits for as many as it may.
// standBy counts the lock off.
func (d *dispatcher) takeStandby() bool {
	select {
	case d.standbys <- struct{}{}:
		return true
	default:
		return false
	}
}

// standByLane starts standBy for a lane other than 0. If this node already waits for as many locks as it may,
// standByLane does nothing.
func (d *dispatcher) standByLane(ctx context.Context, j *job, lane int) {
	if !d.takeStandby() {
		return
	}
	d.table.setLane(j, lane, true)
	d.started.Go(func() {
		d.standBy(ctx, j, lane)
		d.table.lookAgain(j) // this node may have to wait again: the next tick may be days away
	})
}

// standBy waits for the lock of a lane that another node has, and takes over an execution that was broken off. Usually
// the execution ends well, and standBy finds nothing to do. The caller has called takeStandby. standBy returns the
// time of the next read of the ledger.
func (d *dispatcher) standBy(ctx context.Context, j *job, lane int) time.Time {
	wait, giveUp := context.WithCancel(ctx)
	defer giveUp()
	if lane == 0 {
		d.table.do(func() {
			if j.giveUp = giveUp; j.gone {
				giveUp()
			}
		})
	}
	lock, err := d.recs.Wait(wait, j.name, lane)
	<-d.standbys
	if err == nil {
		return d.claims.inherit(ctx, j, lane, lock)
	}
	if ctx.Err() == nil && !d.table.isGone(j) {
		d.trouble(j, "wait for the lock", err)
	}
	if lane > 0 {
		_ = sleep.For(ctx, unanswered)
		d.table.setLane(j, lane, false)
	}
	return soon(d.clock.now().Add(unanswered))
}
