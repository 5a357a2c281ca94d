package verdict

import (
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
)

// Error is an error with a text of package worker that matches a sentinel of joblock.
type Error struct {
	Text string
	Err  error // a *joblock.Error
}

func (e *Error) Error() string { return "worker: " + e.Text }

func (e *Error) Unwrap() error { return e.Err }

// Invalid returns an error that matches joblock.ErrInvalid.
func Invalid(format string, args ...any) error {
	return &Error{fmt.Sprintf(format, args...), joblock.ErrInvalid}
}

// Retry is the handler's error on an attempt that is not the last. asynq must retry the task after Delay, because the
// locks' reservation was computed from it.
type Retry struct {
	Err   error
	Delay time.Duration
}

func (e *Retry) Error() string { return e.Err.Error() }

func (e *Retry) Unwrap() error { return e.Err }

// Final wraps the error of the author's last attempt or of a rerun, or an error that matches asynq.SkipRetry. Every
// Final matches asynq.SkipRetry, so that asynq archives the task and does not use the spare retry.
type Final struct {
	Err      error
	Spent    bool // the author's last attempt had ended before the attempt that failed
	Reported bool // the user's ErrorHandler has already been called with Err
}

func (e *Final) Error() string {
	if e.Spent {
		return jobline.SpentText + e.Err.Error()
	}
	return e.Err.Error()
}

func (e *Final) Unwrap() []error { return []error{e.Err, asynq.SkipRetry} }

// HeldTooLong is the error of a job that is not retried because of Config.MaxHold. It matches asynq.SkipRetry, and wraps
// the error of the latest attempt.
type HeldTooLong struct {
	Text string
	Err  error
}

func (e *HeldTooLong) Error() string { return "worker: " + e.Text + ": " + e.Err.Error() }

func (e *HeldTooLong) Unwrap() []error { return []error{e.Err, asynq.SkipRetry} }

// Original returns the error that a Retry or a Final wraps, and any other err unchanged.
func Original(err error) error {
	if re, ok := errors.AsType[*Retry](err); ok {
		return re.Err
	}
	if fe, ok := errors.AsType[*Final](err); ok {
		return fe.Err
	}
	return err
}

// NoTask reports whether err, from an Inspector, says that the task or its queue does not exist.
func NoTask(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// IsForeign reports whether err says that this build cannot read the record of a lock.
func IsForeign(err error) bool { return errors.Is(err, core.ErrForeign) }

// IsGone reports whether err says that the lock has ended, or belongs to another owner or another job.
func IsGone(err error) bool {
	return errors.Is(err, joblock.ErrNotFound) || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased)
}
