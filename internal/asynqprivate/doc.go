// Package asynqprivate is all that the toolkit knows of asynq beyond its API. Each file says what it reaches, why, and
// what happens with an asynq that is made differently; a test of each fails with such an asynq.
//
//	options.go    the options that a task was made with
//	maxretry.go   the number of retries in the context of a handler
//	inspector.go  the Redis client of an Inspector
//	move.go       the scripts with which asynq moves a task between its states
//	end.go        the same, beside the release of a job's key
package asynqprivate
