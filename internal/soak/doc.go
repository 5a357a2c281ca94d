// Package soak has only tests. They do everything that the toolkit does with locks, at
// once, as fast as it goes and for as long as you like, and then check what is left of it.
//
//	JOBLOCK_SOAK=3m go test -v ./internal/soak
//
// Thousands of locks are held and renewed, thousands of waiters queue and give up, limits,
// single flights and parked locks come and go, and jobs are enqueued with their locks and
// run by an asynq server with the worker's middleware and its keeper. Nothing is broken on
// purpose: package torture does that.
//
// While it runs, memory, goroutines, keys and connections must not grow. At the end there
// must be no place in a queue, no entry of the index, no key in Redis, no goroutine and no
// connection. Without JOBLOCK_SOAK it is a few seconds of a tenth of the load, which shows
// what is left behind but hardly what grows slowly.
package soak
