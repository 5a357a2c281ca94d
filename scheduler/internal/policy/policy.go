// Package policy decides what a node does with a job, from the job's rules, its ledger, the moment, and what the node
// sees of locks. It works on plain values: no I/O, no clock, no goroutines. Package scheduler carries out the
// decisions.
package policy

import (
	"slices"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	// Spread bounds the random time after a tick at which a node reads the ledger, so that the first node has usually
	// written the ledger before the others read it, and the nodes share the jobs of an instant.
	Spread = 50 * time.Millisecond

	// Settling is the pause before a node rereads the ledger of a job that another node has just claimed. Most executions
	// take less time.
	Settling = 500 * time.Millisecond

	// Stale is the time without a write after which a node makes the store keep a record for longer. The store keeps
	// records for driver.MaxPeriod after the last write, but the next write of a ledger may come only at the next tick, in
	// a year or more, and that of a pause never.
	Stale = 7 * 24 * time.Hour

	// Unreadable is the pause before the next look at a value that is not as expected.
	Unreadable = time.Minute

	// crowded is the pause before the next look at an execution that the node must not take over yet, because
	// MaxConcurrent executions are already running. The node that ends one of these executions looks at once.
	crowded = 5 * time.Second
)

// Lock is what a node sees of the lock of a lane. Lane 0 is the job's own lock.
type Lock struct {
	Lane     int
	Free     bool
	Foreign  bool          // the value at the key is no lock
	Held     bool          // and not only reserved
	Fence    int64         // of the holder
	Age      time.Duration // since the grant
	Reserved time.Duration // until the lease ends
	Waiters  int
}

// Phase is where a node is with the job's own lock.
type Phase int

const (
	Between Phase = iota // no execution runs under the lock, which is free or this node's
	During               // an execution of this node runs under the lock
	After                // it has just ended
)

// Sight is what a node sees at a decision, in addition to the ledger.
type Sight struct {
	Phase Phase
	Lock  *Lock          // of the job, if another node has it; nil: it is free or this node's
	Stale bool           // the store is about to drop the ledger
	Here  int            // how many functions of the job run on this node, including those whose locks are lost
	Runs  int            // how many executions run, at least
	Dead  []int          // the lanes, other than 0, of executions that are known to be broken off
	Mine  func(int) bool // reports whether this node executes the job in a lane, or waits for the lane; nil: in no lane
}

// Do is what a node does after a read.
type Do int

const (
	Wait    Do = iota // read the ledger again at Plan.Again
	StandBy           // wait for the job's lock
	Tend              // look at the locks of Plan.Others
	Claim             // take the job's lock and decide again; look at Plan.Others first
)

// Again is the time of the next read: a random time after At, by at most Within.
type Again struct {
	At     time.Time
	Within time.Duration
}

// Plan is a decision.
type Plan struct {
	Do       Do
	Again    Again
	Changed  bool          // the ledger must be written
	Refused  bool          // nothing was done, because a change of the spec waits for the end of the execution
	News     []ledger.News // of the change
	TakeOver []int         // the lanes whose executions begin again or are lost
	Begin    bool          // another execution may begin; see Begins
	Others   []int         // the lanes, other than 0, of executions that this node neither runs nor waits for
}

// Decide brings l up to the moment m and returns what the node does. While another node has the job's lock, l and all
// of m but Now are not used. The ledger is a copy, unless the node has the job's lock.
func Decide(j *ledger.Job, l *ledger.Ledger, m ledger.Moment, s Sight) (p Plan) {
	if s.Lock != nil {
		return standBy(j, m.Now, s)
	}
	switch s.Phase {
	case During:
		if p.Refused = l.Spec != j.SpecText && !l.Follows(j, m); !p.Refused {
			p.Changed, p.News = l.Update(j, m, true)
		}
		return p
	case After:
		p.Changed, p.News = l.Update(j, m, true)
		return p
	}
	dead := s.Dead
	if l.Lane(0) != nil {
		dead = []int{0} // its end comes first, because it keeps the job's lock
	}
	// If the job is full only because executions were broken off, a tick does not count as overlapping, unless it can wait.
	p.Changed, p.News = l.Update(j, m, l.Full(j) && (len(dead) == 0 || j.Overlap.Waits()))
	for _, lane := range dead {
		if l.MayTakeOver(j, lane, max(s.Runs, s.Here)) {
			p.TakeOver = append(p.TakeOver, lane)
		}
	}
	p.Begin = Begins(j, l, m, s.Here)
	p.Others = Others(l, s.Mine)
	p.Again = Next(l.InForce(j, m.Spec), l, m.Now)
	switch {
	case s.Here >= j.Most() && j.Most() == 1 && !inLanes(l): // a function outlives its lock: another node continues
	case p.Changed, p.Begin, len(p.TakeOver) > 0, s.Stale:
		p.Do = Claim
	case len(p.Others) > 0:
		p.Do = Tend
	}
	return p
}

