package ledger

import (
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

const (
	// punctual is how late a tick may be claimed without counting as missed. It is more
	// than the others need to notice that the first node died before its first write.
	punctual = time.Minute

	// maxCounted bounds the missed ticks that are counted: a job that ticks every second
	// and was away for a year has missed 31 million.
	maxCounted = 10_000
)

// Job has the rules of a job: when it ticks, and which ticks are executed late.
type Job struct {
	Spec     spec.Spec
	SpecText string        // Spec.String(), for comparison
	Delay    time.Duration // this job's part of the jitter
	CatchUp  CatchUp

	QueueOverlap bool // after an execution, execute the newest tick that came during it
	AtMostOnce   bool // write off a tick whose execution was broken off

	AtStart bool // execute the job once for StartID
	StartID string

	Program     string // that has registered the job; as ShortenProgram returns it
	Fingerprint string // hash of how the job was registered; 16 bytes
}

// CatchUp says which missed ticks are executed: the newest Most that are at most Window old.
type CatchUp struct {
	Most   int
	Window time.Duration
}

// NextDue returns when the first tick after the given time is due, jitter included, or the
// zero time if there is none.
func (j *Job) NextDue(after time.Time) time.Time {
	t := j.Spec.Next(after)
	if t.IsZero() {
		return t
	}
	return t.Add(j.Delay)
}

// ticks returns the ticks after the first time and up to the second, the oldest first. Of
// more than maxCounted it returns maxCounted, with all of the newest that may be caught up.
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

// room returns how many ticks may wait: as many as are caught up with, over all outages,
// and after an execution one more that has overlapped it.
func (j *Job) room(afterExecution bool) int {
	room := max(j.CatchUp.Most, 1)
	if afterExecution {
		room++
	}
	return min(room, maxWaiting)
}

// queues returns how many of the ticks that came during an execution are executed after it.
func (j *Job) queues(ticks []time.Time) int {
	if !j.QueueOverlap {
		return 0
	}
	return min(1, len(ticks))
}

// catchesUp returns how many of the unclaimed ticks are executed, from the newest back. The
// newest is executed in any case if it is too recent to count as missed.
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
