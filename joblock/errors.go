package joblock

import (
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
)

// Sentinels for errors.Is, each with its code. Every *Error matches the sentinel of its code and no other.
var (
	// ErrHeld, LOCK_ACQUISITION_FAILED: another owner holds the key, or the key is reserved for another owner's job.
	ErrHeld = core.ErrHeld
	// ErrTimeout, LOCK_TIMEOUT: another owner still held the lock when the wait ended.
	ErrTimeout = core.ErrTimeout
	// ErrNotFound, LOCK_NOT_FOUND: there is no such lock, or the store no longer remembers the lock.
	ErrNotFound = core.ErrNotFound
	// ErrNotOwner, LOCK_OWNERSHIP_MISMATCH: the lock belongs to another owner, to another job, or to a later holder of
	// the same token.
	ErrNotOwner = core.ErrNotOwner
	// ErrAlreadyReleased, LOCK_ALREADY_RELEASED: this owner's lock was already released, by this owner or by another
	// caller.
	ErrAlreadyReleased = core.ErrAlreadyReleased
	// ErrBusy, LOCK_BUSY: the token is right, but another holder of the token holds the lock at present.
	ErrBusy = core.ErrBusy
	// ErrLost, LOCK_LOST: the caller held the lock, and has lost it or can no longer rely on it. A context from
	// Lock.Context is cancelled with this error as its cause.
	ErrLost = core.ErrLost
	// ErrUnavailable, LOCK_UNAVAILABLE: the store did not answer, so whether the call took effect is unknown. Or the store
	// refused to run the call, for example for lack of memory or of a permission: then the text says "call refused"
	// instead of "outcome unknown", and this attempt has changed nothing.
	ErrUnavailable = core.ErrUnavailable
	// ErrInvalid, LOCK_INVALID: the input was bad, and nothing was sent to the store; or the value at the key
	// is not a lock, and was not changed.
	ErrInvalid = core.ErrInvalid
	// ErrClosed, LOCK_CLOSED: the Locker was closed.
	ErrClosed = core.ErrClosed
)

// Error is a refusal or a failure, with a code, the key, and the holder in the way. It is an alias, as State
// is: calls, stores and events share these types, so errors.As finds one type everywhere.
type Error = driver.Error

// Retryable reports whether the same call may succeed later: true for ErrHeld, ErrTimeout, ErrBusy and ErrUnavailable,
// false for all other errors, those of contexts included.
func Retryable(err error) bool { return core.Retryable(err) }

// CodeOf returns the Code of the first *Error in err's chain, or "" if there is none.
func CodeOf(err error) string { return core.CodeOf(err) }
