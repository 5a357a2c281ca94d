package ledger

import (
	"slices"
	"time"
)

// MaxLanes is how many executions of a job may run at once; package scheduler checks the bound.
const MaxLanes = 20

// maxLaneNodeBytes bounds the JSON form of Execution.Node in a lane other than 0.
const maxLaneNodeBytes = 100

// maxBroken is how often nodes execute a tick again. After that the tick is lost: its function may crash the nodes.
const maxBroken = 10

// Each execution runs in a lane, under the lane's lock. Lane 0 is the job's own lock. With Job.MaxConcurrent above 1
// executions are in lanes from 1 on, and the job's own lock is held only while a node changes the ledger. An execution
// stays in Ledger.Running until it has a result, so if no node holds the lane's lock, it was broken off.

// Most returns how many executions of the job may run at once.
func (j *Job) Most() int { return max(j.MaxConcurrent, 1) }

// Full reports whether no further execution may begin.
func (l *Ledger) Full(j *Job) bool { return len(l.Running) >= j.Most() }

// Lane returns the execution of a lane, or nil.
func (l *Ledger) Lane(lane int) *Execution {
	i := slices.IndexFunc(l.Running, func(x Execution) bool { return x.Lane == lane })
	if i < 0 {
		return nil
	}
	return &l.Running[i]
}

// Ready reports whether Begin changes the ledger.
func (l *Ledger) Ready(j *Job, m Moment) bool {
	return !l.Full(j) && (slices.ContainsFunc(l.Due, func(d Due) bool { return d.ready(m) }) || l.Backfilling() && !l.backfillsNow())
}

// Begin makes the next waiting tick a running execution of a lane that has none. fence is the fence of the lane's lock.
// If Ready is false, Begin does nothing. If only the end of a backfill is to be written, x is nil.
func (l *Ledger) Begin(j *Job, m Moment, lane int, fence int64) (x *Execution, news []News) {
	if !l.Ready(j, m) {
		return nil, nil
	}
	d, ok, news := l.next(j, m)
	if !ok {
		return nil, news
	}
	return l.start(j, Execution{Due: d, Lane: lane, Fence: fence}, m), news
}

// next removes the execution that begins next from Due, or from the backfill. If the backfill has no further tick, it
// ends, and ok is false. Ledger.Ready must be true.
func (l *Ledger) next(j *Job, m Moment) (d Due, ok bool, news []News) {
	if i := slices.IndexFunc(l.Due, func(d Due) bool { return d.ready(m) }); i >= 0 {
		d = l.Due[i]
		l.Due = slices.Delete(l.Due, i, i+1)
		return d, true, nil
	}
	d, ok, err := l.nextOfBackfill(l.InForce(j, m.Spec), m)
	if ok {
		return d, true, nil
	}
	last := Tick{At: time.UnixMilli(l.Backfill.To).UTC(), Cause: CauseBackfill, Backfill: l.Backfill.ID}
	return d, false, []News{{Kind: NewsBackfilled, Tick: last, Node: m.Node, Count: l.Backfill.Done, Err: err}}
}

// MayTakeOver reports whether TakeOver may be called for a lane. others is how many executions run in other lanes. A
// node whose Job.MaxConcurrent is lower than that of the node that began the execution leaves it until fewer run,
// unless the tick is lost.
func (l *Ledger) MayTakeOver(j *Job, lane, others int) bool {
	x := l.Lane(lane)
	return x != nil && (others < j.Most() || x.lost(j))
}

// TakeOver begins the execution of a lane again. The caller holds the lane's lock, so the execution was broken off. If
// the tick is lost, x is nil and the lane has no execution.
func (l *Ledger) TakeOver(j *Job, m Moment, lane int, fence int64) (x *Execution, news []News) {
	last := *l.Lane(lane)
	if last.lost(j) {
		l.finish(j, last, Lost, time.UnixMilli(last.End), 0, nil)
		return nil, []News{{Kind: NewsLost, Tick: last.Tick(), Node: last.Node}}
	}
	if last.State == Running {
		last.State = Died
	}
	l.drop(j, last)
	l.Counts.TakenOver++
	return l.start(j, Execution{Due: last.Due, Broken: last.Broken + 1, Lane: lane, Fence: fence}, m), nil
}

