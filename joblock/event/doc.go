// Package event describes what happens to the locks of a joblock.Locker in this process.
// Set joblock.Config.Observer to receive its events:
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: event.Observers(slogobserver.New(logger, nil), metrics),
//	})
//
// Packages slogobserver and otelobserver have ready Observers.
//
// Each holding begins with one of Acquired, Resumed and Reclaimed, and ends with one of
// Parked, Released and Lost. One exception: if Park gets its answer only after the lock
// was given up as lost, Parked follows Lost. A renewal in time has no event.
//
// Every event but RenewalUnanswered has the Key, and the Owner if it is known. Events
// about a lock that this process has or had also have Fence, Holder and Job.
//
//	kind               what has happened                                   fields
//	Acquired           a call got the lock                                 Waited, Prior
//	Contended          a call found the key busy; it returns an error or   Holder, Job, Remaining
//	                   begins to wait; once per call
//	GaveUp             a call that had begun to wait ended without the     Waited, Err, Holder, Job
//	                   lock; Err is ErrTimeout when the time was up
//	Resumed            a token's lock is held again, under a new fence     Recovered
//	Reclaimed          a Park was undone
//	Parked             the lock was handed over to Job; Fence is the       Held
//	                   token's
//	Released           Lock.Release ended it; if Err is set, the store     Held, Reason, Err
//	                   has not answered, and the release is repeated in
//	                   the background
//	Lost               the lock is gone, or can no longer be trusted;      Held, Err
//	                   Err matches ErrLost
//	RenewedLate        a renewal was answered after more than two thirds   Late
//	                   of the lease
//	RenewalUnanswered  renewals had no answer and are tried again; at      Locks, Err
//	                   most once a second
//	ReleasedByToken    the lock was released by its owner token            Reason
//	Freed              the lock of a job that will not run again was       Job if it was named, Reason
//	                   freed
//	Forced             ForceRelease has freed the key                      Reason
//	CleanupFailed      a call without an answer may have left a lock       Fence, Reason, Err
//	                   behind, which was not removed in time or before
//	                   Close
//
// A permit of package limit is a lock with a key of its own. Events about a wait for a
// permit have the limit's key, those about the permit have the permit's.
package event
