// Package singleflight computes a result once in the whole cluster and shares it.
//
//	rates, err := singleflight.Do(ctx, locks, "rates:eur", time.Minute, fetchRates)
//
// The first caller runs the function while it holds the lock on key. The others wait for
// the lock, in the order in which they came, and get the same result. It is kept for a
// time to live, the ttl, counted from when the function returned. A caller that comes
// while a kept result is fresh makes one call to the store and takes no lock.
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
// Other errors, with which nothing is computed, are those of Locker.Acquire: ErrTimeout,
// ErrHeld with joblock.MaxWait(0), the cause of ctx, ErrUnavailable, ErrClosed. If the
// store does not answer the first call that is reported at once. ErrInvalid, before
// anything is sent: a Locker that joblock.New has not made, a nil function, a ttl out of
// bounds, a bad key or option. With an error comes the zero T.
//
// # The type of the result
//
// T travels as msgpack, and only the function's own caller gets what the function
// returned: the state of T must be in exported fields. Fields may be added to T, but must
// not change their types. What was kept for a T of another name, or does not decode, is
// no result.
//
// The result is kept as the memo of the key (see package memo): give each kind of result
// keys that are used for nothing else.
//
// Whoever can write to the store can forge results. Bytes that claim to be more than they
// are do not get to the decoder, so decoding costs at most 64 Ki times the size of T's
// elements. Still prefer a concrete T to interfaces.
//
// # The clock
//
// The store's clock alone decides what is fresh. A result from its future counts as too
// old. If the clock is set back while a result is kept, that result may be served for
// longer, by as much as the clock was set back.
package singleflight
