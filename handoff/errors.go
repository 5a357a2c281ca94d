package handoff

import (
	"errors"
	"fmt"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// ownError is an error found by this package, as its text says. It matches what its
// *joblock.Error matches.
type ownError struct{ err *joblock.Error }

func own(err *joblock.Error) error { return &ownError{err} }

func (e *ownError) Error() string {
	return "handoff: " + strings.TrimPrefix(e.err.Error(), "joblock: ")
}

func (e *ownError) Unwrap() error { return e.err }

func invalid(op, key, format string, args ...any) error {
	return own(&joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: op, Key: key, Detail: fmt.Sprintf(format, args...)})
}

// lockGone reports whether err says that there is no such lock any more.
func lockGone(err error) bool {
	return errors.Is(err, joblock.ErrNotFound) || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased)
}
