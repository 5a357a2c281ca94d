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
// Executions are reported by the node that executes. Ticks that are not executed are
// reported by the node that writes them off, as one Event for all ticks of a kind that it
// finds at a time. Tick is then the newest of them and Count their number.
const (
	EventStarted     Kind = "started"     // Late
	EventTakenOver   Kind = "taken over"  // Late; instead of started, if an earlier execution of the tick was broken off
	EventDone        Kind = "done"        // Took, Attempts
	EventFailed      Kind = "failed"      // Took, Attempts, Err
	EventInterrupted Kind = "interrupted" // Took, Attempts, Err; this node stops
	EventCancelled   Kind = "cancelled"   // Took, Attempts, Err; the next tick has come, with OverlapCancel
	EventBroken      Kind = "broken"      // Took, Attempts, Err; the lock was lost while the function ran
	EventLost        Kind = "lost"        // an execution was broken off and its tick is not executed again: AtMostOnce, or it was the eleventh
	EventMissed      Kind = "missed"      // Count
	EventOverlapped  Kind = "overlapped"  // Count; of a Task whose enqueue met joblock.ErrHeld also Took, Attempts, Err
	EventPaused      Kind = "paused"      // Count

	// EventRedefined: the job's spec or options have changed, as by a deploy. Err says what
	// they were. There is no Tick.At.
	EventRedefined Kind = "redefined"
	// EventContested: two definitions of the job have taken turns for long, so probably two
	// applications share it. With Count, how often, and Err; at most once an hour. There is
	// no Tick.At.
	EventContested Kind = "contested"
	// EventClock: the store's clock was set back, so no tick comes for a while. With Err;
	// Tick is the latest. Each node reports it once.
	EventClock Kind = "clock"
)

// Event is something that happened to a job. Its kind says which fields are set.
type Event struct {
	Kind     Kind
	Tick     Tick
	Node     string        // that executes, or that wrote the ticks off
	Late     time.Duration // after the tick and the job's jitter
	Took     time.Duration // all attempts
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
