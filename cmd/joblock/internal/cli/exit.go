package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The exit codes. The comment of the command has a table of their meanings.
const (
	exitOK          = 0
	exitNo          = 1
	exitUsage       = 64
	exitUnavailable = 69
	exitFault       = 70
	exitBusy        = 75
	exitDenied      = 77
	exitLost        = 79
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the number of the signal
)

// exitError is an error with its exit code. If err is nil, nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage returns an error with the exit code exitUsage.
func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// codeOf returns the exit code for err.
func codeOf(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case codeOfAnswer(err) != 0:
		return codeOfAnswer(err)
	case errors.Is(err, ops.ErrNotRecorded) && ops.Denied(err):
		return exitDenied
	case errors.Is(err, ops.ErrNotRecorded):
		return exitUnavailable
	case errors.Is(err, joblock.ErrHeld), errors.Is(err, joblock.ErrTimeout), errors.Is(err, joblock.ErrBusy):
		return exitBusy
	case errors.Is(err, joblock.ErrLost):
		return exitLost
	case errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrNotOwner), errors.Is(err, joblock.ErrAlreadyReleased):
		return exitNo
	case errors.Is(err, joblock.ErrUnavailable) && ops.Denied(err):
		return exitDenied
	case errors.Is(err, joblock.ErrUnavailable):
		return exitUnavailable
	case errors.Is(err, joblock.ErrInvalid):
		return exitUsage
	}
	return exitFault
}

// textOf returns the text of err without package joblock's prefix "joblock: ", which every line of this program has
// already.
func textOf(err error) string { return strings.TrimPrefix(err.Error(), "joblock: ") }

// reads reports whether a command only reads, so that the outcome of an unanswered call does not matter.
func reads(cmd *cobra.Command) bool {
	switch _, name, _ := strings.Cut(cmd.CommandPath(), " "); name {
	case "ls", "get", "explain", "waiters", "permits", "watch", "top", "events", "history", "audit", "outbox", "doctor", "jobs ls", "jobs get", "jobs sequences",
		"cron ls", "cron get", "cron next", "cron history", "cron nodes", "cron scopes":
		return true
	}
	return false
}

// writers are the names of calls of package joblock that change something: see joblock.Error.Op.
var writers = []string{"acquire", "renew", "park", "resume", "release", "force release", "free if idle"}

// textOf is like the function textOf, but if Redis has not answered, the text is one line with the address.
func (s *server) textOf(cmd *cobra.Command, err error) string {
	text, op, ok := s.unanswered(err)
	switch {
	case errors.Is(err, ops.ErrNotRecorded) && isTimeout(err):
		return fmt.Sprintf("%s within %s (--timeout); nothing was changed, because it could not be recorded", s.noAnswer(), s.timeout)
	case !ok && codeOf(err) == exitUnavailable:
		return strings.ReplaceAll(textOf(err), "\n", "; ")
	case !ok:
		return textOf(err)
	case !reads(cmd) && !errors.Is(err, driver.ErrRefused) && slices.Contains(writers, op):
		return text + "; whether the call took effect is unknown"
	}
	return text
}

// noAnswer returns the beginning of a line that says that Redis has not answered.
func (s *server) noAnswer() string {
	if a, err := s.api(os.Getenv); a != nil && err == nil {
		return "no answer from the lock server at " + a.name
	}
	if a, err := s.address(os.Getenv); err == nil {
		return "no answer from Redis at " + a.name()
	}
	return "no answer from Redis"
}

// isTimeout reports whether err is a timeout, of a context or of the network.
func isTimeout(err error) bool {
	var late interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout()
}

// unanswered returns a line for an error that means that Redis did not answer a call, or refused it and did nothing. op
// is the name of the call; it is "" for a read of a record or of the journal. ok is false for any other error.
func (s *server) unanswered(err error) (text, op string, ok bool) {
	if ops.Denied(err) || codeOf(err) != exitUnavailable {
		return "", "", false
	}
	text = s.noAnswer()
	refused := errors.Is(err, driver.ErrRefused)
	if refused {
		text = strings.Replace(text, "no answer from ", "refused by ", 1)
	}
	var read interface{ Away() error }
	if errors.As(err, &read) && read.Away() != nil {
		if isTimeout(read.Away()) {
			return fmt.Sprintf("%s within %s (--timeout)", text, s.timeout), "", true
		}
		return text + ": " + strings.ReplaceAll(read.Away().Error(), "\n", "; "), "", true
	}
	var call *joblock.Error
	if !errors.As(err, &call) {
		return "", "", false
	}
	var own *exitError
	switch late := errors.Is(err, errSilent); {
	case !late && errors.As(call.Err, &own): // the cause with which the command cancelled its calls
		return own.Error(), "", true
	case late, call.Err == nil, isTimeout(call.Err) && !refused:
		return fmt.Sprintf("%s within %s (--timeout)", text, s.timeout), call.Op, true
	case call.Detail != "":
		text += ": " + call.Detail
	}
	return text + ": " + strings.ReplaceAll(call.Err.Error(), "\n", "; "), call.Op, true
}
