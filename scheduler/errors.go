package scheduler

import (
	"errors"
	"fmt"

	"github.com/joblock/toolkit/joblock"
)

// Causes with which the context of a running function ends; see Func for all of them.
var (
	// ErrStopped: the context of Run has ended. Another node takes over what the function
	// does not finish.
	ErrStopped = errors.New("scheduler: stopping")
	// ErrOverlapped: the job's next tick has come, and the job has OverlapCancel.
	ErrOverlapped = errors.New("scheduler: the next tick has come")
)

// refusal is the error of a call that was refused: joblock.ErrInvalid or ErrNotFound.
type refusal struct {
	op, job string // job is "" if the call is not about a job
	detail  error
	kind    error // the sentinel
}

func (r *refusal) Error() string {
	if r.job == "" {
		return fmt.Sprintf("scheduler: %s: %s", r.op, r.detail)
	}
	return fmt.Sprintf("scheduler: %s %.80q: %s", r.op, r.job, r.detail)
}

func (r *refusal) Unwrap() []error { return []error{r.kind, r.detail} }

// invalid returns a joblock.ErrInvalid. The detail names the value and its bound.
func invalid(op, job, format string, args ...any) error {
	return &refusal{op, job, fmt.Errorf(format, args...), joblock.ErrInvalid}
}

// notFound returns a joblock.ErrNotFound.
func notFound(op, job string) error {
	return &refusal{op, job, errors.New("no node has seen a job of that name"), joblock.ErrNotFound}
}
