package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Cause is the reason for an execution.
type Cause string

const (
	CauseTick     Cause = "tick"     // an instant of the spec has come
	CauseStart    Cause = "start"    // the option RunAtStart
	CauseTrigger  Cause = "trigger"  // a call of admin.Admin.Trigger
	CauseBackfill Cause = "backfill" // a call of admin.Admin.Backfill
)

// Tick is one occasion to execute a job.
type Tick struct {
	Name  string    `json:"name"` // of the job
	At    time.Time `json:"at"`   // in UTC: the instant of the spec, without jitter; or the time of the start or trigger
	Cause Cause     `json:"cause"`

	// Broken is how many earlier executions of this tick were broken off: their node died, was stopped or lost the
	// lock.
	Broken int `json:"broken,omitempty"`

	// Backfill is the number of the backfill, with CauseBackfill. No other backfill of the scope has the number.
	Backfill int64 `json:"backfill,omitempty"`
}

// ID returns a name for the tick, like "rollup@1767236400". It is the same on every node and in every execution, and no
// other tick of the scope has it. Use it as the ID of a task, or to recognize the second execution of a tick.
// Applications that share a queue need different job names, even if the scopes differ: the ID lacks the scope.
func (t Tick) ID() string {
	if t.Cause == CauseTick {
		return fmt.Sprintf("%s@%d", t.Name, t.At.Unix())
	}
	if t.Cause == CauseBackfill {
		return fmt.Sprintf("%s@%s-%d-%d", t.Name, t.Cause, t.Backfill, t.At.Unix())
	}
	return fmt.Sprintf("%s@%s-%d", t.Name, t.Cause, t.At.UnixMilli())
}

type tickKey struct{}

// TickFrom returns the tick for which a job's function runs. ctx is the context of that function, or comes from
// WithTick. For every other context TickFrom returns false.
func TickFrom(ctx context.Context) (Tick, bool) {
	t, ok := ctx.Value(tickKey{}).(Tick)
	return t, ok
}

// WithTick returns a child of ctx for which TickFrom returns tick. It is for tests that call a job's function
// themselves; at a tick the Scheduler sets the tick.
func WithTick(ctx context.Context, tick Tick) context.Context {
	return context.WithValue(ctx, tickKey{}, tick)
}

func tickOf(name string, t ledger.Tick) Tick {
	return Tick{Name: name, At: t.At, Cause: Cause(t.Cause), Broken: t.Broken, Backfill: t.Backfill}
}
