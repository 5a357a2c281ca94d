package worker

import (
	"errors"
	"fmt"

	"github.com/joblock/toolkit/joblock"
)

// ownError is an error found by this package, as its text says. It matches what its
// *joblock.Error matches.
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

// isGone reports whether err says that there is no such lock any more.
func isGone(err error) bool {
	return errors.Is(err, joblock.ErrNotFound) || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased)
}

// original undoes the wrapping of errors by the middleware.
func original(err error) error {
	var re *retryError
	if errors.As(err, &re) {
		return re.err
	}
	var fe *finalError
	if errors.As(err, &fe) {
		return fe.err
	}
	return err
}
