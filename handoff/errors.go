package handoff

import (
	"fmt"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// The reasons of this package's releases, as Status shows them.
const (
	reasonRequestOver = "request over"
	reasonNotEnqueued = "its job was not enqueued"
	reasonOver        = "its job was over"
	reasonLeftBehind  = "its job was over, and no keeper worked"
	reasonReplaced    = "its job was replaced"
	reasonSkipped     = "its job was skipped"
	reasonWithdrawn   = "its job was withdrawn"
)

// ownError is an error that this package has found. Its text begins with "handoff: ". It matches what err matches.
type ownError struct{ err *joblock.Error }

func own(err *joblock.Error) error { return &ownError{err} }

func (e *ownError) Error() string {
	return "handoff: " + strings.TrimPrefix(e.err.Error(), "joblock: ")
}

func (e *ownError) Unwrap() error { return e.err }

func invalid(op, key, format string, args ...any) error {
	return own(&joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: op, Key: key, Detail: fmt.Sprintf(format, args...)})
}

func badTask(format string, args ...any) error { return invalid("enqueue", "", format, args...) }
