// Package event describes what happens to the locks of a joblock.Locker in this process. An Observer in
// joblock.Config receives the events:
//
//	locks, err := joblock.New(store, &joblock.Config{
//		Observer: event.Observers(slogobserver.New(logger, nil), metrics),
//	})
//
// Packages slogobserver and otelobserver have ready Observers.
//
// A holding is a lock that this process has, from the call that got the lock. Each holding begins with one event of
// kind Acquired, Resumed or Reclaimed. Each holding ends with one event of kind Parked, Released or Lost. There is one
// exception: if a Park gets its answer after the Locker has given the lock up as lost, Parked follows Lost. A renewal
// in time has no event.
//
// Every event except RenewalUnanswered has the Key, and the Owner if the Locker knows the Owner. Events about a
// holding also have Fence, Holder and Job. The last column has the other fields.
//
//	kind               what has happened                                                    fields
//	Acquired           a call got the lock                                                  Waited, Prior
//	Contended          a call found the key busy, and returns an error or begins to wait;   Holder, Job, Remaining
//	                   at most once per call
//	GaveUp             a call that had begun to wait ended without the lock; Err is         Waited, Err, Holder, Job
//	                   ErrTimeout if the call had waited for as long as it may
//	Resumed            a token's lock is held again, under a new fence                      Recovered
//	Reclaimed          a Park was undone
//	Parked             the lock was handed over to Job; Fence is the token's                Held
//	Released           Lock.Release ended the holding; if Err is set, the store has not     Held, Reason, Err
//	                   answered, and the Locker repeats the release in the background
//	Lost               the lock is gone, or can no longer be trusted; Err matches ErrLost   Held, Err
//	RenewedLate        a renewal was answered after more than two thirds of the lease       Late
//	RenewalUnanswered  renewals got no answer, and the Locker tries them again; at most     Locks, Err
//	                   once a second
//	ReleasedByToken    an owner token released the lock                                     Reason
//	Freed              this process ended an idle lock or a job's place in line, usually    Job if the call named it, Reason
//	                   because the job will not run again
//	Forced             an operator or ForceRelease has freed the key                        Fence and Job if the call named them, Reason
//	CleanupFailed      a call without an answer may have left a lock behind, and the        Fence, Reason, Err
//	                   Locker could not remove that lock in time or before Close
//	FellBack           the store did not answer, so a function of package fallback runs     Owner, Fence, Waited, Err
//	                   under a lock of this process alone; Fence is the local lock's
//	Overran            a function of package fallback still runs after Config.Overrun       Owner, Fence, Held
//	RateLimited        a job or a call of package rate has to wait for its rate             Job, Remaining
//	HeldBack           an operator has paused Key, so a job with that key, or with a key    Job, Remaining, Reason
//	                   below it, does not start; one event each time the job is delivered
//
// A permit of package limit is a lock with a key of its own. Events about a wait for a permit have the limit's key.
// Events about the permit have the permit's key.
package event
