// Package singleflight computes a result once in the whole cluster and shares it.
//
//	rates, err := singleflight.Do(ctx, locks, "rates:eur", time.Minute, fetchRates)
//
// The first caller runs the function while it holds the lock on key. The others wait for
// the lock, in the order in which they came, and get the same result. The result is fresh
// for the ttl, counted from when the function returned. A caller that comes meanwhile
// makes one call to the store and takes no lock.
//
// What a caller gets:
//
//	the function                         its own caller           the next in line
//	returns a result                     the result               the result, while it is fresh
//	returns an error                     that error               computes
//	panics                               the panic goes on        computes
//	loses the lock while it runs         ErrLost, whatever it     computes; perhaps before the
//	                                     returned                 first function has returned
//	returns what cannot be kept          the result; the reason   computes
//	                                     is logged
//	is cut off with its process                                   computes, one lease later
//
// What cannot be kept: a result longer than 64 KiB less some 30 bytes; one that msgpack
// has no encoding for; one that comes while the store does not answer, or after the
// function has released the lock.
//
// The function's context carries the lock (see joblock.FromContext) and ends with cause
// ErrLost when the lock is lost. The function must not use singleflight with the same
// key: locks are not re-entrant.
//
// Other errors mean that nothing was computed. They are those of Locker.Acquire:
// ErrTimeout, ErrHeld with joblock.MaxWait(0), the cause of ctx, ErrClosed, and
// ErrUnavailable, at once if the store does not answer the first call. ErrInvalid comes
// before anything is sent: for a Locker that joblock.New has not made, a nil function, a
// ttl out of bounds, a bad key or option. An error comes with the zero T.
//
// # The type of the result
//
// All callers but the function's own get a T decoded from msgpack, so its state must be
// in exported fields. Fields may be added to T, but must not change their types. A kept
// value counts as absent if T had another name, or if the value does not decode.
//
// The result is kept as the memo of the key (see package memo): give each kind of result
// keys that are used for nothing else.
//
// Whoever can write to the store can forge results. A value that announces more elements
// than it has bytes is not decoded, so decoding costs at most 64 Ki times the size of T's
// elements. Still prefer a concrete T to interfaces.
//
// # The clock
//
// The store's clock alone decides what is fresh. A result from its future counts as too
// old. If the clock is set back while a result is kept, that result may be served for
// longer, by as much as the clock was set back.
package singleflight
