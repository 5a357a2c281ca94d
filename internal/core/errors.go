package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// The types that the engine shares with its facade, joblock.
type (
	Error = driver.Error
	State = driver.State
	Ended = driver.Ended
)

// The sentinels of package joblock.
var (
	ErrHeld            error = &Error{Code: driver.CodeHeld}
	ErrTimeout         error = &Error{Code: driver.CodeTimeout}
	ErrNotFound        error = &Error{Code: driver.CodeNotFound}
	ErrNotOwner        error = &Error{Code: driver.CodeNotOwner}
	ErrAlreadyReleased error = &Error{Code: driver.CodeAlreadyReleased}
	ErrBusy            error = &Error{Code: driver.CodeBusy}
	ErrLost            error = &Error{Code: driver.CodeLost}
	ErrUnavailable     error = &Error{Code: driver.CodeUnavailable}
	ErrInvalid         error = &Error{Code: driver.CodeInvalid}
	ErrClosed          error = &Error{Code: driver.CodeClosed}
)

// ErrForeign is the cause of ErrInvalid when a call found a value that is not a lock record: a value of another
// program, or a record that only a newer build can read.
var ErrForeign = errors.New("another program or a newer build of the toolkit has written this value")

// ErrNotRenewed is the cause of an ErrLost if the holder itself had ended the renewal. Package worker distinguishes
// this loss from one that came from outside: otherwise a job that takes longer than its lock may be held would be
// snoozed forever.
var ErrNotRenewed = errors.New("the holder had ended its renewal (NoRenew or MaxRenew)")

// ErrMaxWait is the cause with which MaxWait ends the context of a wait. An acquisition in that context returns
// ErrTimeout, which describes the holder.
var ErrMaxWait = errors.New("MaxWait has passed")

// CarriedAlready is the detail of the ErrInvalid for a call that would take a lock which its context carries.
const CarriedAlready = "this context has the lock already, so the call would wait for itself: use the lock that joblock.FromContext " +
	"returns, or a context that does not carry the lock"

// Retryable reports whether the same call may succeed later: true for ErrHeld, ErrTimeout, ErrBusy and ErrUnavailable,
// false for all other errors, those of contexts included.
func Retryable(err error) bool {
	return slices.Contains([]string{driver.CodeHeld, driver.CodeTimeout, driver.CodeBusy, driver.CodeUnavailable}, CodeOf(err))
}

// CodeOf returns the Code of the first *Error in err's chain, or "" if there is none.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Invalid returns an ErrInvalid. The detail names the value and the bound.
func Invalid(op, key, format string, args ...any) *Error {
	return &Error{Code: driver.CodeInvalid, Op: op, Key: key, Detail: fmt.Sprintf(format, args...)}
}

// shorten returns s, cut at a rune boundary and with an ellipsis if s has more than n bytes.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// unanswered returns ErrUnavailable for the error err of the store's transport. cause, if not nil, is why the call's
// context has ended, and is joined to err. If err is an *Error, unanswered returns it unchanged.
func (l *Locker) unanswered(op, key string, cause, err error) error {
	var own *Error
	if errors.As(err, &own) {
		return err
	}
	switch {
	case cause != nil && !errors.Is(err, cause):
		err = errors.Join(cause, err)
	case cause == nil && errors.Is(err, context.DeadlineExceeded):
		err = &callTimeout{l.cfg.CallTimeout, err}
	}
	return &Error{Code: driver.CodeUnavailable, Op: op, Key: key, Err: err}
}

// callTimeout is the error of a call that Config.CallTimeout has ended. It does not match context.DeadlineExceeded: the
// caller would look for a deadline in its own context, which may have none.
type callTimeout struct {
	after time.Duration
	err   error
}

func (e *callTimeout) Error() string {
	return fmt.Sprintf("no answer within Config.CallTimeout, %s: %v", e.after, e.err)
}

// Timeout implements net.Error.
func (e *callTimeout) Timeout() bool { return true }

// ended returns the error of a call whose context has ended. It is not an *Error, because such a call says nothing
// about the lock.
func ended(op, key string, cause error) error {
	return fmt.Errorf("joblock: %s %q: %w", op, shorten(key, 80), cause)
}

// Refusal returns the error for a reply of the store, or nil for OutcomeOK.
func Refusal(op, key string, r driver.Reply) error {
	if r.Outcome == driver.OutcomeOK {
		return nil
	}
	e := &Error{Op: op, Key: key, Holder: r.Holder, Job: r.Job, Remaining: r.Remaining, State: r.State}
	switch r.Outcome {
	case driver.OutcomeHeld:
		e.Code = driver.CodeHeld
	case driver.OutcomeFull:
		e.Code, e.Detail = driver.CodeHeld, fmt.Sprintf("the line of the key is full, with %d places", r.Ahead)
	case driver.OutcomeBusy:
		e.Code = driver.CodeBusy
	case driver.OutcomeNotFound:
		e.Code = driver.CodeNotFound
	case driver.OutcomeNotOwner:
		e.Code = driver.CodeNotOwner
	case driver.OutcomeReleased:
		e.Code, e.Ended, e.Reason = driver.CodeAlreadyReleased, r.Ended, r.Reason
	case driver.OutcomeLapsed:
		e.Code, e.Detail = driver.CodeLost, "its time ran out before it was renewed"
	case driver.OutcomeWrongJob:
		e.Code, e.Detail = driver.CodeNotOwner, "the lock is bound to another job"
		if r.Job == "" {
			e.Detail = "the lock is bound to no job"
		}
	case driver.OutcomeForeign:
		e.Code, e.Detail = driver.CodeInvalid, cmp.Or(r.Detail, "the value at this key is not a lock; it was not changed")
		e.Err = ErrForeign
	default:
		e.Code, e.Detail = driver.CodeUnavailable, "the store did not answer"
	}
	return e
}