// lost reports whether no node executes the tick of x again, if x was broken off.
func (x *Execution) lost(j *Job) bool { return j.AtMostOnce || x.Broken >= maxBroken }

// End records the result of the execution that has begun under fence, and counts it. It returns false if there is no
// such execution: it has ended, or another node has taken it over.
func (l *Ledger) End(j *Job, lane int, fence int64, state State, at time.Time, attempts int, err error) bool {
	x := l.Lane(lane)
	if x == nil || x.Fence != fence {
		return false
	}
	switch state {
	case NotBegun:
		l.giveBack(x)
	case Interrupted: // another node takes the execution over
		x.State, x.End, x.Attempts = state, at.UnixMilli(), attempts
		x.fail(err)
	default:
		l.finish(j, *x, state, at, attempts, err)
	}
	return true
}

// giveBack undoes the start of x, an element of l.Running whose function was not called.
func (l *Ledger) giveBack(x *Execution) {
	back := *x
	if x.Broken > 0 { // to be taken over by another node
		x.State, x.Broken = Interrupted, x.Broken-1
		l.Counts.TakenOver--
		return
	}
	l.leave(back.Lane)
	switch waits := func(d Due) bool { return d.Cause == back.Cause }; {
	case back.Cause == CauseBackfill:
		if back.Backfill == l.backfillID() {
			l.Backfill.Cursor = back.At - 1
		}
	case back.cause() == CauseTick || !slices.ContainsFunc(l.Due, waits): // one trigger and one start at most
		l.Due = slices.Insert(l.Due, 0, back.Due)
	}
}

// start makes x a running execution, on the node of m. The latest execution moves to the history.
func (l *Ledger) start(j *Job, x Execution, m Moment) *Execution {
	x.State, x.Node, x.Start = Running, m.Node, m.Now.UnixMilli()
	if x.Lane > 0 {
		x.Node = shortenJSON(m.Node, maxLaneNodeBytes)
	}
	l.archive(j)
	l.Running = append(l.Running, x)
	l.Definition.Since++
	return &l.Running[len(l.Running)-1]
}

// finish ends x, makes it the latest execution, and counts its result.
func (l *Ledger) finish(j *Job, x Execution, state State, at time.Time, attempts int, err error) {
	x.State, x.End, x.Attempts = state, at.UnixMilli(), attempts
	x.fail(err)
	l.drop(j, x)
	switch state {
	case Enqueued:
		if !slices.Contains(l.Tasks, x.Due) {
			l.Streak = 0
		}
	case Done:
		l.Streak = 0
	case Failed, Lost:
		l.Streak++
	}
	if state == Overlapped {
		l.Overlaps.add(time.UnixMilli(x.At))
	} else {
		l.Overlaps = Overlaps{}
	}
	c := &l.Counts
	counts := map[State]*int64{
		Done: &c.Done, Enqueued: &c.Enqueued, Failed: &c.Failed, Cancelled: &c.Cancelled, Lost: &c.Lost, Overlapped: &c.Overlapped,
	}
	if count := counts[state]; count != nil {
		*count++
	}
	l.countBackfill(&x)
}

// fail sets the error of x, or none.
func (x *Execution) fail(err error) {
	x.Err = ""
	if err != nil && (x.Lane == 0 || x.State != Interrupted) { // twenty errors would not fit into a memo
		x.Err = shortenJSON(err.Error(), maxErrBytes)
	}
}

// drop removes x from the running executions, and makes it the latest execution.
func (l *Ledger) drop(j *Job, x Execution) {
	l.leave(x.Lane)
	l.archive(j)
	x.Fence = 0
	l.Latest = &x
}

func (l *Ledger) leave(lane int) {
	l.Running = slices.DeleteFunc(l.Running, func(x Execution) bool { return x.Lane == lane })
}

// archive moves the latest execution to the history.
func (l *Ledger) archive(j *Job) {
	if l.Latest != nil {
		l.remember(j, *l.Latest)
		l.Latest = nil
	}
}

// cutNewest removes from Due the ticks that wait because of Overlap.Newest, and returns them.
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

// ready reports whether d may begin.
func (d Due) ready(m Moment) bool { return !m.Order.Paused() || d.Cause == CauseTrigger }
