package scheduler

import (
	"fmt"
	"slices"
	"time"
)

const (
	// punctual is how late a tick may be claimed and not count as missed: longer than
	// it takes to notice that the first node to come has died before it could write.
	punctual = time.Minute

	// maxCounted bounds the missed ticks that are looked at one by one: a job of every
	// second that was away for a year has 31 million.
	maxCounted = 10_000

	// setBack is by how much the store's clock must be behind a ledger to have been set
	// back: more than this node's idea of it is wrong by.
	setBack = 10 * time.Second

	// clockReset is how far ahead of the store's clock a ledger may be before it is
	// taken for one that was written while that clock was wrong. Up to that, ticks wait
	// for the clock to catch up, so that none is run twice.
	clockReset = 24 * time.Hour

	// maxBroken is after how many broken runs a tick is written off all the same: it may
	// be the function that ends its node.
	maxBroken = 10
)

// moment is what a ledger is looked at with.
type moment struct {
	now   time.Time // the store's clock
	floor time.Time // ticks up to here were before this node's time
	order order     // what people have asked for
	node  string
}

// update brings the ledger up to m: ticks that are due go to Due or are written off,
// triggers go to Due. busy says that the job was running until now. It reports whether
// there is anything to write, and what there is to tell once that is written.
func (l *ledger) update(j *job, m moment, busy bool) (changed bool, events []Event) {
	if l.Version == 0 { // a new job
		l.Version, changed = ledgerVersion, true
		if m.now.Sub(time.UnixMilli(m.order.TriggerAt)) > punctual {
			l.Order = m.order.Trigger // it was for the ledger that is lost
		}
	}
	events = l.define(j, m)
	if l.Spec != j.text {
		// Of a spec that was another until now there is nothing to catch up with. The
		// change alone is not worth a write: in a deploy nodes take turns with it.
		l.Spec, l.Last = j.text, max(l.Last, m.floor.UnixMilli())
	}
	if j.atStart && !slices.Contains(l.Starts, j.startID) {
		l.Starts = l.Starts.add(j.startID)
		l.wait(due{At: m.now.UnixMilli(), Cause: CauseStart})
		changed = true
	}
	if m.order.Trigger > l.Order {
		l.Order = m.order.Trigger
		l.wait(due{At: m.order.TriggerAt, Cause: CauseTrigger})
		changed = true
	}
	if last := time.UnixMilli(l.Last); last.After(m.now.Add(clockReset)) {
		events = append(events, Event{Kind: EventClock, Tick: j.tick(last.UTC()), Node: m.node,
			Err: fmt.Errorf("scheduler: the job had come to %s, and the store's clock shows %s: it was wrong then, or is now; ticks count from now on", stamp(last), stamp(m.now))})
		l.Last, changed = m.now.UnixMilli(), true
	}
	skip := func(kind Kind, count *int64, ticks []time.Time) {
		if n := len(ticks); n > 0 {
			changed = true
			*count += int64(n)
			events = append(events, Event{Kind: kind, Tick: j.tick(ticks[n-1]), Node: m.node, Count: n})
		}
	}
	cut := func(room int) {
		var gone []time.Time
		for _, d := range l.cut(room) {
			gone = append(gone, time.UnixMilli(d.At).UTC())
		}
		skip(EventMissed, &l.Counts.Missed, gone)
	}
	cut(maxRoom)
	ticks := l.advance(j.ticks(time.UnixMilli(l.Last), m.now.Add(-j.delay)))
	if len(ticks) == 0 {
		return changed, events
	}
	paused := slices.DeleteFunc(slices.Clone(ticks), func(t time.Time) bool { return !m.order.pausedAt(t) })
	rest := slices.DeleteFunc(ticks, m.order.pausedAt)
	skip(EventPaused, &l.Counts.Paused, paused)
	if busy {
		n := len(rest) - j.queues(rest)
		skip(EventOverlapped, &l.Counts.Overlapped, rest[:n])
		rest = rest[n:]
	} else {
		n := len(rest) - j.catchesUp(rest, m.now)
		skip(EventMissed, &l.Counts.Missed, rest[:n])
		rest = rest[n:]
	}
	for _, t := range rest {
		l.wait(due{At: t.UnixMilli()})
	}
	if len(rest) > 0 {
		cut(j.room(busy))
	}
	return true, events
}

// advance moves Last on to the newest of the ticks. Only those after it count: whatever a
// spec may say, the job never goes back.
func (l *ledger) advance(ticks []time.Time) []time.Time {
	ticks = slices.DeleteFunc(ticks, func(t time.Time) bool {
		old := t.UnixMilli() <= l.Last
		l.Last = max(l.Last, t.UnixMilli())
		return old
	})
	return ticks
}

// room is how many ticks may wait in the ledger: as many as are caught up with, however
// many outages they are of, and one that came while the job was running.
func (j *job) room(busy bool) int {
	room := max(j.catchUp.most, 1)
	if busy {
		room++
	}
	return min(room, maxRoom)
}

// stamp is how messages show an instant.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// next takes from the ledger what is to be run now, and begins it. It is for the
// holder of the lock, or for a copy of the ledger of a lock that is free: a run that is
// not settled was broken off. It reports whether there is anything to write.
func (l *ledger) next(j *job, m moment) (r *run, changed bool, events []Event) {
	if last := l.Run; last.unfinished() {
		if !j.atMostOnce && last.Broken < maxBroken {
			if last.State == StateRunning {
				last.State = StateDied
			}
			l.Counts.TakenOver++
			return l.begin(run{due: last.due, Broken: last.Broken + 1}, m), true, nil
		}
		e := Event{Kind: EventLost, Tick: last.tick(j.name), Node: last.Node}
		l.end(StateLost, time.UnixMilli(last.End), 0, nil)
		events, changed = append(events, e), true
	}
	for i, d := range l.Due {
		if m.order.paused() && d.Cause != CauseTrigger {
			continue
		}
		l.Due = slices.Delete(l.Due, i, i+1)
		return l.begin(run{due: d}, m), true, events
	}
	return nil, changed, events
}

// ticks returns the job's ticks after the first time up to the second, the oldest
// first. Of more than maxCounted it returns as many, the newest of them among them.
func (j *job) ticks(after, until time.Time) []time.Time {
	var ticks []time.Time
	for t := range j.spec.Ticks(after, until) {
		if ticks = append(ticks, t); len(ticks) == maxCounted {
			break
		}
	}
	if len(ticks) < maxCounted {
		return ticks
	}
	at := until
	for i := len(ticks) - 1; i >= len(ticks)-max(j.catchUp.most, 1); i-- {
		at = j.spec.Prev(at)
		ticks[i], at = at, at.Add(-time.Second) // ticks are whole seconds
	}
	return ticks
}

// queues is how many of the ticks that came while the job was running are run after it.
func (j *job) queues(ticks []time.Time) int {
	if j.overlap == overlapSkip {
		return 0
	}
	return min(1, len(ticks))
}

// catchesUp is how many of the ticks that nobody has run are run all the same.
func (j *job) catchesUp(ticks []time.Time, now time.Time) int {
	n := 0
	for i := len(ticks) - 1; i >= 0 && n < j.catchUp.most && now.Sub(ticks[i]) <= j.catchUp.window; i-- {
		n++
	}
	if n == 0 && len(ticks) > 0 && now.Sub(ticks[len(ticks)-1])-j.delay < punctual {
		n = 1
	}
	return n
}
