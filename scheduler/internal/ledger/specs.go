package ledger

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// Decision says which node decided the spec in force, and when. Decisions of different nodes differ.
type Decision struct {
	Decider
	Since, From int64
}

// Decision returns the decision about the spec in force.
func (l *Ledger) Decision() Decision { return Decision{l.Decider, l.Since, l.From} }

// Latest returns the time of the latest registration or change that the decision is about.
func (d Decision) Latest() time.Time { return time.UnixMilli(max(d.Since, d.From)) }

// Follows reports whether a node with the job j executes the ticks of l.Spec. If not, the node puts the spec of j into
// force. The node with the greater Moment.Since wins, because a deploy ends with a start of each node: after the deploy
// the latest start is one with the new spec. Equal times change nothing, so that two nodes do not alternate. The
// decision Moment.Over does not count: its node is no longer up.
//
// A Since in the future was written before the store's clock was set back. It counts only against nodes that registered
// the job before the clock was set back: their Moment.Since is 0.
func (l *Ledger) Follows(j *Job, m Moment) bool {
	if l.Spec == "" || l.Spec == j.SpecText {
		return false
	}
	if l.overruled(m) {
		return false
	}
	mine := m.Since.UnixMilli()
	return m.Unseen || mine <= l.Since && (mine == 0 || l.Since <= m.Now.Add(SetBack).UnixMilli())
}

// overruled reports whether the spec in force is that of Moment.Over.
func (l *Ledger) overruled(m Moment) bool { return m.Over != Decision{} && m.Over == l.Decision() }

// InForce returns the rules of j with the spec in force. now is l.Spec, parsed.
func (l *Ledger) InForce(j *Job, now spec.Spec) *Job {
	if l.Spec == "" || l.Spec == j.SpecText {
		return j
	}
	rules := *j
	rules.Spec, rules.SpecText = now, l.Spec
	return &rules
}

// Forgotten returns what remains of l when an operator forgets the job: only that its ticks up to Last are not executed
// again. The next node with the job puts its spec into force.
func (l *Ledger) Forgotten() *Ledger { return &Ledger{Version: version, Last: l.Last} }

// putIntoForce makes the spec of j the spec in force. The caller has dealt with the ticks of the former spec up to
// m.Now. It returns the News of the change, unless the ledger had no spec.
func (l *Ledger) putIntoForce(j *Job, m Moment) []News {
	former, gone := l.Spec, ""
	if l.overruled(m) {
		gone = fmt.Sprintf(": node %s, which had registered the former spec last, is not up with the job", l.Decider.Node)
	}
	l.Spec, l.Since, l.Decider = j.SpecText, m.Since.UnixMilli(), Decider{m.Node, m.ID}
	if former == "" {
		l.Last = max(l.Last, m.Floor.UnixMilli())
		l.From = l.Last
		return nil
	}
	l.Last = max(l.Last, m.Now.UnixMilli())
	l.From = l.Last
	l.recountBackfill(j)
	l.Definition.Back = 0 // no contest: a contest changes no spec
	l.Former = prepend(Former{shortenJSON(former, spec.MaxBytes), l.From}, l.Former, keptFormer)
	return []News{{Kind: NewsSpec, Tick: tickAt(l.LastTick()), Node: m.Node,
		Err: fmt.Errorf("the spec was %q, and is %q from %s on%s", former, l.Spec, l.LastTick().Format("2006-01-02T15:04:05.000Z07:00"), gone)}}
}
