// Package singleflight computes a result once in the whole cluster and shares it.
//
//	rates, err := singleflight.Do(ctx, locks, "rates:eur", time.Minute, fetchRates)
//
// The first caller takes the lock on key and runs the function. The other callers wait for the lock, in the order in
// which they came, and get the same result. A result is fresh for ttl, counted from the moment when the function
// returned. While the result is fresh, a call makes one call to the store and takes no lock.
//
//	the function                      its own caller gets          the next waiter
//	returns a result                  the result                   gets the result, while it is fresh
//	returns an error                  that error                   computes
//	panics                            the panic                    computes
//	runs when the lock is lost        ErrLost, even if the         computes, perhaps before the first
//	                                  function succeeds            function has returned
//	returns a result that cannot      the result; the log has      computes
//	be kept                           the reason
//	dies with its process             nothing                      computes, after the lease has run out
//
// Some results cannot be kept: a result whose msgpack is longer than 64 KiB minus some 30 bytes; a result that msgpack
// cannot encode; a result that the function returns while the store does not answer; and a result that it returns after
// it has released the lock.
//
// The function's context carries the lock (see joblock.FromContext). If the lock is lost, the context ends with cause
// ErrLost. The function must not use singleflight with the same key: locks are not re-entrant.
//
// All other errors mean that this call of Do has computed nothing. They are those of Locker.Acquire: ErrTimeout,
// ErrHeld with joblock.MaxWait(0), the cause of ctx, ErrClosed and ErrUnavailable. If the store does not answer Do's
// first call, Do returns ErrUnavailable at once. Before any call to the store, Do returns ErrInvalid for a Locker that
// joblock.New has not made, a nil function, a ttl out of bounds, a bad key or a bad option. With every error, Do
// returns the zero T.
//
// # The type of the result
//
// Only the function's own caller gets the T that the function returned. All other callers get a T decoded from
// msgpack, so the state of T must be in exported fields. A later version of T may add fields, but must not change the
// type of a field. A kept value is ignored if T had another name, or if the value does not decode.
//
// The memo of the key has the result (see package memo). So use the keys of one kind of result for nothing else.
//
// Any program that can write to the store can forge results. A value that announces more elements than it has bytes is
// not decoded, so decoding allocates at most 64 Ki times the size of T's elements. Even so, prefer a concrete T to an
// interface.
//
// # The clock
//
// The store's clock alone decides whether a result is fresh. A result whose time of writing is ahead of that clock
// counts as too old. If the clock is set back, a kept result may stay fresh for longer, by as much as the clock was set
// back.
package singleflight
