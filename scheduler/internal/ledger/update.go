package ledger

import (
	"fmt"
	"slices"
	"time"
)

const (
	// setBack is how far the store's clock must be behind a ledger to count as set back.
	// The error of a node's estimate of the clock is smaller.
	setBack = 10 * time.Second

	// clockReset is how far ahead of the store's clock a ledger may be. Ticks wait until
	// the clock has caught up, so that none is executed twice. A ledger further ahead was
	// written while the clock was wrong.
	clockReset = 24 * time.Hour

	// maxBroken is how often a tick is taken over. Then it is written off: its function
	// may be what crashes the nodes.
	maxBroken = 10
)

// Moment is when and where a ledger is updated.
type Moment struct {
	Now   time.Time // the store's clock
	Floor time.Time // with a new spec or without a ledger, ticks count from here
	Order Order
	Node  string
}

// Kind says what a News is about. Package scheduler has events of the same names.
type Kind string

const (
	NewsMissed     Kind = "missed"
	NewsOverlapped Kind = "overlapped"
	NewsPaused     Kind = "paused"
	NewsLost       Kind = "lost"
	NewsRedefined  Kind = "redefined"
	NewsContested  Kind = "contested"
	NewsClock      Kind = "clock"
)

// News is something to report once the ledger is written.
type News struct {
	Kind  Kind
	Tick  Tick   // the newest of Count ticks; zero if the News is not about a tick
	Node  string // which the News is about
	Count int
	Err   error
}

// Update brings the ledger up to m. Due ticks go to Due or are skipped; triggers and starts
// go to Due. afterExecution says that the job was running until now. changed reports whether
// the ledger is worth writing.
func (l *Ledger) Update(j *Job, m Moment, afterExecution bool) (changed bool, news []News) {
	if l.New() {
		l.Version, changed = version, true
		if m.Now.Sub(time.UnixMilli(m.Order.TriggeredAt)) > punctual {
			l.Triggered = m.Order.Triggered // the trigger was for a ledger that is lost
		}
	}
	news = l.define(j, m)
	if l.Spec != j.SpecText {
		// Nothing is caught up with after a change of the spec. The change alone is not
		// worth a write: during a deploy nodes with either spec take turns.
		l.Spec, l.Last = j.SpecText, max(l.Last, m.Floor.UnixMilli())
	}
	if j.AtStart && !slices.Contains(l.Starts, j.StartID) {
		l.Starts = l.Starts.add(j.StartID)
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
			Err: fmt.Errorf("scheduler: the ledger has ticks up to %s, but the store's clock shows %s: the clock was wrong then or is wrong now; ticks count from now on", stamp(last), stamp(m.Now))})
		l.Last, changed = m.Now.UnixMilli(), true
	}
	skip := func(kind Kind, count *int64, ticks []time.Time) {
		if n := len(ticks); n > 0 {
			changed = true
			*count += int64(n)
			news = append(news, News{Kind: kind, Tick: tickAt(ticks[n-1]), Node: m.Node, Count: n})
		}
	}
	cut := func(room int) {
		var gone []time.Time
		for _, d := range l.cut(room) {
			gone = append(gone, time.UnixMilli(d.At).UTC())
		}
		skip(NewsMissed, &l.Counts.Missed, gone)
	}
	cut(maxWaiting)
	ticks := l.advance(j.ticks(l.LastTick(), m.Now.Add(-j.Delay)))
	if len(ticks) == 0 {
		return changed, news
	}
	paused := slices.DeleteFunc(slices.Clone(ticks), func(t time.Time) bool { return !m.Order.Skips(t) })
	rest := slices.DeleteFunc(ticks, m.Order.Skips)
	skip(NewsPaused, &l.Counts.Paused, paused)
	if afterExecution {
		n := len(rest) - j.queues(rest)
		skip(NewsOverlapped, &l.Counts.Overlapped, rest[:n])
		rest = rest[n:]
	} else {
		n := len(rest) - j.catchesUp(rest, m.Now)
		skip(NewsMissed, &l.Counts.Missed, rest[:n])
		rest = rest[n:]
	}
	for _, t := range rest {
		l.wait(Due{At: t.UnixMilli()})
	}
	if len(rest) > 0 {
		cut(j.room(afterExecution))
	}
	return true, news
}

// advance moves Last to the newest of the ticks, and returns the ticks after the old Last.
// Whatever a spec may say, a job never goes back.
func (l *Ledger) advance(ticks []time.Time) []time.Time {
	ticks = slices.DeleteFunc(ticks, func(t time.Time) bool {
		old := t.UnixMilli() <= l.Last
		l.Last = max(l.Last, t.UnixMilli())
		return old
	})
	return ticks
}

// Begin makes the next waiting tick the present execution x; x is nil if nothing waits. The
// lock must be free or held by the caller. So an execution without a result was broken off,
// and is taken over or written off. changed is as for Update.
func (l *Ledger) Begin(j *Job, m Moment) (x *Execution, changed bool, news []News) {
	if last := l.Execution; last.unfinished() {
		if !j.AtMostOnce && last.Broken < maxBroken {
			if last.State == Running {
				last.State = Died
			}
			l.Counts.TakenOver++
			return l.start(Execution{Due: last.Due, Broken: last.Broken + 1}, m), true, nil
		}
		news = append(news, News{Kind: NewsLost, Tick: last.Tick(), Node: last.Node})
		l.End(Lost, time.UnixMilli(last.End), 0, nil)
		changed = true
	}
	for i, d := range l.Due {
		if m.Order.Paused() && d.Cause != CauseTrigger {
			continue
		}
		l.Due = slices.Delete(l.Due, i, i+1)
		return l.start(Execution{Due: d}, m), true, news
	}
	return nil, changed, news
}

// Behind returns how far the store's clock is behind the latest tick, if that is more than
// 10 s and at most a day; otherwise 0. Update mends a larger step.
func (l *Ledger) Behind(now time.Time) time.Duration {
	if ahead := l.LastTick().Sub(now); ahead > setBack && ahead <= clockReset {
		return ahead
	}
	return 0
}

// Overdue returns when a tick was due that no node has claimed for a minute, or the zero
// time if there is none. The lock must be free.
func (l *Ledger) Overdue(j *Job, now time.Time) time.Time {
	if l.New() || l.Spec != j.SpecText { // with another spec, ticks count from an unknown time
		return time.Time{}
	}
	if due := j.NextDue(l.LastTick()); !due.IsZero() && now.Sub(due) > punctual {
		return due
	}
	return time.Time{}
}

func tickAt(t time.Time) Tick { return Tick{At: t, Cause: CauseTick} }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
