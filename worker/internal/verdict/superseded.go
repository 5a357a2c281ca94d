package verdict

import (
	"errors"
	"time"

	"github.com/hibiken/asynq"
)

// ErrSuperseded is worker.ErrSuperseded.
var ErrSuperseded = errors.New("worker: a newer job of the key has superseded this one")

// Superseded is the error of a job that a newer job of its key supersedes. It matches ErrSuperseded, and
// asynq.RevokeTask, so that asynq neither retries nor archives the task.
type Superseded struct {
	By string // the newer job
}

func (e *Superseded) Error() string { return ErrSuperseded.Error() + ": " + e.By }

func (e *Superseded) Unwrap() []error { return []error{ErrSuperseded, asynq.RevokeTask} }

// IsSuperseded reports whether err is a *Superseded. An ErrSuperseded that a handler returns by itself is a failure
// like any other.
func IsSuperseded(err error) bool {
	_, ok := errors.AsType[*Superseded](err)
	return ok
}

// Supersedes reports whether the task info, which waits for the key of a running job, ends that job. It does as soon as
// it could run itself: not before its ProcessAt, and not while it waits in an asynq group.
func Supersedes(info *asynq.TaskInfo) bool {
	switch info.State {
	case asynq.TaskStatePending, asynq.TaskStateActive, asynq.TaskStateRetry:
		return true
	case asynq.TaskStateScheduled:
		return !info.NextProcessAt.After(time.Now())
	}
	return false
}
