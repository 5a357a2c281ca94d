// Package jobs is for those who write a keeper: a process that knows which jobs there
// are, and lets the lock that is parked for a job live as long as the job does.
// Applications need it no more than they need package driver: the keeper of package
// worker, for asynq, is built on it.
//
// A keeper needs no owner token. It goes round like this:
//
//	due, err := jobs.Due(ctx, locks, 500, every)     // which locks are to be looked at
//	...                                              // read them with Locker.Status,
//	...                                              // then ask the queue for their jobs
//	errs := jobs.Reserve(ctx, locks, living...)      // keep those of living jobs
//	errs = jobs.Free(ctx, locks, dead...)            // free those of dead ones
//	err = jobs.Forget(ctx, locks, over...)           // and look at these no more
//
// The store has an index of the locks that are bound to a job. A lock is in it before
// it is bound, so none is missed, whoever dies when. What is in it need not be a job's
// lock any more: read each lock, and compare its job, before you act on it. Read the
// lock before you ask for the job, or a job that was enqueued in between looks dead.
// Finding what is due costs as much as there is due, not as there are locks.
//
// An entry that nobody has looked at for a day is dropped from the index, which would
// grow for ever where no keeper runs. Its lock is left to the end of its reservation.
//
// Every function returns ErrInvalid for a Locker that joblock.New has not made and for
// arguments out of bounds, ErrClosed once the Locker is closed, ErrUnavailable when the
// store has not answered, and the cause of ctx if that had ended before the call. These
// are errors of package joblock.
package jobs
