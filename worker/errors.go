package worker

import (
	"time"

	"github.com/hibiken/asynq"
)

// putBackError tells asynq, through Configure's functions, to try the task again
// after delay without charging it a retry: it never ran.
type putBackError struct {
	err   error
	delay time.Duration
}

func (e *putBackError) Error() string { return "worker: put back without charge: " + e.err.Error() }
func (e *putBackError) Unwrap() error { return e.err }

// retryError is a handler's error with retries left. It carries the delay that
// the lock's reservation was computed from, so that asynq uses the same one.
type retryError struct {
	err   error
	delay time.Duration
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

// finalError is a handler's error on the last attempt. It matches
// asynq.SkipRetry, because asynq itself believes that one retry is left.
type finalError struct {
	err   error
	spent bool // beyond the true retries
	told  bool // the ErrorHandler has heard of it before
}

// spentPrefix marks, in what asynq keeps as a task's last error, that it was
// archived on a delivery beyond its true retries. asynq leaves the count of
// retries as it is when somebody has an archived task run again, so that without
// the mark such a task could not be told from one that still has to be archived.
const spentPrefix = "worker: no retries left: "

func (e *finalError) Error() string {
	if e.spent {
		return spentPrefix + e.err.Error()
	}
	return e.err.Error()
}

func (e *finalError) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }
