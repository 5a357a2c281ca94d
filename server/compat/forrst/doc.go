// Package forrst is the atomic-lock extension of the Forrst protocol, for services in Go. The package needs no lock
// server: locks are taken with a joblock.Locker.
//
//	charge := func(ctx context.Context, req *forrst.Request) *forrst.Response { … }
//	mux.Handle("POST /rpc", forrst.Handler(forrst.AtomicLock(locks, charge, nil)))
//
// [AtomicLock] is the middleware: a call with the extension runs under the lock that it requests, and every other call
// runs as before. AtomicLock also serves the extension's functions release and status, and force-release if the service
// allows it. [Handler] serves a Function over HTTP; a service with another transport calls the Function itself. A lock
// server serves the three functions too: see Forrst in package compat.
//
// # The extension
//
//	field         default       meaning
//	key           required      what is locked
//	ttl           required      how long the lease lasts, from a millisecond to joblock.Config.MaxTTL
//	scope         "function"    "function" locks lock:{function}:{key}, "global" locks lock:{key}
//	block         no wait       how long to wait for the lock, at most Config.MaxBlock
//	owner         a UUIDv4      the owner token, of 1 to 128 bytes
//	auto_release  true          whether the lock is released when the function has returned
//
// A duration is {"value", "unit"}: a whole number of millisecond, second, minute, hour or day. An unknown field is refused.
//
// # What is promised
//
// A lock is not renewed. The context of the function carries the lock (see joblock.FromContext), and ends with the cause
// joblock.ErrLost no later than at the answer's expires_at. Send the fence of the lock to the resource that the lock
// protects.
//
// With auto_release the lock is released when the function has returned, even with errors, or has panicked. Without it,
// the lock stays until expires_at, or until a caller releases it by calling the function release with the key and the
// owner. If the function panics, no caller receives the owner, so the lock is released.
//
// An owner is a capability: any caller that has it can release the lock, so the function status shows only its digest. If
// an owner is used for two locks, it can release both: choose a new owner for each lock, or none.
//
// A lock with scope "function" can have the key of a lock with scope "global": function "a" with key "b:c", and key "a:b:c".
// The two then exclude each other.
//
// # Errors
//
//	code                     status  when
//	LOCK_ACQUISITION_FAILED  409     the lock is held, and the call does not wait
//	LOCK_TIMEOUT             409     the lock was held for all of block
//	LOCK_NOT_FOUND           404     release, force-release: the lock has no holder
//	LOCK_OWNERSHIP_MISMATCH  409     release: another owner has the lock
//	LOCK_ALREADY_RELEASED    410     release: the lock of this owner was released, and the store remembers so
//	INVALID_ARGUMENTS        400     a field is missing, unknown or out of bounds
//	UNAVAILABLE              503     the store did not answer; it is unknown whether the call took effect
//	DEADLINE_EXCEEDED        408     the context of the call ended during the wait
//	INTERNAL_ERROR           500     a fault of the service
//
// Over HTTP, and with Handler, there are also PARSE_ERROR, INVALID_REQUEST and INVALID_PROTOCOL_VERSION (400), and
// FUNCTION_NOT_FOUND and VERSION_NOT_FOUND (404).
package forrst
