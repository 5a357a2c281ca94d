package joblock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
)

// The first five codes are those of the atomic-lock extension that this API follows; this package has added the rest.
const (
	codeHeld            = "LOCK_ACQUISITION_FAILED"
	codeTimeout         = "LOCK_TIMEOUT"
	codeNotFound        = "LOCK_NOT_FOUND"
	codeNotOwner        = "LOCK_OWNERSHIP_MISMATCH"
	codeAlreadyReleased = "LOCK_ALREADY_RELEASED"
	codeBusy            = "LOCK_BUSY"
	codeLost            = "LOCK_LOST"
	codeUnavailable     = "LOCK_UNAVAILABLE"
	codeInvalid         = "LOCK_INVALID"
	codeClosed          = "LOCK_CLOSED"
)

// Sentinels for errors.Is, each with its code. Every *Error matches the sentinel of its code and no other.
var (
	// ErrHeld, LOCK_ACQUISITION_FAILED: another owner holds the key, or the key is reserved for another owner's job.
	ErrHeld error = &Error{Code: codeHeld}
	// ErrTimeout, LOCK_TIMEOUT: another still held the lock when the time to wait was over.
	ErrTimeout error = &Error{Code: codeTimeout}
	// ErrNotFound, LOCK_NOT_FOUND: there is no such lock, or the store no longer remembers the lock.
	ErrNotFound error = &Error{Code: codeNotFound}
	// ErrNotOwner, LOCK_OWNERSHIP_MISMATCH: the lock belongs to another owner, to another job, or to a later holder of
	// the same token.
	ErrNotOwner error = &Error{Code: codeNotOwner}
	// ErrAlreadyReleased, LOCK_ALREADY_RELEASED: this owner's lock was released before, by this owner or by another
	// caller.
	ErrAlreadyReleased error = &Error{Code: codeAlreadyReleased}
	// ErrBusy, LOCK_BUSY: the token is right, but another holder of the token holds the lock at present.
	ErrBusy error = &Error{Code: codeBusy}
	// ErrLost, LOCK_LOST: the caller held the lock, and has lost the lock or can no longer rely on the lock. A context from
	// Lock.Context is cancelled with this error as its cause.
	ErrLost error = &Error{Code: codeLost}
	// ErrUnavailable, LOCK_UNAVAILABLE: the store did not answer, so whether the call took effect is unknown. Or the store
	// refused to run the call, for want of memory or of a permission for example. Then the text says "call refused"
	// instead of "outcome unknown": this attempt has changed nothing.
	ErrUnavailable error = &Error{Code: codeUnavailable}
	// ErrInvalid, LOCK_INVALID: the input was bad, and nothing was sent to the store; or the value at the key
	// is no lock, and was not changed.
	ErrInvalid error = &Error{Code: codeInvalid}
	// ErrClosed, LOCK_CLOSED: the Locker was closed.
	ErrClosed error = &Error{Code: codeClosed}
)

// Error is a refusal or a failure. An Error never contains an owner token. Code is always set, and the other fields
// where their comments say so.
type Error struct {
	Code string // stable, fit for an API answer: for example "LOCK_TIMEOUT"
	Op   string // the call that failed: for example "acquire"
	Key  string // "" if the error is not about one key

	// The holder in the way. Set with ErrHeld, ErrTimeout and ErrBusy, and with ErrNotOwner and ErrLost if the store
	// reports the holder.
	Holder    string        // the label of the holder, for people
	Job       string        // the job that the lock is bound to, as "queue/taskID"
	Remaining time.Duration // time until the holder's lease ends, or the reservation while no holder runs; Error says which

	// Set with ErrAlreadyReleased, and with ErrLost if another caller has released the lock or forced its release.
	Ended  Ended  // how the lock ended
	Reason string // the reason that the release gave

	Detail string // what is wrong, naming the value and the bound
	Err    error  // the cause, or nil

	leftOf string // what Remaining is a part of, for Error; "" if not known
}

var codeText = map[string]string{
	codeHeld:            "held by another",
	codeTimeout:         "timed out waiting",
	codeNotFound:        "no such lock",
	codeNotOwner:        "not the owner",
	codeAlreadyReleased: "already released",
	codeBusy:            "held by another attempt of the same owner",
	codeLost:            "lock lost",
	codeUnavailable:     "store unavailable, outcome unknown",
	codeInvalid:         "invalid",
	codeClosed:          "locker is closed",
}

