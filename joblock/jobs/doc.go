// Package jobs is for writers of keepers. A keeper is a process that knows which jobs
// exist, and makes a lock that is parked for a job live as long as the job. Applications
// do not need this package. The keeper of package worker, for asynq, is built on it.
//
// A keeper needs no owner token. Each of its rounds goes like this:
//
//	due, err := jobs.Due(ctx, locks, 500, every)     // which locks to check
//	...                                              // read them with Locker.Status,
//	...                                              // then ask the queue for their jobs
//	errs := jobs.Reserve(ctx, locks, living...)      // keep those of living jobs
//	errs = jobs.Free(ctx, locks, dead...)            // free those of dead jobs
//	err = jobs.Forget(ctx, locks, over...)           // take these off the index
//
// The store has an index of the locks that are bound to a job. A lock enters the index
// before it is bound, so none is missed, whoever dies when. An entry may be out of date:
// read the lock and compare its job before you act on it. Read the lock before you ask
// the queue for the job. Otherwise a job that is enqueued in between looks dead. The cost
// of Due depends on how much is due, not on how many locks there are.
//
// An entry that no Due has returned for a day is dropped. Without that the index would
// grow for ever where no keeper runs. The entry's lock ends with its reservation.
//
// Every function returns ErrInvalid for a Locker that joblock.New has not made and for
// arguments out of bounds, ErrClosed once the Locker is closed, ErrUnavailable when the
// store has not answered, and the cause of ctx if that had ended before the call. These
// are errors of package joblock.
package jobs
