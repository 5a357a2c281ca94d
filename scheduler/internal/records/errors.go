package records

import (
	"fmt"
	"unicode/utf8"

	"github.com/joblock/toolkit/joblock"
)

const maxNameBytes = 128

// Error matches a sentinel, usually one of package joblock, so that callers can treat it like an error of a Locker.
type Error struct {
	Text     string // without the name of the package
	Sentinel error
}

func (e *Error) Error() string { return "scheduler: " + e.Text }
func (e *Error) Unwrap() error { return e.Sentinel }

// Invalid returns an error that matches joblock.ErrInvalid. If the error is not about a job, job is "".
func Invalid(op, job, format string, args ...any) error {
	if job != "" {
		op = fmt.Sprintf("%s %.80q", op, job)
	}
	return &Error{op + ": " + fmt.Sprintf(format, args...), joblock.ErrInvalid}
}

// NotFound returns the joblock.ErrNotFound about a job that the scope does not have.
func NotFound(op, job string) error {
	return &Error{fmt.Sprintf("%s %q: no node has seen a job of this name", op, job), joblock.ErrNotFound}
}

// Busy returns the joblock.ErrHeld about a running job.
func Busy(op, job string) error {
	return &Error{fmt.Sprintf("%s %q: the job is being executed", op, job), joblock.ErrHeld}
}

// CheckName returns an ErrInvalid for a text that cannot be the name of a job.
func CheckName(op, name string) error {
	switch {
	case name == "":
		return Invalid(op, "", "the name of the job is empty")
	case len(name) > maxNameBytes:
		return Invalid(op, name, "the name of the job has %d bytes, at most %d are allowed", len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return Invalid(op, "", "the name of the job is not valid UTF-8")
	}
	return nil
}
