// Package driver is the contract between package joblock and the stores in which it
// keeps locks. Applications do not need it. It is for those who write a store, and
// docs/writing-a-store.md takes them through it with a worked miniature.
//
// [Store] lists the calls. The table below says what each call does to a record. Package
// storetest walks that table row by row and checks the rest of this page.
//
// # Words
//
// A record is what a store knows of one key. An ownership begins with the Acquire that
// is granted and ends with a release, or when its time has run out. It is cut into
// terms: Acquire, Resume and Park each begin one, with a fence of its own. While somebody
// runs under a lock there is a lease. A reservation says until when the key is kept for
// its owner; it is never shorter than the lease. So a key is, at an instant of the
// store's clock:
//
//	free       no record; or the ownership was ended, or its reservation has run out
//	held       the lease stands
//	parked     reserved, and there is no lease: Park has ended the term
//	orphaned   reserved, and the lease has run out: whoever ran is gone or cut off
//
// An ownership is live unless the key is free. A record whose reservation has run out is
// kept for a while, and so is one that was ended: see Retention.
//
// # One step
//
// Each item of a call is judged and applied in one atomic step. What follows from it is
// part of that step: a release that frees a key also makes the grant to the first waiter.
// Each item of a batch is a step of its own.
//
// Only the store's clock counts. A deadline is never early. It may be up to one millisecond
// late, so a store may round up. If the clock is set back, deadlines last longer, and
// nothing else may happen.
//
// # Fences
//
// A fence is a number from 1 to 2^53-1. Each term of a key has a larger one than every term
// of that key before it. That holds if the record was forgotten in between, and if the
// clock was set back. Nobody reads anything else out of a fence. One sequence for the whole
// store is best. The larger of the last fence + 1 and the clock in microseconds will do; it
// fails only if the clock goes back by more than the time for which records are remembered.
//
// Record.First is the fence that the present ownership began with. It stays until the next
// ownership begins.
//
// # Calls that come again
//
// A caller without an answer sends its call again, under the same Nonce. The rows named
// "again" recognise such a call: it gets its first answer and changes nothing. Only what the
// record still shows has to be as in the first answer; Recovered need not be. Renew and
// Reserve have no Nonce, because to do them twice does no harm.
//
// A call may also arrive long after its caller has given up, and after others. It is
// judged by the record that it finds.
//
// # The transition table
//
// The first row whose condition holds decides. Term is the request's [Term]: it names the
// present term if its Fence is the record's, or its Grant the Nonce of the call that began
// the term. The last column is the record after the call; "same" is the record as it was.
// Words in capitals are defined below the table.
//
//	Every call
//	  foreign            the value at the key is no record              Foreign   same
//
//	Acquire
//	  again              held by Owner; the term began with this Nonce  OK        same
//	  taken              live                                           Held      same; QUEUE
//	  next               nobody waits, or this Nonce is first in line   OK        GRANT to the caller
//	  passed on          otherwise                                      Held      GRANT to the first in line; QUEUE
//
//	Resume
//	  no record          there is none                                  NotFound  same
//	  another owner      the record's is not Owner                      NotOwner  same
//	  ended              the ownership was ended                        Released  same
//	  another ownership  bound to no job; Fence is set and below First  NotOwner  same
//	  another job        a job other than Job and, with Unpark, Back    WrongJob  same
//	  again              held; the term began with this Nonce           OK        same
//	  busy               held                                           Busy      same
//	  taken back         live; Unpark                                   OK        TERM; LEASE anew; bound to Back
//	  resumed            live                                           OK        TERM; LEASE
//	  recovered          otherwise                                      OK        as one of the two above; Recovered
//
//	Park
//	  again              parked by Owner with this Nonce, for Job       OK        same
//	  moved              parked by Owner with this Nonce, for another   OK        TERM; parked for Reserve; bound to Job
//	  no record          there is none                                  NotFound  same
//	  another owner      the record's is not Owner                      NotOwner  same
//	  ended              the ownership was ended                        Released  same
//	  another term       Term does not name the present one             NotOwner  same
//	  late               not held                                       Lapsed    same
//	  parked             otherwise                                      OK        TERM; parked for Reserve; bound to Job
//
//	Renew
//	  no record          there is none                                  NotFound  same
//	  another owner      the record's is not Owner                      NotOwner  same
//	  ended              the ownership was ended                        Released  same
//	  another term       Term does not name the present one             NotOwner  same
//	  taken back         parked by the call that Grant names            OK        LEASE anew; bound to Back
//	  late               not held                                       Lapsed    same
//	  renewed            otherwise                                      OK        LEASE; the memo, if there is one
//
//	Release (ReleaseOwn, ReleaseIdle)
//	  again              this Nonce ended an ownership in time          OK        same
//	  again, late        this Nonce ended one that had run out          Lapsed    same
//	  no record          there is none                                  NotFound  same
//	  another owner      the record's is not Owner                      NotOwner  same
//	  ended              the ownership was ended                        Released  same
//	  another term       Term has a Fence or a Grant and names another  NotOwner  same
//	  another job        Job is set and not the record's                WrongJob  same
//	  busy               ReleaseIdle; held                              Busy      same
//	  released           live                                           OK        END
//	  released late      otherwise                                      Lapsed    END
//
//	Release (ReleaseForced, ReleaseForJob)
//	  again              this Nonce ended an ownership in time          OK        same
//	  again, late        this Nonce ended one that had run out          Lapsed    same
//	  free               there is no record, or it is not live          NotFound  same
//	  another fence      Fence is set and not the record's              NotOwner  same
//	  another job        Job is set or ReleaseForJob; not the record's  WrongJob  same
//	  busy               ReleaseForJob; held                            Busy      same
//	  forced             otherwise                                      OK        END; if it was held, a push to ForcedInbox
//
//	Reserve
//	  no record          there is none                                  NotFound  same
//	  another job        Job is not the record's                        WrongJob  same
//	  ended              the ownership was ended                        Released  same
//	  reserved           live                                           OK        reserved for at least Reserve
//	  reserved again     otherwise                                      OK        reserved for Reserve; Recovered
//
// GRANT begins an ownership as the Acquire asks for it, now: owner, holder, a lease and a
// reservation of TTL, no job. The record keeps the memo, and how the ownership before
// ended. First, Since and Changed are set.
//
// TERM begins a term: a new fence, this Nonce, and with Resume this Holder. Changed is now.
//
// LEASE begins a lease of TTL, and reserves the key for at least Reserve beyond it. A
// reservation that lasts longer stays; with "anew" that of the Park goes first. A Renew
// that takes a Park back sets Changed, but keeps the fence.
//
// END ends the ownership. There is no lease and no reservation any more. Reason says why,
// and Ended how: EndedForced for ReleaseForced and ReleaseForJob, EndedDone with Done, else
// EndedReleased. Changed is now. If somebody waits, the same step goes on with a GRANT to
// the first in line.
//
// The record remembers the Nonce of the last END, and whether that was in time, also under
// the ownerships that follow: a release that comes again must not end what the next owner
// has. Once there is a next ownership, the answer to it may be OK in either case.
//
// QUEUE gives an Acquire with an Inbox a place: see The queue. A release also gives up the
// place of the Acquire that its Grant names, whichever row decides.
//
// Time alone passes no key on. After a reservation has run out its owner can still Resume
// it. That ends with the first Acquire that comes.
//
// # Replies
//
// [Reply] says which fields each Outcome has. Held, Busy, NotOwner, WrongJob and the OK of
// Reserve tell who has the key: State, Holder, Job and Remaining as they are after the
// call. Where the key is free they are zero, but for the Job of WrongJob: the rest would
// describe somebody who has gone.
//
// # The queue
//
// An Acquire with an Inbox that is answered Held has a place in the key's queue. It keeps
// that place by asking again under its Nonce; the place ends Patience after the last time
// it asked, or with a Release that names its Nonce as Grant. Places are served in the
// order in which they were taken. Whatever frees the key, or finds it free, grants it to
// the first whose place is still kept, drops the places before, and pushes the Nonce to
// its inbox, unless it is that very call which asks.
//
// The waiter finds its grant by asking again, pushed to or not: that is the row "again".
// It is told all that it would have been told at once; Lease is what is left. The record is
// remembered until the last place ends, and Retain beyond.
//
// Reply.Ahead is how many places are before the caller's. It may include places that have
// ended or were given up. Record.Waiters may include places that have ended.
//
// A store may bound the work of one call, where thousands have died in line. It then
// answers as it would have, and goes on at the next call.
//
// # Pushes
//
// A push saves its receiver from asking often. It may be lost: whoever waits also asks from
// time to time. So a store pushes after the step, and a call does not fail because its push
// did.
//
// # The index of jobs
//
// The index finds the locks of jobs without a look at all records. It has an entry for
// each pair of a key and the job that its record is bound to. The entry is written before
// the record is bound, or in the same step, and is due Grace from then. Park with a Job
// writes it, and so does a Resume that recovers a job's lock or binds one to Back. If the
// entry cannot be written the call is an error, and the record is not bound.
//
// Nothing else takes an entry away or writes one: not a release, not the end of a
// reservation, not Reserve or Renew. So the index has entries that are no longer true,
// and whoever reads it looks at the record. It loses an entry by Forget, and may drop one
// that has been due for JobKeep.
//
// # Seal keys
//
// SealKeys puts those of Known back that are not there, with their Since. If there is no
// key then, Fresh becomes the first, its Since the store's clock. Of more than MaxSealKeys
// the oldest are dropped. The keys are never listed, are no lock's record, and do not end
// by themselves.
//
// # Retention
//
// A record is remembered for Retain after the end of its reservation, or after its END. The
// last call that changed the record says what Retain is. Then the record is forgotten, as if
// it had never been. The rows "ended" and "again" need that memory.
//
// An END does not shorten the life of a memo: whoever ends a lock need not know for how long
// its memo is wanted. So a record with a memo is remembered, from the END on, for what was
// its time after the reservation, if that is longer than Retain.
//
// A record without a memo is remembered for Brief after its END, if Brief is set. It is
// remembered for Retain all the same if the next fence could be smaller otherwise: if fences
// come from a clock, and the record's is ahead of it.
//
// # Hostile values
//
// A value that is no record is not taken for one: the answer is Foreign, it is shown as
// StateForeign, and it is never written to.
//
// Keys, owners, labels, jobs and nonces are any UTF-8 without control characters, within the
// bounds of this package. Two are the same if their bytes are. A store escapes them where
// its own syntax needs that.
//
// # Errors
//
// An error means that it is not known what came of an item; a refusal is none. joblock makes
// ErrUnavailable of an error and asks again under the same Nonce, so a store does not try
// again itself. An error that is a *joblock.Error is handed on as it is: ErrInvalid is for
// a store that was set up wrongly. Errors are logged, and have no owner in them.
//
// A store that has a String method says by it where the locks are, in messages to people.
//
// # Compatibility
//
// Additions are not breaking: any version may add fields to requests, replies and records,
// and methods to Store. After a new method a store outside this module no longer compiles.
// That is intended, because the new behaviour would be missing in silence otherwise. So a
// store does not embed Store; a wrapper in a test may.
package driver
