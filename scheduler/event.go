package scheduler

import (
	"log/slog"
	"time"
)

// Kind is the kind of an Event.
type Kind string

// The kinds. Each comment names the fields of Event that are set besides Tick and Node.
//
// The node that executes a tick reports the execution. A node that skips several ticks at a time for one reason reports
// them as one Event: Tick is the newest of the ticks, and Count is their number.
const (
	EventStarted     Kind = "started"     // Late
	EventTakenOver   Kind = "taken over"  // Late; replaces EventStarted if an execution of the tick was broken off before
	EventDone        Kind = "done"        // Took, Attempts
	EventEnqueued    Kind = "enqueued"    // Took, Attempts; instead of EventDone for a Task: how its task ends is not known
	EventFailed      Kind = "failed"      // Took, Attempts, Err
	EventInterrupted Kind = "interrupted" // Took, Attempts, Err; this node stops
	EventCancelled   Kind = "cancelled"   // Took, Attempts, Err; the next tick has come, with OverlapCancel
	EventBroken      Kind = "broken"      // Took, Attempts, Err; the lock was lost while the function ran
	EventOverrun     Kind = "overrun"     // Took, Err; the context has ended 5 s ago, with the cause Err, and the function goes on
	EventLost        Kind = "lost"        // no node executes the tick again: AtMostOnce, or eleven broken executions
	EventMissed      Kind = "missed"      // Count
	EventOverlapped  Kind = "overlapped"  // Count; also Took, Attempts, Err if the enqueue of a Task got joblock.ErrHeld
	EventPaused      Kind = "paused"      // Count

	// EventStuck means that Count ticks in a row were skipped as overlapped, three at least and over at least 10 minutes. Err
	// says what is in their way: an execution that does not end, or the task of an earlier tick. There is one EventStuck until
	// an execution ends with another result.
	EventStuck Kind = "stuck"

	// EventBackfilled means that a backfill has ended: all its ticks have been executed, or admin.Admin.StopBackfill was called. Count
	// is the number of its executions with admin.StateDone or admin.StateEnqueued. Tick.At is the end of the range. Err is set if a change of the spec has
	// given the range too many ticks: it names the first tick that is not executed.
	EventBackfilled Kind = "backfilled"
	// EventRedefined means that the job's spec or options have changed. Err has the change. Tick.At is zero.
	EventRedefined Kind = "redefined"
	// EventSpec means that another spec is in force. Tick.At is the time of the change: later ticks are those of the new
	// spec. Err has the two specs, and says so if the node is not up any more that had decided for the former one.
	EventSpec Kind = "spec"
	// EventContested means that two definitions of the job take turns, probably those of two applications. Err has the
	// two definitions. Count is how often an earlier definition has come back. Each job has at most one EventContested
	// an hour. Tick.At is zero.
	EventContested Kind = "contested"
	// EventClock means that the store's clock was set back. Tick is the job's latest tick. Err has the time of the next
	// tick that nodes will execute. Each node reports EventClock once per job.
	EventClock Kind = "clock"
)

// Event is something that happened to a job. The constants of type Kind say which fields are set.
type Event struct {
	Kind     Kind
	Tick     Tick
	Node     string        // the node that executed or skipped the tick
	Late     time.Duration // from Tick.At plus the job's jitter until the begin
	Took     time.Duration // all attempts together
	Attempts int
	Count    int
	Err      error
}

// eventLevels has the kinds with another level than slog.LevelInfo.
var eventLevels = map[Kind]slog.Level{
	EventStarted: slog.LevelDebug, EventDone: slog.LevelDebug, EventEnqueued: slog.LevelDebug, EventPaused: slog.LevelDebug,
	EventContested: slog.LevelWarn, EventOverrun: slog.LevelWarn, EventStuck: slog.LevelWarn, EventClock: slog.LevelWarn, EventBroken: slog.LevelWarn, EventLost: slog.LevelWarn,
	EventMissed: slog.LevelWarn, EventFailed: slog.LevelError,
}
