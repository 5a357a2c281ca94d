package event

import "context"

// Tracer creates spans for calls that deal with locks, so that a request, its wait and its job are one trace. The field
// Tracer of joblock.Config sets the Tracer of a Locker, and of packages handoff, worker and limit with that Locker.
// Package otelobserver has a Tracer for OpenTelemetry.
//
// Several goroutines may use a Tracer at a time. A Tracer and its Spans must not block. The Locker recovers their
// panics and logs the first one, as it does for an Observer.
type Tracer interface {
	// Start begins a span for c as a child of the span in ctx, and returns a context with the new span. For a Call with
	// Headers and a ctx without a span, the parent is the span that the headers name. If there is no parent, Start
	// returns ctx and nil: the toolkit begins no traces of its own.
	Start(ctx context.Context, c Call) (context.Context, Span)

	// Headers returns the headers with which a task names the span in ctx, or nil if ctx has no span.
	Headers(ctx context.Context) map[string]string

	// Merge returns the headers for a task that is made of several tasks, whose headers are given. It returns nil if
	// none of them names a span.
	Merge(headers []map[string]string) map[string]string
}

// Call is what a span is about. Fields that do not apply are zero.
type Call struct {
	Op      Op
	Keys    []string          // of the locks
	Job     string            // "queue/taskID"
	Task    string            // the task's type
	Attempt int               // of the job, from 1
	Headers map[string]string // of the task: only for OpRun
}

// Op says what a span covers.
type Op string

// The spans. All are children of the span in the caller's context, except OpRun.
const (
	OpAcquire Op = "acquire" // a call that takes a lock, with its wait
	OpHold    Op = "hold"    // a holding: from its Acquired, Resumed or Reclaimed until its Parked, Released or Lost
	OpPark    Op = "park"    // a call that hands locks over
	OpResume  Op = "resume"  // a call that resumes locks
	OpReclaim Op = "reclaim" // a call that undoes a Park
	OpRelease Op = "release" // a call that ends locks
	OpEnqueue Op = "enqueue" // handoff: a call that enqueues tasks; the tasks' headers name this span
	OpRun     Op = "run"     // worker: one attempt of a job, with its handler; a child of OpEnqueue
)

// Span is a span that has begun.
type Span interface {
	// AddEvent adds an Event to the span. Only the fields of the Event's Kind are set; see the package comment.
	AddEvent(Event)

	// Renewed adds a renewal that was answered in time. There is no Event for such a renewal.
	Renewed()

	// End ends the span. The outcome is how an OpHold or an OpRun has ended, or "":
	//
	//	OpHold  the Kind of its last event: "parked", "released", "lost"
	//	OpRun   "done", "failed", "panicked", "revoked" (asynq.RevokeTask), "superseded" (handoff.CancelInProgress), or
	//	        "snoozed": the task runs again, and no retry is charged
	//
	// err is the error of the call, or nil.
	End(outcome string, err error)
}
