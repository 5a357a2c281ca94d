package scheduler

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

// job is what was registered, and what this node knows of it.
type job struct {
	options
	name    string
	program string // that it was registered by
	key     string // of its lock
	spec    spec.Spec
	text    string        // of spec, for comparison
	delay   time.Duration // this job's part of the jitter
	print   string        // fingerprint of all that was said of the job
	fn      func(context.Context, Tick) error

	// Guarded by Scheduler.mu.
	at    time.Time // when to look at it, by the store's clock
	index int       // in the agenda; -1 when not in it
	busy  bool      // a turn or a standby is under way: it decides when to look next
	floor time.Time // ticks up to here are none of this node's business
	heed  int64     // the order that it was looked at with

	trouble error // what last kept this node from running it; nil when that is over
	behind  int64 // the Last of the ledger for which it was told that the clock was set back
}

// tick is a tick of the job's spec.
func (j *job) tick(at time.Time) Tick { return Tick{Name: j.name, At: at, Cause: CauseTick} }

// next returns when the first tick after t is to be run, zero if there is none.
func (j *job) next(after time.Time) time.Time {
	t := j.spec.Next(after)
	if t.IsZero() {
		return t
	}
	return t.Add(j.delay)
}

// delayOf is the part of jitter for a job of that name, whole milliseconds.
func delayOf(name string, jitter time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(name))
	// FNV leaves the high bits of short texts alike; mix them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return time.Duration(x % uint64(jitter/time.Millisecond+1) * uint64(time.Millisecond))
}
