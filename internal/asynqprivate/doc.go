// Package asynqprivate has everything that the toolkit relies on in asynq beyond its API. Each file says what it uses,
// why, and what happens if another version of asynq does not have it; each has a test that fails with such a version.
//
//	options.go    the options that a task was made with
//	maxretry.go   the number of retries in the context of a handler
//	inspector.go  the Redis client of an Inspector
//	move.go       the scripts with which asynq moves a task between its states
//	end.go        the same, in the script that releases a job's key
package asynqprivate
