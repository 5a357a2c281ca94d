package admin

import (
	"slices"
	"time"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// showLedger makes an Entry from a ledger. here means that rules are those of a registered job, not those of the
// ledger; free means that the job's lock is free. On error the Entry has no History.
func showLedger(name string, l *ledger.Ledger, rules *ledger.Job, here, free bool,
	o ledger.Order, now time.Time) (Entry, error) {
	e := Entry{
		Name: name, Spec: rules.SpecText, Here: here, Paused: o.Paused(), Counts: Counts(l.Counts), Contested: l.Definition.Contested(),
		Policies: l.Definition.Policies, SpecBy: l.Decider.Node, Resumed: showResumed(l.Resumption(o)), Behind: l.Behind(now),
		Waiting: len(l.Due), Backfill: showBackfill(l, o),
	}
	e.Overlaps = int(l.Overlaps.Ticks)
	if !e.Paused && l.Overlaps.Several() {
		e.OverlapsSince, e.Stuck = time.UnixMilli(l.Overlaps.First).UTC(), l.Overlaps.Stuck(now)
	}
	if e.Contested {
		e.DisagreeSince = time.UnixMilli(l.Definition.First).UTC()
	}
	if rules.Spec.String() != "" { // the node can parse the spec in force
		e.Zone, e.Words = rules.Spec.Zone().String(), rules.Spec.Words()
	}
	for i, p := range o.Pauses() {
		e.Pauses = append(e.Pauses, Pause{time.UnixMilli(p.From).UTC(), p.By, p.Note, i > 0 || !o.Alone()})
	}
	if l.From > 0 {
		e.Since = time.UnixMilli(l.From).UTC()
	}
	for _, f := range l.Former {
		e.Former = append(e.Former, FormerSpec{f.Spec, time.UnixMilli(f.Until).UTC()})
	}
	if free {
		e.Overdue = l.Overdue(rules, now)
	}
	if !e.Paused && (here || e.Overdue.IsZero()) {
		from := now.Add(-rules.Delay)
		if e.Behind > 0 {
			from = l.LastTick()
		}
		e.Next = rules.NextDue(from)
	}
	for _, x := range l.Running {
		if free && x.Lane == 0 && x.State == ledger.Running {
			x.State = ledger.Died // no node has taken the tick over yet
		}
		e.Running = append(e.Running, showExecution(name, &x))
	}
	past, err := l.History()
	if l.Latest != nil {
		past = slices.Insert(past, 0, *l.Latest)
	}
	for _, x := range past {
		if x.State == ledger.Running {
			x.State = ledger.Died
		}
		e.History = append(e.History, showExecution(name, &x))
	}
	if n := len(e.Running); n > 0 {
		e.Latest = e.Running[n-1]
	} else if len(e.History) > 0 {
		e.Latest, e.History = e.History[0], e.History[1:]
	}
	return e, err
}

func showExecution(name string, x *ledger.Execution) Execution {
	out := Execution{
		Tick: tickOf(name, x.Tick()), State: scheduler.Kind(x.State), Node: x.Node, Started: time.UnixMilli(x.Start).UTC(),
		Attempts: x.Attempts, Error: x.Err,
	}
	if x.End > 0 {
		out.Ended = time.UnixMilli(x.End).UTC()
	}
	if x.Overrun > 0 {
		out.Overrun = time.UnixMilli(x.Overrun).UTC()
	}
	return out
}

func tickOf(name string, t ledger.Tick) scheduler.Tick {
	return scheduler.Tick{Name: name, At: t.At, Cause: scheduler.Cause(t.Cause), Broken: t.Broken, Backfill: t.Backfill}
}

// disagree adds the nodes that have another spec.
func (e *Entry) disagree(nodes []OtherSpec, now time.Time) {
	for _, n := range nodes {
		if n.Spec == e.Spec {
			continue // the node has not yet seen that its spec is in force
		}
		e.OtherSpecs = append(e.OtherSpecs, n)
		if e.DisagreeSince.IsZero() || n.Since.Before(e.DisagreeSince) {
			e.DisagreeSince = n.Since
		}
	}
	if len(e.OtherSpecs) > 0 && now.Sub(e.DisagreeSince) >= ledger.Rollout {
		e.Contested = true
	}
}

// showResumed returns the end of the latest pause, or nil.
func showResumed(r ledger.Resumed) *Pause {
	if r.At == 0 {
		return nil
	}
	return &Pause{time.UnixMilli(r.At).UTC(), r.By, r.Note, r.All}
}

// showBackfill returns the latest backfill that the ledger has or that is ordered, or nil.
func showBackfill(l *ledger.Ledger, o ledger.Order) *Backfill {
	b := l.Backfill
	if b == nil || o.Backfill.ID > b.ID {
		if b = &(ledger.Backfill{BackfillOrder: o.Backfill}); b.ID == 0 {
			return nil
		}
	}
	out := &Backfill{
		Number: b.ID, From: time.UnixMilli(b.From).UTC(), To: time.UnixMilli(b.To).UTC(), Ticks: b.Ticks,
		Done: b.Done, Failed: b.Failed, Lost: b.Lost, Asked: time.UnixMilli(b.At).UTC(),
		Stopping: b.End == 0 && (b.Stop || o.Backfill.Stop && o.Backfill.ID == b.ID),
	}
	if b.Cursor >= b.From {
		out.Upto = time.UnixMilli(b.Cursor).UTC()
	}
	if b.End > 0 {
		out.Ended = time.UnixMilli(b.End).UTC()
	}
	return out
}
