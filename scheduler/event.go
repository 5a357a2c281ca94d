package scheduler

import (
	"log/slog"
	"time"
)

// Kind is what happened to a tick or to a job: the kind of an Event, and the state of an execution in package admin.
type Kind string

// What happens to an execution. Each comment names the fields of Event that are set in addition to Tick and Node.
// Running and Died have no Event: they are states only.
const (
	Running     Kind = "running"
	Started     Kind = "started"     // Late
	TakenOver   Kind = "taken over"  // Late; in place of Started if an execution of the tick was broken off before
	Done        Kind = "done"        // Took, Attempts
	Enqueued    Kind = "enqueued"    // Took, Attempts; in place of Done for a Task: the task is in the queue, and may fail
	Failed      Kind = "failed"      // Took, Attempts, Err
	Cancelled   Kind = "cancelled"   // Took, Attempts, Err; the next tick has come, with OverlapCancel
	Interrupted Kind = "interrupted" // Took, Attempts, Err; the node stops: another node takes the tick over or counts it as lost
	Died        Kind = "died"        // the node died or was cut off: another node takes the tick over
	Broken      Kind = "broken"      // Took, Attempts, Err; the lock was lost while the function ran
	Overrun     Kind = "overrun"     // Took, Err; the context has ended 5 s ago, with the cause Err, and the function goes on
	Lost        Kind = "lost"        // no node executes the tick again: AtMostOnce, or eleven broken executions
)

// What happens to ticks that are not executed. A node that skips several ticks at a time for one reason reports them as
// one Event: Tick is the newest, and Count is their number.
const (
	Missed     Kind = "missed"
	Overlapped Kind = "overlapped" // also Took, Attempts, Err if the enqueue of a Task got joblock.ErrHeld, which is a state too
	Paused     Kind = "paused"

	// Stuck means that Count ticks in a row were skipped as overlapped, three at least and over at least 10 minutes. Err
	// says what is in their way: an execution that does not end, or the task of an earlier tick. There is one Stuck until
	// an execution ends with another result.
	Stuck Kind = "stuck"
)

// What happens to a job.
const (
	// Backfilled means that a backfill has ended: all its ticks have been executed, or admin.Admin.StopBackfill was
	// called. Count is the number of its executions that are Done or Enqueued. Tick.At is the end of the range. Err is set
	// if a change of the spec has given the range too many ticks: it names the first tick that is not executed.
	Backfilled Kind = "backfilled"
	// Redefined means that the job's spec or options have changed. Err has the change. Tick.At is zero.
	Redefined Kind = "redefined"
	// SpecChanged means that another spec is in force. Tick.At is the time of the change: later ticks are those of the
	// new spec. Err has the two specs, and says if the node that had decided on the former one is no longer up.
	SpecChanged Kind = "spec"
	// Contested means that two conflicting definitions of the job alternate, probably those of two applications. Err has
	// the two definitions. Count is how often an earlier definition has come back. Each job has at most one Contested an
	// hour. Tick.At is zero.
	Contested Kind = "contested"
	// ClockSetBack means that the store's clock was set back. Tick is the job's latest tick. Err has the time of the next tick
	// that nodes will execute. Each node reports ClockSetBack once per job.
	ClockSetBack Kind = "clock"
)

// Event is something that happened to a job. The constants of Kind say which fields are set.
type Event struct {
	Kind     Kind
	Tick     Tick
	Node     string        // the node that executed or skipped the tick
	Late     time.Duration // from Tick.At plus the job's jitter until the start
	Took     time.Duration // all attempts together
	Attempts int
	Count    int
	Err      error
}

// eventLevels has the kinds with a level other than slog.LevelInfo.
var eventLevels = map[Kind]slog.Level{
	Started: slog.LevelDebug, Done: slog.LevelDebug, Enqueued: slog.LevelDebug, Paused: slog.LevelDebug,
	Contested: slog.LevelWarn, Overrun: slog.LevelWarn, Stuck: slog.LevelWarn, ClockSetBack: slog.LevelWarn, Broken: slog.LevelWarn, Lost: slog.LevelWarn,
	Missed: slog.LevelWarn, Failed: slog.LevelError,
}