// Begins reports whether another execution may begin on a node on which here functions of the job run.
func Begins(j *ledger.Job, l *ledger.Ledger, m ledger.Moment, here int) bool {
	return here < j.Most() && l.Ready(j, m)
}

// inLanes reports whether an execution is in a lane other than 0.
func inLanes(l *ledger.Ledger) bool {
	return slices.ContainsFunc(l.Running, func(x ledger.Execution) bool { return x.Lane > 0 })
}

// Others returns the lanes, other than 0, with an execution that is not mine; see Sight.Mine.
func Others(l *ledger.Ledger, mine func(int) bool) (lanes []int) {
	for _, x := range l.Running {
		if x.Lane > 0 && (mine == nil || !mine(x.Lane)) {
			lanes = append(lanes, x.Lane)
		}
	}
	return lanes
}

// standBy decides about a job whose lock another node has. One node waits for the lock, and gets it as soon as it is
// free. The others read the ledger again later.
func standBy(j *ledger.Job, now time.Time, s Sight) (p Plan) {
	switch {
	case s.Lock.Age < Settling && j.Most() > 1: // another node begins or ends an execution
		p.Again = Again{now, 4 * Spread}
	case s.Lock.Age < Settling: // nodes that read at the same time must not all wait for the lock
		p.Again = Again{now.Add(Settling - s.Lock.Age), 4 * Spread}
	default:
		p.Again = Again{now.Add(s.Lock.Reserved), Spread}
		if s.Lock.Waiters == 0 && s.Here < j.Most() {
			p.Do = StandBy
		}
	}
	return p
}

// Next returns when to read the ledger again: at the next tick, or after Settling if that is already due. If the next
// tick is far away or there is none, it returns when the ledger may be stale. rules has the spec in force.
func Next(rules *ledger.Job, l *ledger.Ledger, now time.Time) Again {
	switch at := rules.NextDue(l.LastTick()); {
	case at.IsZero(), at.After(now.Add(Stale)):
		return Again{now.Add(Stale), Spread}
	case at.After(now):
		return Again{at, Spread}
	}
	return Again{now.Add(Settling), Settling}
}

// Tending is what a node does about the lanes in which other nodes execute the job.
type Tending struct {
	StandBy []int // the lanes for whose locks the node waits
	Dead    []int // the lanes whose executions it takes over, or counts as lost
	Foreign *Lock // a lane whose value is no lock: the execution waits until the value is gone; nil: there is none
	Again   Again // when to look at all lanes again
}

// TendTo decides about the lanes of Plan.Others, whose locks the node has just read. here is Sight.Here.
func TendTo(j *ledger.Job, l *ledger.Ledger, now time.Time, locks []Lock, here int) (t Tending) {
	// The next look is at the end of the lease that ends last, because for most lanes a node stands by. A lane whose
	// execution has just begun is checked earlier, because no node stands by yet.
	var look, young time.Duration
	runs := len(l.Running) - len(locks)
	for _, k := range locks {
		if k.Executes(l.Lane(k.Lane)) {
			runs++
		}
		look = max(look, k.Reserved)
		switch {
		case k.Foreign:
			t.Foreign, look = &k, max(look, Unreadable)
		case k.Free:
			t.Dead = append(t.Dead, k.Lane)
		case k.Age < Settling:
			young = max(young, Settling-k.Age)
		case k.Waiters == 0:
			t.StandBy = append(t.StandBy, k.Lane)
		}
	}
	t.Dead = slices.DeleteFunc(t.Dead, func(lane int) bool {
		if l.MayTakeOver(j, lane, max(runs, here)) {
			return false
		}
		look = max(look, crowded)
		return true
	})
	if young > 0 {
		look = young
	}
	t.Again = Again{now.Add(look), 4 * Spread}
	return t
}

// Executes reports whether x runs under the lock. If a node that waited for the lock holds it now, x was broken off.
func (k Lock) Executes(x *ledger.Execution) bool {
	return x != nil && x.State == ledger.Running && k.Held && k.Fence == x.Fence
}
