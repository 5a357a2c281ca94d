package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Cause is why a job is executed.
type Cause string

// The causes.
const (
	CauseTick    Cause = "tick"    // the spec
	CauseStart   Cause = "start"   // RunAtStart
	CauseTrigger Cause = "trigger" // Trigger
)

// Tick is one occasion on which a job is executed. It is the same on every node.
type Tick struct {
	Name  string    `json:"name"` // of the job
	At    time.Time `json:"at"`   // the instant of the spec, without jitter; of a start or trigger, when it was asked for; UTC
	Cause Cause     `json:"cause"`

	// Broken is how many executions of this tick were broken off before: their node died,
	// was stopped or lost the lock. 0 for the first execution.
	Broken int `json:"broken,omitempty"`
}

// ID returns a name for the tick: "rollup@1767236400". It is the same on every node and in
// every execution, and no other tick has it. Use it as the ID of a task, or to recognise
// the second execution of a tick.
func (t Tick) ID() string {
	if t.Cause == CauseTick {
		return fmt.Sprintf("%s@%d", t.Name, t.At.Unix())
	}
	return fmt.Sprintf("%s@%s-%d", t.Name, t.Cause, t.At.UnixMilli())
}

type tickKey struct{}

// TickFrom returns the tick for which a function runs, from the context that it was given.
func TickFrom(ctx context.Context) (Tick, bool) {
	t, ok := ctx.Value(tickKey{}).(Tick)
	return t, ok
}

// tickOf returns a tick of the named job as the ledger has it.
func tickOf(name string, t ledger.Tick) Tick {
	return Tick{Name: name, At: t.At, Cause: Cause(t.Cause), Broken: t.Broken}
}
