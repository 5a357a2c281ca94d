// Package event has the events of a joblock.Locker: what happens, in this process, to
// the locks that it takes. Set joblock.Config.Observer to be told of them:
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: event.Observers(slogobserver.New(logger, nil), metrics),
//	})
//
// Packages slogobserver and otelobserver have ready Observers.
//
// Each holding begins with one of Acquired, Resumed and Reclaimed, and ends with one of
// Parked, Released and Lost. There is one exception: Park can find out late that it had
// parked a lock that was given up for lost meanwhile. Then Lost is told, and Parked
// after it. There is no event for a renewal that went as it should.
//
// Every event but RenewalUnanswered has the Key, and the Owner if it is known. Those
// about a lock that this process has, or had, also have Fence, Holder and Job.
//
//	kind               what has happened                                   fields
//	Acquired           a call got the lock                                 Waited, Prior
//	Contended          a call found the key busy, and returns that or      Holder, Job, Remaining
//	                   begins to wait; once per call
//	GaveUp             a call that had begun to wait ended without the     Waited, Err, Holder, Job
//	                   lock; Err is ErrTimeout when the time was up
//	Resumed            a token's lock is held again, under a new fence     Recovered
//	Reclaimed          a Park was undone
//	Parked             the lock was handed over to Job; Fence is that of   Held
//	                   the token
//	Released           the lock was given back by its handle; with an      Held, Reason, Err
//	                   Err the store has not answered, and the release is
//	                   repeated in the background
//	Lost               the lock is no longer held, or no longer to be      Held, Err
//	                   trusted; Err matches ErrLost
//	RenewedLate        a renewal was answered when more than two thirds    Late
//	                   of the lease were used up
//	RenewalUnanswered  renewals had no answer and are tried again; at      Locks, Err
//	                   most once a second
//	ReleasedByToken    the lock was released by its owner token            Reason
//	Freed              the lock of a job that will not run again was       Job if it was named, Reason
//	                   freed
//	Forced             ForceRelease has freed the key                      Reason
//	CleanupFailed      what a call without an answer may have left         Fence, Reason, Err
//	                   behind could not be removed before its time ran
//	                   out, or before Close
//
// A permit of package limit is a lock with a key of its own. Events about a wait for a
// permit have the limit's key, those about the permit have the permit's.
package event
