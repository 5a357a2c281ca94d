package ledger

import (
	"slices"
	"time"
)

// MaxLanes is how many executions of a job may run at once; package scheduler checks the bound.
const MaxLanes = 20

// maxLaneNodeBytes bounds the JSON form of Execution.Node in a lane.
const maxLaneNodeBytes = 100

// A job with Job.AtOnce above 1 executes each tick in a lane. A lane has a lock of its own, which lasts for the execution.
// The job's own lock is held only while a node changes the ledger. An execution in a lane stays in Ledger.Lanes until
// the execution has a result. So an execution in Ledger.Lanes whose lane has no holder was broken off.

// Full reports whether no further execution may begin.
func (l *Ledger) Full(j *Job) bool { return len(l.Lanes) >= max(j.AtOnce, 1) }

// Lane returns the execution of a lane, or nil.
func (l *Ledger) Lane(lane int) *Execution {
	i := slices.IndexFunc(l.Lanes, func(x Execution) bool { return x.Lane == lane })
	if i < 0 {
		return nil
	}
	return &l.Lanes[i]
}

// Ready reports whether BeginLane changes the ledger.
func (l *Ledger) Ready(j *Job, m Moment) bool {
	return !l.Full(j) && (slices.ContainsFunc(l.Due, func(d Due) bool { return d.ready(m) }) || l.Backfilling() && !l.backfillsNow())
}

// BeginLane makes the next waiting tick a running execution of a lane that has none. The parameter fence is that of the
// lane's lock. If Ready is false, BeginLane does nothing. If only the end of a backfill is to be written, x is nil.
func (l *Ledger) BeginLane(j *Job, m Moment, lane int, fence int64) (x *Execution, news []News) {
	if !l.Ready(j, m) {
		return nil, nil
	}
	d, ok, news := l.next(j, m)
	if !ok {
		return nil, news
	}
	return l.startLane(Execution{Due: d, Lane: lane, Fence: fence}, m), news
}

// MayTakeOver reports whether TakeOverLane may be called for a lane. The parameter others is how many executions run in
// other lanes. A node whose Job.AtOnce is lower than that of the node that began the execution leaves it until fewer run,
// unless the tick is lost.
func (l *Ledger) MayTakeOver(j *Job, lane, others int) bool {
	x := l.Lane(lane)
	return x != nil && (others < max(j.AtOnce, 1) || x.lost(j))
}

// TakeOverLane begins the execution of a lane again. The caller holds the lane's lock, so the execution was broken off. If
// the tick is lost, x is nil and the lane has no execution.
func (l *Ledger) TakeOverLane(j *Job, m Moment, lane int, fence int64) (x *Execution, news []News) {
	last := *l.Lane(lane)
	if last.lost(j) {
		l.leave(j, last, Lost, time.UnixMilli(last.End), 0, nil)
		return nil, []News{{Kind: NewsLost, Tick: last.Tick(), Node: last.Node}}
	}
	if last.State == Running {
		last.State = Died
	}
	l.drop(j, last)
	l.Counts.TakenOver++
	return l.startLane(Execution{Due: last.Due, Broken: last.Broken + 1, Lane: lane, Fence: fence}, m), nil
}

// lost reports whether no node executes the tick of x again, if x was broken off.
func (x *Execution) lost(j *Job) bool { return j.AtMostOnce || x.Broken >= maxBroken }

// EndLane records the result of the execution that has begun under the parameter fence. EndLane returns false if there
// is no such execution: another node has taken it over.
func (l *Ledger) EndLane(j *Job, lane int, fence int64, state State, at time.Time, attempts int, err error) bool {
	x := l.Lane(lane)
	if x == nil || x.Fence != fence {
		return false
	}
	if state == NotBegun {
		l.giveBack(x)
		return true
	}
	if state == Interrupted {
		x.State, x.End, x.Attempts = state, at.UnixMilli(), attempts // another node takes the execution over
		return true
	}
	l.leave(j, *x, state, at, attempts, err)
	return true
}

// giveBack undoes the begin of x, an element of l.Lanes whose function was not called.
func (l *Ledger) giveBack(x *Execution) {
	back := *x
	if x.Broken > 0 { // to be taken over by another node
		x.State, x.Broken = Interrupted, x.Broken-1
		l.Counts.TakenOver--
		return
	}
	l.Lanes = slices.DeleteFunc(l.Lanes, func(other Execution) bool { return other.Lane == back.Lane })
	switch waits := func(d Due) bool { return d.Cause == back.Cause }; {
	case back.Cause == CauseBackfill:
		if back.Backfill == l.backfillID() {
			l.Backfill.Cursor = back.At - 1
		}
	case back.cause() == CauseTick || !slices.ContainsFunc(l.Due, waits): // one trigger and one start at most
		l.Due = slices.Insert(l.Due, 0, back.Due)
	}
}

func (l *Ledger) startLane(x Execution, m Moment) *Execution {
	x.State, x.Node, x.Start = Running, shortenJSON(m.Node, maxLaneNodeBytes), m.Now.UnixMilli()
	l.Lanes = append(l.Lanes, x)
	l.Definition.Since++
	return &l.Lanes[len(l.Lanes)-1]
}

// leave ends x and drops it from its lane.
func (l *Ledger) leave(j *Job, x Execution, state State, at time.Time, attempts int, err error) {
	l.drop(j, x)
	l.End(state, at, attempts, err)
}

// drop makes x the latest execution, instead of one of those in lanes.
func (l *Ledger) drop(j *Job, x Execution) {
	l.Lanes = slices.DeleteFunc(l.Lanes, func(other Execution) bool { return other.Lane == x.Lane })
	if l.Execution != nil {
		l.remember(j, *l.Execution)
	}
	x.Fence = 0
	l.Execution = &x
}

// cutNewest removes the ticks from Due that wait because of Overlap.Newest, and returns them.
func (l *Ledger) cutNewest() (gone []time.Time) {
	l.Due = slices.DeleteFunc(l.Due, func(d Due) bool {
		if d.Newest {
			gone = append(gone, time.UnixMilli(d.At).UTC())
		}
		return d.Newest
	})
	return gone
}

// newestWaits reports whether a tick waits because of Overlap.Newest.
func (l *Ledger) newestWaits() bool {
	return slices.ContainsFunc(l.Due, func(d Due) bool { return d.Newest })
}

// backfillsNow reports whether a lane executes a tick of a backfill.
func (l *Ledger) backfillsNow() bool {
	return slices.ContainsFunc(l.Lanes, func(x Execution) bool { return x.Cause == CauseBackfill })
}

// ready reports whether d may begin.
func (d Due) ready(m Moment) bool { return !m.Order.Paused() || d.Cause == CauseTrigger }
