package driver

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Error is a refusal or a failure of a call of package joblock. An Error never contains an owner token. Code is always
// set, and the other fields where their comments say so.
type Error struct {
	Code string // stable, fit for an API answer: for example "LOCK_TIMEOUT"
	Op   string // the call that failed: for example "acquire"
	Key  string // "" if the error is not about one key

	// The fields about the holder in the way are set with ErrHeld, ErrTimeout and ErrBusy, and with ErrNotOwner and
	// ErrLost if the store reports the holder.
	Holder    string        // the label of the holder, for people
	Job       string        // the job that the lock is bound to, as "queue/taskID"
	Remaining time.Duration // time until the holder's lease ends, or the reservation while no holder runs; see State
	State     State         // what Remaining refers to: StateHeld: the lease; StateFree: not known; others: the reservation

	// Ended and Reason are set with ErrAlreadyReleased, and with ErrLost if another caller has released the lock or
	// forced its release.
	Ended  Ended  // how the lock ended
	Reason string // the reason that was given with the release

	Detail string // what is wrong, naming the value and the bound
	Err    error  // the cause, or nil
}

// The codes of Error. The first five are those of the atomic-lock extension of the Forrst protocol.
const (
	CodeHeld            = "LOCK_ACQUISITION_FAILED"
	CodeTimeout         = "LOCK_TIMEOUT"
	CodeNotFound        = "LOCK_NOT_FOUND"
	CodeNotOwner        = "LOCK_OWNERSHIP_MISMATCH"
	CodeAlreadyReleased = "LOCK_ALREADY_RELEASED"
	CodeBusy            = "LOCK_BUSY"
	CodeLost            = "LOCK_LOST"
	CodeUnavailable     = "LOCK_UNAVAILABLE"
	CodeInvalid         = "LOCK_INVALID"
	CodeClosed          = "LOCK_CLOSED"
)

var codeText = map[string]string{
	CodeHeld:            "held by another",
	CodeTimeout:         "timed out waiting",
	CodeNotFound:        "no such lock",
	CodeNotOwner:        "not the owner",
	CodeAlreadyReleased: "already released",
	CodeBusy:            "held by another attempt of the same owner",
	CodeLost:            "lock lost",
	CodeUnavailable:     "store unavailable, outcome unknown",
	CodeInvalid:         "invalid",
	CodeClosed:          "locker is closed",
}

// CodeText returns a few words that explain code.
func CodeText(code string) string { return codeText[code] }

// coolingPrefix begins Error.Job while a key cools down; the rest is the job that ran. Package envelope writes it.
const coolingPrefix = "%cooldown:"

// Error returns one line: the call, the key, what is wrong, and the cause.
func (e *Error) Error() string {
	subject := e.Op
	if e.Key != "" {
		subject = strings.TrimSpace(subject + " " + strconv.Quote(shorten(e.Key, 80)))
	}
	what := codeText[e.Code]
	if e.Code == CodeUnavailable && errors.Is(e.Err, ErrRefused) {
		what = "store unavailable, call refused"
	}
	if e.Code == CodeLost && e.Holder != "" {
		what += ": " + codeText[CodeHeld]
	}
	after, cools := strings.CutPrefix(e.Job, coolingPrefix)
	switch {
	case cools:
		what += ", because the key cools down after job " + after
	case e.Holder != "":
		what += " (" + e.Holder + ")"
	}
	if e.Job != "" && !cools {
		what += " for job " + e.Job
	}
	if e.Remaining > 0 {
		left := leftOf(e.State)
		if cools {
			left = " of the cooldown"
		}
		what += fmt.Sprintf(", %s left%s", e.Remaining.Round(time.Millisecond), left)
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

// leftOf says what Error.Remaining refers to: the lease of a key that is held, or the reservation of a key without a
// live holder.
func leftOf(state State) string {
	switch state {
	case StateHeld:
		return " of the lease"
	case StateParked, StateOrphaned:
		return " of the reservation"
	}
	return ""
}

// Is reports whether target is the sentinel of the same code: an *Error with only that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && *t == (Error{Code: e.Code})
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// shorten returns s, cut at a rune boundary and with an ellipsis if it has more than n bytes.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
