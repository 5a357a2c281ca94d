package scheduler

import (
	"errors"
	"fmt"

	"github.com/joblock/toolkit/joblock"
)

// Causes with which the context of a running function ends. Func lists the other causes.
var (
	// ErrStopped means that the context of Run has ended. If the function does not return nil, its execution counts as
	// broken off, and another node takes the tick over.
	ErrStopped = errors.New("scheduler: the context of Run has ended")
	// ErrOverlapped means that the job's next tick has come, and that the job has the option OverlapCancel.
	ErrOverlapped = errors.New("scheduler: the next tick has come")
)

// ErrBackfilling means that the job has a backfill that has not ended.
var ErrBackfilling = errors.New("scheduler: a backfill has not ended")

// ownError matches a sentinel, usually one of package joblock, so that callers can treat an ownError like an error of a
// Locker.
type ownError struct {
	text     string
	sentinel error
}

func (e *ownError) Error() string { return "scheduler: " + e.text }
func (e *ownError) Unwrap() error { return e.sentinel }

// invalid returns an error that matches joblock.ErrInvalid. If no job is concerned, job is "".
func invalid(op, job, format string, args ...any) error {
	if job != "" {
		op = fmt.Sprintf("%s %.80q", op, job)
	}
	return &ownError{op + ": " + fmt.Sprintf(format, args...), joblock.ErrInvalid}
}

func notFound(op, job string) error {
	return &ownError{fmt.Sprintf("%s %q: no node has seen a job of this name", op, job), joblock.ErrNotFound}
}
