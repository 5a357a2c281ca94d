package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Cause is why a job is executed.
type Cause string

const (
	CauseTick    Cause = "tick"    // the spec
	CauseStart   Cause = "start"   // RunAtStart
	CauseTrigger Cause = "trigger" // Trigger
)

// Tick is one occasion to execute a job.
type Tick struct {
	Name  string    `json:"name"` // of the job
	At    time.Time `json:"at"`   // UTC: the instant of the spec, without jitter; or when the start or trigger was requested
	Cause Cause     `json:"cause"`

	// Broken is how many earlier executions of this tick were broken off, because their
	// node died, was stopped or lost the lock.
	Broken int `json:"broken,omitempty"`
}

// ID returns a name for the tick: "rollup@1767236400". It is the same on every node and in
// every execution, and no other tick of the scope has it. Use it as the ID of a task, or to
// recognise the second execution of a tick. Applications with different scopes that share a
// queue need different job names, or their tasks get the same IDs.
func (t Tick) ID() string {
	if t.Cause == CauseTick {
		return fmt.Sprintf("%s@%d", t.Name, t.At.Unix())
	}
	return fmt.Sprintf("%s@%s-%d", t.Name, t.Cause, t.At.UnixMilli())
}

type tickKey struct{}

// TickFrom returns the tick for which a function runs. ctx is the function's context;
// TickFrom returns false for any other.
func TickFrom(ctx context.Context) (Tick, bool) {
	t, ok := ctx.Value(tickKey{}).(Tick)
	return t, ok
}

// tickOf returns a ledger's tick as one of the named job.
func tickOf(name string, t ledger.Tick) Tick {
	return Tick{Name: name, At: t.At, Cause: Cause(t.Cause), Broken: t.Broken}
}
