package ledger

import (
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// punctual is how late a node may claim a tick before the tick counts as missed. If a node dies before its first write,
// the other nodes notice that in less time, and claim the tick.
const punctual = time.Minute

// maxCounted bounds how many missed ticks are counted. A job that ticks every second has 31 million ticks a year.
const maxCounted = 10_000

const (
	MaxBacklog = 1000           // missed ticks that wait to be executed; package scheduler checks the bound
	maxWaiting = MaxBacklog + 1 // ticks; the additional one is for OverlapNewest
)

// Job has the rules of a job: when the job ticks, and which late ticks nodes execute.
type Job struct {
	Spec     spec.Spec
	SpecText string        // Spec.String(), for comparison
	Delay    time.Duration // from a tick until the tick is due: the job's part of Jitter
	CatchUp  CatchUp

	MaxConcurrent int // how many executions may run at once; below 2: one, under the job's own lock
	Overlap       Overlap
	Deadline      time.Duration // a tick that has been due for longer is not begun; 0: no deadline
	AtMostOnce    bool          // do not execute a tick again if its execution was broken off
	AtStart       bool          // execute the job once for StartID
	StartID       string        // the ID of RunAtStart
	KeepFailures  int           // how many failures the history has at most
	KeepOthers    int           // how many other executions the history has at most
	Program       string        // the result of ShortenProgram for the program that has registered the job
	Fingerprint   string        // a hash of spec, options and program; 16 bytes
	Policies      string        // the options in words: the result of ShortenPolicies
}

// CatchUp selects the newest missed ticks for execution. Window bounds their age, and Most bounds their number.
type CatchUp struct {
	Most   int
	Window time.Duration
}

// NextDue returns the time at which the first tick after the given time is due, including Delay, or the zero time if
// the spec has no later tick.
func (j *Job) NextDue(after time.Time) time.Time {
	t := j.Spec.Next(after)
	if t.IsZero() {
		return t
	}
	return t.Add(j.Delay)
}

// ticks returns the ticks that are later than after and not later than until, the oldest first: at most maxCounted,
// namely the newest CatchUp.Most ticks, and the oldest of the others.
func (j *Job) ticks(after, until time.Time) []time.Time {
	var ticks []time.Time
	for t := range j.Spec.Ticks(after, until) {
		if ticks = append(ticks, t); len(ticks) == maxCounted {
			break
		}
	}
	if len(ticks) < maxCounted {
		return ticks
	}
	at := until
	for i := len(ticks) - 1; i >= len(ticks)-max(j.CatchUp.Most, 1); i-- {
		at = j.Spec.Prev(at)
		ticks[i], at = at, at.Add(-time.Second) // ticks are whole seconds
	}
	return ticks
}

// Overlap selects which ticks that come during an execution wait for its end: none, the first, or the newest.
type Overlap struct {
	Queue  int  // a tick waits if fewer than Queue ticks already wait
	Newest bool // the newest of the ticks waits; Queue is 0
}

// Waits reports whether a tick can wait for the end of an execution.
func (o Overlap) Waits() bool { return o.Newest || o.Queue > 0 }

// room returns how many ticks may wait: CatchUp.Most over all outages together, at least one, and in addition
// Overlap.Queue ticks. If newest is true, one more may wait: the newest tick that came during an execution. The result
// is at most maxWaiting.
func (j *Job) room(newest bool) int {
	room := max(j.CatchUp.Most, 1) + j.Overlap.Queue
	if newest {
		room++
	}
	return min(room, maxWaiting)
}

// late reports whether the deadline for the start of tick has passed.
func (j *Job) late(tick, now time.Time) bool {
	return j.Deadline > 0 && now.Sub(tick)-j.Delay > j.Deadline
}

// split returns which of the ticks that came during an execution wait: ticks[from:to]. The others are skipped. waiting
// is how many ticks already wait.
func (o Overlap) split(ticks []time.Time, waiting int) (from, to int) {
	if o.Newest {
		return max(len(ticks)-1, 0), len(ticks)
	}
	return 0, min(max(o.Queue-waiting, 0), len(ticks))
}

// catchesUp returns how many of the unclaimed ticks the job executes, counted from the newest tick back. It executes at
// least the newest tick if that is too recent to count as missed.
func (j *Job) catchesUp(ticks []time.Time, now time.Time) int {
	n := 0
	for i := len(ticks) - 1; i >= 0 && n < j.CatchUp.Most && now.Sub(ticks[i]) <= j.CatchUp.Window; i-- {
		n++
	}
	if n == 0 && len(ticks) > 0 && now.Sub(ticks[len(ticks)-1])-j.Delay < punctual {
		n = 1
	}
	return n
}
