package ledger

import (
	"fmt"

	"github.com/joblock/toolkit/scheduler/spec"
)

// Former is a spec that was in force.
type Former struct {
	Spec  string `json:"spec"`
	Until int64  `json:"until"` // Ledger.From of the next spec: the ticks up to this time were those of Spec
}

// Follows reports whether a node with the job j executes the ticks of l.Spec. If not, the node puts the spec of j into
// force. The node with the greater Moment.Since wins, because a deploy ends with a start of each node: after the deploy
// the latest start is one with the new spec. Equal times change nothing, so that two nodes do not take turns.
//
// A Since in the future was written before the store's clock was set back, and does not count.
func (l *Ledger) Follows(j *Job, m Moment) bool {
	if l.Spec == "" || l.Spec == j.SpecText {
		return false
	}
	return m.Since.UnixMilli() <= l.Since && l.Since <= m.Now.Add(setBack).UnixMilli()
}

// InForce returns the rules of j with the spec in force. The parameter now is the spec of l.Spec.
func (l *Ledger) InForce(j *Job, now spec.Spec) *Job {
	if l.Spec == "" || l.Spec == j.SpecText {
		return j
	}
	rules := *j
	rules.Spec, rules.SpecText = now, l.Spec
	return &rules
}

// Forgotten returns what stays of l when people forget the job: no more than that its ticks up to Last are not executed
// again. The next node with the job puts its spec into force.
func (l *Ledger) Forgotten() *Ledger { return &Ledger{Version: version, Last: l.Last} }

// putIntoForce makes the spec of j the spec in force. The caller has dealt with the ticks of the former spec up to m.Now.
// The result has the News of the change, unless the ledger had no spec.
func (l *Ledger) putIntoForce(j *Job, m Moment) []News {
	former := l.Spec
	l.Spec, l.Since = j.SpecText, m.Since.UnixMilli()
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
		Err: fmt.Errorf("the spec was %q, and is %q from %s on", former, l.Spec, l.LastTick().Format("2006-01-02T15:04:05.000Z07:00"))}}
}
