package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// Former is a spec that was in force.
type Former struct {
	Spec  string `json:"spec"`
	Until int64  `json:"until"` // Ledger.From of the next spec: the ticks up to this time were those of Spec
}

// Decider is the node that has registered Ledger.Spec last.
type Decider struct {
	Node string `json:"node"`
	ID   string `json:"id"` // of the node's record; see package roster
}

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
// the job before that, whose Moment.Since is 0.
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

// keptChanges bounds the names in SpecChanges, which take at most some 20 KiB.
const keptChanges = 100

// SpecChanges names the jobs whose spec in force has changed recently. A node with the former spec would otherwise not
// look at the ledger before that spec's next tick.
type SpecChanges struct {
	Jobs []SpecChange `json:"jobs,omitempty"` // the newest first
	Gone int64        `json:"gone,omitempty"` // the greatest fence that Jobs had and no longer has
}

// SpecChange is the name of a job and the fence of the write.
type SpecChange struct {
	Name  string `json:"j"`
	Fence int64  `json:"f"`
}

// Newest returns the fence of the latest change, or 0.
func (c SpecChanges) Newest() int64 {
	if len(c.Jobs) == 0 {
		return c.Gone
	}
	return c.Jobs[0].Fence
}

// AddName adds a name to a list for Add, unless it is there. If the list has more names than SpecChanges keeps, AddName
// drops the name: Add then makes nodes look at all jobs.
func AddName(names []string, name string) []string {
	if len(names) > keptChanges || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// Add adds the jobs of one write.
func (c *SpecChanges) Add(fence int64, names []string) {
	all := make([]SpecChange, 0, len(names)+len(c.Jobs))
	for _, name := range names {
		all = append(all, SpecChange{name, fence})
	}
	for _, old := range c.Jobs {
		if !slices.Contains(names, old.Name) {
			all = append(all, old)
		}
	}
	for len(all) > keptChanges {
		last := len(all) - 1
		c.Gone = max(c.Gone, all[last].Fence)
		all = all[:last]
	}
	c.Jobs = all
}

// After returns the jobs whose spec has changed in writes with a greater fence. If all is true, the spec of any job may
// have changed.
func (c SpecChanges) After(fence int64) (names []string, all bool) {
	for _, change := range c.Jobs {
		if change.Fence > fence {
			names = append(names, change.Name)
		}
	}
	return names, c.Gone > fence
}
