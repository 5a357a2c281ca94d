// Package jobs is for authors of keepers. A keeper is a process that knows which jobs exist, and makes a lock that is
// parked for a job live as long as the job. Applications do not need this package. The keeper of package worker, for
// asynq, is built on package jobs and on code that is not exported. Package jobs is enough to keep locks that are
// parked for jobs, but not to put a job in a line or to run the slots of a sequence. Package jobs may change in 0.x.
//
// A keeper needs no owner token. In each round, a keeper makes these calls for each part of the index, from 0 to
// Parts-1:
//
//	due, err := jobs.Due(ctx, locks, jobs.DueRequest{Part: part, Limit: 500, Claim: lease}) // claims due.Entries
//	...                                           // read the locks with Locker.Status,
//	...                                           // then look their jobs up in the queue
//	errs := jobs.Reserve(ctx, locks, living...)   // keep the locks of living jobs
//	errs = jobs.Free(ctx, locks, dead...)         // free the locks of dead jobs
//	err = jobs.Settle(ctx, locks, checked...)     // say when to check again, or never
//
// Any number of keepers may work at a time, without a leader. Each entry is claimed by one of them. The claim of a
// keeper that dies ends by itself.
//
// The store has an index of the locks that are bound to a job. The store writes the entry of a lock before the store
// binds the lock, so the index misses no lock, even if a process dies in between. An entry may be out of date: before
// you free a lock, read the lock and compare its job. Read the lock before you look the job up in the queue. In the
// opposite order, a job that is enqueued between the two steps looks dead. The cost of Due grows with the number of due
// entries, not with the number of locks.
//
// A job may wait in the line of a key: see driver, Jobs in the queue. The index has the entries of such jobs too.
// Reserve keeps their places, and Free gives their places up. A job that has got its key has to be started: see Listen.
// Line shows who waits.
//
// The store drops an entry that no Due has returned for a day. Otherwise the index would grow forever where no keeper
// runs. The lock of a dropped entry ends with its reservation.
//
// Every function can return these errors of package joblock: ErrInvalid for a Locker that joblock.New has not made
// and for arguments out of bounds; ErrClosed for a closed Locker; ErrUnavailable if the store has not answered; and
// the cause of ctx if ctx had ended before the call.
package jobs
