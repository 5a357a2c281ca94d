package ledger

import (
	"fmt"
	"slices"
	"time"
)

// clockReset is how far a ledger may be ahead of the store's clock. Up to clockReset, ticks wait until the clock
// has caught up, so that no tick is executed twice. A ledger further ahead was written while the clock was wrong.
const clockReset = 24 * time.Hour

// Update brings the ledger up to the moment m. Due ticks go to Ledger.Due or are skipped; triggers and starts go to
// Ledger.Due. wasRunning is true if the ticks overlap: as many executions as may run at once run, or did until now.
// changed reports whether the caller should write the ledger.
func (l *Ledger) Update(j *Job, m Moment, wasRunning bool) (changed bool, news []News) {
	first := l.Spec == "" // also after Forgotten; operators see the job when the ledger is written
	if first {
		l.putIntoForce(j, m)
	}
	rules := l.InForce(j, m.Spec)
	if l.Spec == j.SpecText || l.Follows(j, m) {
		if since := m.Since.UnixMilli(); l.Spec == j.SpecText && since > l.Since {
			l.Since, l.Decider = since, Decider{m.Node, m.ID} // not worth a write
		}
		changed, news = l.update(j, rules, m.Now.Add(-j.Delay), m, wasRunning)
		stuck := l.reportStuck(m, wasRunning)
		return changed || first || len(stuck) > 0, append(news, stuck...)
	}
	// All ticks so far belong to the former spec. They do not wait for their jitter.
	_, news = l.update(j, rules, m.Now, m, wasRunning)
	return true, append(news, l.putIntoForce(j, m)...)
}

// update does what Update does, except that it does not change the spec. It takes the ticks of rules, up to until.
func (l *Ledger) update(j, rules *Job, until time.Time, m Moment, wasRunning bool) (changed bool, news []News) {
	if l.New() {
		l.Version, changed = version, true
		if m.Now.Sub(time.UnixMilli(m.Order.TriggeredAt)) > punctual {
			l.Triggered = m.Order.Triggered // the trigger was for a ledger that is lost
		}
		if b := m.Order.Backfill; b.ID != 0 && m.Now.Sub(time.UnixMilli(b.At)) > punctual {
			l.Backfill = &Backfill{BackfillOrder: b, End: m.Now.UnixMilli()} // and so was the backfill
		}
	}
	news = l.define(j, m)
	l.Resumed = l.Resumption(m.Order) // not worth a write
	if j.AtStart && !slices.Contains(l.Starts, j.StartID) {
		l.Starts = prepend(j.StartID, l.Starts, keptStarts)
		l.wait(Due{At: m.Now.UnixMilli(), Cause: CauseStart})
		changed = true
	}
	if m.Order.Triggered > l.Triggered {
		l.Triggered = m.Order.Triggered
		l.wait(Due{At: m.Order.TriggeredAt, Cause: CauseTrigger})
		changed = true
	}
	if last := l.LastTick(); last.After(m.Now.Add(clockReset)) {
		news = append(news, News{Kind: NewsClock, Tick: tickAt(last), Node: m.Node,
			Err: fmt.Errorf("scheduler: the ledger has ticks up to %s, but the store's clock shows %s: one of the two is wrong by more than %s; ticks count from now on",
				last.Format(time.RFC3339), m.Now.UTC().Format(time.RFC3339), clockReset)})
		l.Last, changed = m.Now.UnixMilli(), true
	}
	skip := func(kind Kind, count *int64, ticks []time.Time) {
		if n := len(ticks); n > 0 {
			changed = true
			*count += int64(n)
			if kind == NewsOverlapped {
				l.Overlaps.add(ticks...)
			}
			news = append(news, News{Kind: kind, Tick: tickAt(ticks[n-1]), Node: m.Node, Count: n})
		}
	}
	changed = l.takeUpBackfill(rules, m) || changed
	overlap := j.Overlap
	if (l.backfillsNow() || len(l.Running) == 0 && l.Latest != nil && l.Latest.Cause == CauseBackfill) && !overlap.Waits() {
		overlap.Newest = true // a backfill does not take the place of a tick
	}
	overlapped := wasRunning || overlap.Waits() && l.Lane(0) != nil
	skip(NewsMissed, &l.Counts.Missed, l.cut(maxWaiting))
	skip(NewsMissed, &l.Counts.Missed, l.expire(j, m.Now))
	ticks := l.advance(rules.ticks(l.LastTick(), until))
	if len(ticks) == 0 {
		return changed, news
	}
	paused := slices.DeleteFunc(slices.Clone(ticks), func(t time.Time) bool { return !m.Order.Skips(t) })
	skip(NewsPaused, &l.Counts.Paused, paused)
	rest := slices.DeleteFunc(ticks, func(t time.Time) bool { return m.Order.Skips(t) || l.leftToBackfill(t) })
	if !overlapped || overlap.Waits() {
		fresh := slices.DeleteFunc(slices.Clone(rest), func(t time.Time) bool { return j.late(t, m.Now) })
		skip(NewsMissed, &l.Counts.Missed, rest[:len(rest)-len(fresh)])
		rest = fresh
	}
	kind, count := NewsMissed, &l.Counts.Missed
	from, to := len(rest)-j.catchesUp(rest, m.Now), len(rest)
	if overlapped {
		kind, count = NewsOverlapped, &l.Counts.Overlapped
		from, to = overlap.split(rest, l.waiting())
	}
	isNewest := overlapped && overlap.Newest
	if isNewest && from < to { // the newer tick replaces the one that waits
		old := l.cutNewest()
		rest, from, to = slices.Concat(old, rest), from+len(old), to+len(old)
	}
	skip(kind, count, slices.Concat(rest[:from], rest[to:]))
	for _, t := range rest[from:to] {
		l.wait(Due{At: t.UnixMilli(), Newest: isNewest})
	}
	if from < to {
		skip(NewsMissed, &l.Counts.Missed, l.cut(j.room(overlapped && overlap.Newest || l.newestWaits())))
	}
	return true, news
}

// advance moves Last to the newest of the ticks, and returns the ticks after the old Last. Last does not go back, even
// if the spec returns ticks before Last.
func (l *Ledger) advance(ticks []time.Time) []time.Time {
	return slices.DeleteFunc(ticks, func(t time.Time) bool {
		old := t.UnixMilli() <= l.Last
		l.Last = max(l.Last, t.UnixMilli())
		return old
	})
}

// Behind returns how far the store's clock is behind the latest tick, if that is more than 10 s and at most a day;
// otherwise 0. If the clock is further behind, Update sets the ledger to the clock.
func (l *Ledger) Behind(now time.Time) time.Duration {
	if ahead := l.LastTick().Sub(now); ahead > SetBack && ahead <= clockReset {
		return ahead
	}
	return 0
}

// Overdue returns the due time of the first tick that no node has claimed within a minute, or the zero time. The job's
// lock must be free.
func (l *Ledger) Overdue(j *Job, now time.Time) time.Time {
	if l.New() || l.Spec != j.SpecText { // with another spec, ticks count from an unknown time
		return time.Time{}
	}
	if due := j.NextDue(l.LastTick()); !due.IsZero() && now.Sub(due) > punctual {
		return due
	}
	return time.Time{}
}