// Error returns one line: the call, the key, what is wrong, and the cause.
func (e *Error) Error() string {
	subject := e.Op
	if e.Key != "" {
		subject = strings.TrimSpace(subject + " " + strconv.Quote(shorten(e.Key, 80)))
	}
	what := codeText[e.Code]
	if e.Code == codeUnavailable && errors.Is(e.Err, driver.ErrRefused) {
		what = "store unavailable, call refused"
	}
	if e.Code == codeLost && e.Holder != "" {
		what += ": " + codeText[codeHeld]
	}
	if e.Holder != "" {
		what += " (" + e.Holder + ")"
	}
	if e.Job != "" {
		what += " for job " + e.Job
	}
	if e.Remaining > 0 {
		what += fmt.Sprintf(", %s left%s", e.Remaining.Round(time.Millisecond), e.leftOf)
	}
	if e.Ended != EndedNone && e.Reason != "" {
		what += fmt.Sprintf(" (%s: %s)", e.Ended, e.Reason)
	} else if e.Ended != EndedNone {
		what += fmt.Sprintf(" (%s)", e.Ended)
	}
	parts := []string{"joblock", subject, what, e.Detail}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// leftOf says what of a key in this state has time left: a lease ends with a holder that does not renew it, and a
// reservation lasts while no holder runs.
func leftOf(state State) string {
	switch state {
	case StateHeld:
		return " of the lease"
	case StateParked, StateOrphaned:
		return " of the reservation"
	}
	return ""
}

// Is reports whether target is the sentinel of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && *t == (Error{Code: e.Code})
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Retryable reports whether the same call may succeed later: true for ErrHeld, ErrTimeout, ErrBusy and ErrUnavailable,
// false for all other errors. The errors of contexts are among the others.
func Retryable(err error) bool {
	return slices.Contains([]string{codeHeld, codeTimeout, codeBusy, codeUnavailable}, CodeOf(err))
}

// CodeOf returns the Code of the first *Error in err's chain, "" if there is none.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// invalid returns an ErrInvalid. The detail names the value and the bound.
func invalid(op, key, format string, args ...any) *Error {
	return &Error{Code: codeInvalid, Op: op, Key: key, Detail: fmt.Sprintf(format, args...)}
}

// shorten returns s. If s has more than n bytes, shorten cuts s at a rune boundary, and adds an ellipsis.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// The method unanswered returns ErrUnavailable for the error err of the store's transport. The parameter cause, if
// not nil, is why the call's context has ended, and is joined to err. If err is an *Error, unanswered returns err.
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
	return &Error{Code: codeUnavailable, Op: op, Key: key, Err: err}
}

// callTimeout is the error of a call that Config.CallTimeout has ended. It is no context.DeadlineExceeded: the caller
// would look for a deadline in a context of its own that has none.
type callTimeout struct {
	after time.Duration
	err   error
}

func (e *callTimeout) Error() string {
	return fmt.Sprintf("no answer within %s, Config.CallTimeout: %v", e.after, e.err)
}

// Timeout is what net.Error has.
func (e *callTimeout) Timeout() bool { return true }

// The function ended returns the error of a call whose context has ended. The error is no *Error, because such a call
// says nothing about the lock.
func ended(op, key string, cause error) error {
	return fmt.Errorf("joblock: %s %q: %w", op, shorten(key, 80), cause)
}

// errorOf returns the error for a refusal, nil for OutcomeOK.
func errorOf(op, key string, r driver.Reply) error {
	if r.Outcome == driver.OutcomeOK {
		return nil
	}
	e := &Error{Op: op, Key: key, Holder: r.Holder, Job: r.Job, Remaining: r.Remaining, leftOf: leftOf(r.State)}
	switch r.Outcome {
	case driver.OutcomeHeld:
		e.Code = codeHeld
	case driver.OutcomeFull:
		e.Code, e.Detail = codeHeld, fmt.Sprintf("the line of the key is full: %d wait", r.Ahead)
	case driver.OutcomeBusy:
		e.Code = codeBusy
	case driver.OutcomeNotFound:
		e.Code = codeNotFound
	case driver.OutcomeNotOwner:
		e.Code = codeNotOwner
	case driver.OutcomeReleased:
		e.Code, e.Ended, e.Reason = codeAlreadyReleased, r.Ended, r.Reason
	case driver.OutcomeLapsed:
		e.Code, e.Detail = codeLost, "its time ran out before it was renewed"
	case driver.OutcomeWrongJob:
		e.Code, e.Detail = codeNotOwner, "the lock is bound to another job"
		if r.Job == "" {
			e.Detail = "the lock is bound to no job"
		}
	case driver.OutcomeForeign:
		e.Code, e.Detail = codeInvalid, cmp.Or(r.Detail, "the value at this key is not a lock; it was left alone")
		e.Err = door.ErrForeign
	default:
		e.Code, e.Detail = codeUnavailable, "the store gave no answer"
	}
	return e
}
