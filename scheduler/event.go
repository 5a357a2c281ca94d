package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// Kind is what an Event is about.
type Kind string

// The kinds, with the fields of Event that each has besides Tick and Node.
//
// The node that executes reports an execution. A node that skips ticks reports all that it
// skips at a time for one reason as one Event: Tick is the newest, Count their number.
const (
	EventStarted     Kind = "started"     // Late
	EventTakenOver   Kind = "taken over"  // Late; in place of started, after an execution of the tick was broken off
	EventDone        Kind = "done"        // Took, Attempts
	EventFailed      Kind = "failed"      // Took, Attempts, Err
	EventInterrupted Kind = "interrupted" // Took, Attempts, Err; this node stops
	EventCancelled   Kind = "cancelled"   // Took, Attempts, Err; the next tick has come, with OverlapCancel
	EventBroken      Kind = "broken"      // Took, Attempts, Err; the lock was lost while the function ran
	EventLost        Kind = "lost"        // a broken execution that is not repeated: AtMostOnce, or it was the eleventh
	EventMissed      Kind = "missed"      // Count
	EventOverlapped  Kind = "overlapped"  // Count; also Took, Attempts, Err if the enqueue of a Task met joblock.ErrHeld
	EventPaused      Kind = "paused"      // Count

	// EventRedefined: the job's spec or options have changed. Err says how. No Tick.At.
	EventRedefined Kind = "redefined"
	// EventContested: two definitions of the job keep taking turns, probably of two
	// applications. Err says which, Count how often. At most once an hour. No Tick.At.
	EventContested Kind = "contested"
	// EventClock: the store's clock was set back. Tick is the job's latest; Err says from
	// when on ticks are executed. Each node reports it once.
	EventClock Kind = "clock"
)

// Event is something that happened to a job. Its kind says which fields are set.
type Event struct {
	Kind     Kind
	Tick     Tick
	Node     string        // that executed the tick or skipped it
	Late     time.Duration // after Tick.At and the job's jitter
	Took     time.Duration // by all attempts together
	Attempts int
	Count    int
	Err      error
}

var eventLevels = map[Kind]slog.Level{
	EventStarted: slog.LevelDebug, EventDone: slog.LevelDebug, EventPaused: slog.LevelDebug,
	EventTakenOver: slog.LevelInfo, EventInterrupted: slog.LevelInfo, EventCancelled: slog.LevelInfo,
	EventOverlapped: slog.LevelInfo,
	EventRedefined:  slog.LevelInfo, EventContested: slog.LevelWarn, EventClock: slog.LevelWarn,
	EventFailed: slog.LevelError, EventBroken: slog.LevelWarn, EventLost: slog.LevelWarn, EventMissed: slog.LevelWarn,
}

// report logs an event and passes it to Config.Observe.
func (s *Scheduler) report(e Event) {
	attrs := []any{"scope", s.cfg.Scope, "job", e.Tick.Name, "node", e.Node}
	if !e.Tick.At.IsZero() {
		attrs = append(attrs, "tick", e.Tick.At)
	}
	if e.Late > 0 {
		attrs = append(attrs, "late", e.Late)
	}
	if e.Took > 0 {
		attrs = append(attrs, "took", e.Took)
	}
	if e.Count > 0 {
		attrs = append(attrs, "count", e.Count)
	}
	if e.Err != nil {
		attrs = append(attrs, "err", e.Err)
	}
	s.cfg.Logger.Log(context.Background(), eventLevels[e.Kind], "scheduler: "+string(e.Kind), attrs...)
	s.cfg.Observe(e)
}

// reportNews reports what has changed in a ledger.
func (s *Scheduler) reportNews(j *job, news []ledger.News) {
	for _, n := range news {
		s.report(Event{Kind: Kind(n.Kind), Tick: tickOf(j.name, n.Tick), Node: n.Node, Count: n.Count, Err: n.Err})
	}
}
