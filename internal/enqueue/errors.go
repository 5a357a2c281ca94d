package enqueue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

const opEnqueue = "enqueue"

// ReasonRequestOver is why a Guard releases the locks of a request that has been served.
const ReasonRequestOver = "request over"

// The reasons of this package's releases, as Status shows them.
const (
	reasonNotEnqueued = "its job was not enqueued"
	reasonOver        = "its job was over"
	reasonLeftBehind  = "its job was over, and no keeper worked"
	reasonReplaced    = "its job was replaced"
	reasonWithdrawn   = "its job was withdrawn"
)

// Errors that package handoff exports.
var (
	ErrNotSent  = errors.New("not sent")
	ErrLineFull = errors.New("the line is full")
)

// ErrRepeated means that another copy of a Call has enqueued the task.
var ErrRepeated = errors.New("another copy of the call has enqueued the task")

// ownError is an error that this package has found. Its text begins with "handoff: ". It matches what err matches.
type ownError struct{ err *joblock.Error }

func own(err *joblock.Error) error { return &ownError{err} }

func (e *ownError) Error() string {
	return "handoff: " + strings.TrimPrefix(e.err.Error(), "joblock: ")
}

func (e *ownError) Unwrap() error { return e.err }

// Invalid returns a joblock.ErrInvalid of package handoff. The detail, made of format and args, names the value and the
// bound.
func Invalid(op, key, format string, args ...any) error {
	return own(&joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: op, Key: key, Detail: fmt.Sprintf(format, args...)})
}

func badTask(format string, args ...any) error { return Invalid(opEnqueue, "", format, args...) }

// heldWith returns a copy of held, as an error of package handoff, with a detail: why the job that has the key
// keeps it.
func heldWith(held *joblock.Error, detail string) error {
	e := *held
	e.Detail = detail
	return own(&e)
}

// lockGone reports whether err says that the lock no longer exists, or that another owner has it.
func lockGone(err error) bool {
	return errors.Is(err, joblock.ErrNotFound) || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased)
}

// unlessGone returns err, or nil if err says that the lock is gone.
func unlessGone(err error) error {
	if lockGone(err) {
		return nil
	}
	return err
}

// ifUnavailable returns err if it matches joblock.ErrUnavailable, and otherwise nil.
func ifUnavailable(err error) error {
	if errors.Is(err, joblock.ErrUnavailable) {
		return err
	}
	return nil
}
