package scheduler

import (
	"context"
	"log/slog"
	"time"
)

// Kind is what an Event tells.
type Kind string

// The kinds. Those of runs are told by the node that runs; those of skipped ticks by
// the node that writes them off, once for all of a kind that were found at a time.
const (
	EventStarted     Kind = "started"     // with Late
	EventTakenOver   Kind = "taken over"  // in place of started: another run of the tick was broken off
	EventDone        Kind = "done"        // with Took and Attempts
	EventFailed      Kind = "failed"      // with Took, Attempts and Err
	EventInterrupted Kind = "interrupted" // this node stops; with Took and Err
	EventCancelled   Kind = "cancelled"   // the next tick has come; with Took and Err
	EventBroken      Kind = "broken"      // the lock was lost while the function ran; with Took and Err
	EventLost        Kind = "lost"        // a run was broken off and its tick will not be run again: AtMostOnce, or it was the eleventh
	EventMissed      Kind = "missed"      // with Count; Tick is the newest
	EventOverlapped  Kind = "overlapped"  // with Count; Tick is the newest
	EventPaused      Kind = "paused"      // ticks were skipped; with Count; Tick is the newest

	EventRedefined Kind = "redefined" // the job's spec or options are others than before: a deploy; with Err, which says what they were
	EventContested Kind = "contested" // two definitions of the job have taken turns for long: two applications share it; with Count and Err; once an hour
	EventClock     Kind = "clock"     // the store's clock was set back, so that no tick comes for a while; with Err; once on each node; Tick is the latest
)

// Event is something that happened to a job. Which fields are set depends on the kind.
type Event struct {
	Kind     Kind
	Tick     Tick
	Node     string        // whose run it is or was
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

// tell logs events and passes them on.
func (s *Scheduler) tell(events ...Event) {
	for _, e := range events {
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
}
