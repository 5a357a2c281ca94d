package worker

import (
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// ownError is an error with a text of this package that matches a sentinel of joblock.
type ownError struct {
	text string
	err  error // a *joblock.Error
}

func (e *ownError) Error() string { return "worker: " + e.text }

func (e *ownError) Unwrap() error { return e.err }

func invalid(format string, args ...any) error {
	return &ownError{fmt.Sprintf(format, args...), joblock.ErrInvalid}
}

func workerClosed() error { return &ownError{"the Worker was closed", joblock.ErrClosed} }

// The function as calls errors.As and returns the target.
func as[E error](err error) (target E, ok bool) {
	ok = errors.As(err, &target)
	return target, ok
}

// isGone reports whether err says that the lock has ended, or belongs to another owner or another job.
func isGone(err error) bool {
	return errors.Is(err, joblock.ErrNotFound) || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased)
}

// noTask reports whether err, from an asynq.Inspector, says that the task or the task's queue does not exist.
func noTask(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// The function original returns the error that a retryError or finalError wraps. Any other err is returned unchanged.
func original(err error) error {
	if re, ok := as[*retryError](err); ok {
		return re.error
	}
	if fe, ok := as[*finalError](err); ok {
		return fe.err
	}
	return err
}
