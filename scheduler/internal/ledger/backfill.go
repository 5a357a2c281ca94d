package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// MaxBackfill is how many ticks a backfill has at most.
const MaxBackfill = 10_000

// RangeTicks returns the number of ticks of s between from and to, both included, at most MaxBackfill+1.
func RangeTicks(s spec.Spec, from, to time.Time) (n int) {
	for range s.Ticks(from.Add(-time.Millisecond), to) {
		if n++; n > MaxBackfill {
			break
		}
	}
	return n
}

// Backfilling reports whether the latest backfill has not ended.
func (l *Ledger) Backfilling() bool { return l.Backfill != nil && l.Backfill.End == 0 }

// backfillsNow reports whether an execution without a result is one of a backfill.
func (l *Ledger) backfillsNow() bool {
	return slices.ContainsFunc(l.Running, func(x Execution) bool { return x.Cause == CauseBackfill })
}

func (l *Ledger) backfillID() int64 {
	if l.Backfill == nil {
		return 0
	}
	return l.Backfill.ID
}

// takeUpBackfill brings l.Backfill up to the order. The waiting ticks of the range leave Due: the backfill executes
// them. It reports whether anything has changed.
func (l *Ledger) takeUpBackfill(rules *Job, m Moment) (changed bool) {
	o := m.Order.Backfill
	if o.ID > l.backfillID() {
		from, to := time.UnixMilli(o.From), time.UnixMilli(o.To)
		l.Backfill = &Backfill{BackfillOrder: o, Ticks: min(RangeTicks(rules.Spec, from, to), MaxBackfill), Cursor: o.From - 1}
		l.Due = slices.DeleteFunc(l.Due, func(d Due) bool {
			return d.cause() == CauseTick && l.leftToBackfill(time.UnixMilli(d.At))
		})
		changed = true
	}
	if l.Backfilling() && o.ID == l.Backfill.ID && o.Stop && !l.Backfill.Stop {
		l.Backfill.Stop, changed = true, true
	}
	return changed
}

// leftToBackfill reports whether the backfill is going to execute tick.
func (l *Ledger) leftToBackfill(tick time.Time) bool {
	t := tick.UnixMilli()
	return l.Backfilling() && !l.Backfill.Stop && t > l.Backfill.Cursor && t <= l.Backfill.To
}

// nextOfBackfill returns the next tick of the backfill, and moves the cursor to it. If no tick is left, it ends the
// backfill and returns false; an error means that ticks of the range are left out. No execution of the backfill may be
// running.
func (l *Ledger) nextOfBackfill(rules *Job, m Moment) (d Due, ok bool, err error) {
	b := l.Backfill
	next := rules.Spec.Next(time.UnixMilli(b.Cursor))
	over := next.IsZero() || next.UnixMilli() > b.To
	if over || b.Stop || l.begunOfBackfill() >= MaxBackfill {
		if b.End = m.Now.UnixMilli(); !over && !b.Stop {
			err = fmt.Errorf("scheduler: the new spec gives the range of the backfill more than %d ticks; ticks from %s on are not executed",
				MaxBackfill, next.UTC().Format(time.RFC3339))
		}
		return Due{}, false, err
	}
	b.Cursor = next.UnixMilli()
	return Due{At: b.Cursor, Cause: CauseBackfill, Backfill: b.ID}, true, nil
}

// begunOfBackfill returns how many ticks of the backfill have begun.
func (l *Ledger) begunOfBackfill() int {
	n := l.Backfill.Done + l.Backfill.Failed + l.Backfill.Lost
	if l.backfillsNow() {
		n++
	}
	return n
}

// recountBackfill counts the ticks of an unfinished backfill by the spec of rules, which has just come into force.
func (l *Ledger) recountBackfill(rules *Job) {
	if b := l.Backfill; l.Backfilling() {
		rest := RangeTicks(rules.Spec, time.UnixMilli(b.Cursor+1), time.UnixMilli(b.To))
		b.Ticks = min(l.begunOfBackfill()+rest, MaxBackfill)
	}
}

// countBackfill counts the result of an execution of the backfill.
func (l *Ledger) countBackfill(x *Execution) {
	if x.Cause != CauseBackfill || x.Backfill != l.backfillID() {
		return
	}
	switch x.State {
	case Done, Enqueued:
		l.Backfill.Done++
	case Lost:
		l.Backfill.Lost++
	default:
		l.Backfill.Failed++
	}
}
