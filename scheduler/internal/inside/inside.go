// Package inside is the way from package asynqtick into package scheduler: what only asynqtick needs is no method of
// scheduler.Scheduler. Package scheduler sets the variables in its init.
package inside

import (
	"context"
	"log/slog"
)

// The parameter s is a *scheduler.Scheduler; a value of any other type panics.
var (
	// Represented returns which jobs of s the node speaks for, sorted: of the nodes that are up and have a job, the first
	// by name. So each job has one such node, which can show the job to another system. While nodes come and go, a job may
	// have two such nodes or none for some seconds. Errors are those of Scheduler.Nodes.
	Represented func(ctx context.Context, s any) ([]string, error)

	// Logger returns Config.Logger, or its default.
	Logger func(s any) *slog.Logger

	// TaskEnds returns a scheduler.Option for a Task. The function end says whether the task with an ID has ended; the task of
	// each tick has the tick's ID. With that option PauseAfter counts how tasks end, and not that they are enqueued.
	TaskEnds func(end func(ctx context.Context, id string) (TaskEnd, error)) any
)

// TaskEnd is how a task has ended. The zero TaskEnd means that it has not.
type TaskEnd struct {
	Ended bool
	Err   error // nil: it has ended well
}
