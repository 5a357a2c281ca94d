package scheduler

import (
	"errors"
	"fmt"

	"github.com/joblock/toolkit/joblock"
)

// Causes with which the context of a running function ends, besides joblock.ErrLost
// and a timeout; see context.Cause.
var (
	// ErrStopped: Run's context has ended. What the function does not finish is taken
	// over by another node.
	ErrStopped = errors.New("scheduler: stopping")
	// ErrOverlapped: the job's next tick has come, and the job has OverlapCancel.
	ErrOverlapped = errors.New("scheduler: the next tick has come")
)

// invalid makes a joblock.ErrInvalid about a job; the detail names value and bound.
func invalid(op, name, format string, args ...any) error {
	return &joblock.Error{Code: joblock.CodeInvalid, Op: op, Key: name, Detail: fmt.Sprintf(format, args...)}
}
