package scheduler

import (
	"context"
	"fmt"
	"time"
)

// Cause is why a job is run.
type Cause string

// The causes.
const (
	CauseTick    Cause = "tick"    // the spec
	CauseStart   Cause = "start"   // RunAtStart
	CauseTrigger Cause = "trigger" // Trigger
)

// Tick is one occasion on which a job is run. It is the same on every node.
type Tick struct {
	Name  string    `json:"name"` // of the job
	At    time.Time `json:"at"`   // the instant of the spec, without jitter; otherwise when it was asked for; UTC
	Cause Cause     `json:"cause"`

	// Broken is how many runs of this tick were broken off before this one: their node
	// died, was stopped, or lost the lock. 0 at the first run.
	Broken int `json:"broken,omitempty"`
}

// ID is a name for the tick that is the same whoever runs it, and different from that
// of every other tick: "rollup@1767236400". Use it as an asynq.TaskID, or to recognise
// the second run of a tick.
func (t Tick) ID() string {
	if t.Cause == CauseTick {
		return fmt.Sprintf("%s@%d", t.Name, t.At.Unix())
	}
	return fmt.Sprintf("%s@%s-%d", t.Name, t.Cause, t.At.UnixMilli())
}

type tickKey struct{}

// TickFrom returns the tick for which the function that was given ctx is run.
func TickFrom(ctx context.Context) (Tick, bool) {
	t, ok := ctx.Value(tickKey{}).(Tick)
	return t, ok
}
