// Package verdict has the decisions of package worker. Each is a function of what is known: an error, where an attempt
// is in its retries, what asynq and the locks' store have answered. It returns what to do, and does nothing itself, so
// its tables are tested without asynq and without a store. Package worker calls it, and acts.
//
//	delivery.go  a task has come: does this delivery run it?
//	snooze.go    a lock of the task was refused: is the task snoozed, why, and for how long?
//	busy.go      the key of WithoutOverlapping is busy: wait in place, snooze, drop or fail?
//	end.go       the attempt has ended: what to do with its locks, and what does asynq get?
//	fate.go      asynq has written, or not, the task's next state
//	tries.go     where an attempt is in the retries of its task
//	errors.go    the errors that asynq gets
package verdict
