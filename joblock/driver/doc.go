// Package driver is the contract between package joblock and the stores in which it
// keeps locks. Applications do not need it. It is for those who write a store, and
// docs/writing-a-store.md takes them through it with a worked miniature.
//
// [Store] lists the calls. The table below says what each call does to a record. Package
// storetest walks that table row by row and checks the rest of this page.
//
// # Words
//
// A record is what a store knows of one key. An ownership begins when an Acquire is
// granted. It ends with a release, or when its reservation runs out. It consists of terms:
// Acquire, Resume and Park each begin one, with a new fence. The lease says until when
// somebody runs under the lock. The reservation says until when the key is kept for its
// owner; it never ends before the lease. At any instant of the store's clock a key is:
//
//	free       no record; or the ownership was ended, or its reservation has run out
//	held       the lease has not run out
//	parked     reserved, and there is no lease: Park has ended the term
//	orphaned   reserved, and the lease has run out: whoever ran is gone or cut off
//
// An ownership is live unless the key is free. Its record outlives it: see Retention.
//
// # One step
//
// Each item of a call is judged and applied in one atomic step. If it frees a key, the grant
// to the first waiter is part of that step. The items of a batch may be separate steps.
//
// Only the store's clock counts. A deadline is never early. It may be up to one millisecond
// late, so a store may round up. When the clock is set back deadlines last longer. That must
// have no other effect.
//
// # Fences
//
// A fence is a number from 1 to 2^53-1. Each term of a key has a larger fence than all
// earlier terms of that key, even if the record was forgotten in between or the clock was
// set back. A fence means nothing else. One sequence for the whole store is best. The larger
// of the last fence + 1 and the clock in microseconds will do; it fails only if the clock
// goes back by more than the time for which records are remembered.
//
// Record.First is the fence that the last ownership began with.
//
// # Calls that come again
//
// A caller without an answer sends its call again, under the same Nonce. The rows named
// "again" recognise such a call. It changes nothing and gets its first answer, as far as the
// record still shows it; Recovered may differ. Renew and Reserve have no Nonce, because
// repeating them does no harm.
//
// A call may also arrive late: after its caller has given up, or after later calls. It is
// judged by the record that it finds.
//
// # The transition table
//
// The first row whose condition holds decides. Term is the request's [Term]. It names the
// present term if its Fence is the record's, or if its Grant is the Nonce of the call that
// began the term. The last column is the record after the call; "same" is the record as it
// was. Words in capitals are defined below the table.
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
// GRANT begins an ownership with what the Acquire asks for: its Owner and Holder, a lease
// and a reservation of its TTL from now, and no job. The record keeps the memo, and how the
// previous ownership ended. First is the new fence. Since and Changed are now.
//
// TERM begins a term: a new fence, this Nonce, and with Resume this Holder. Changed is now.
//
// LEASE begins a lease of TTL, and reserves the key for at least Reserve beyond it. A
// reservation that lasts longer stays. LEASE anew first drops the reservation that the Park
// made. A Renew that takes a Park back sets Changed, but keeps the fence.
//
// END ends the ownership, its lease and its reservation. Reason says why, and Ended how:
// EndedForced for ReleaseForced and ReleaseForJob, EndedDone with Done, else EndedReleased.
// Changed is now. If somebody waits, the same step goes on with a GRANT to the first in line.
//
// The record remembers the Nonce of the last END, and whether it was in time. It does so
// under later ownerships too: a release that is sent again must not end the next ownership.
// Once there is one, that release may be answered OK even if the END was late.
//
// QUEUE gives an Acquire with an Inbox a place: see The queue. Every Release gives up the
// place of the Acquire that its Grant names, whichever row decides.
//
// Time alone passes no key on. After a reservation has run out, the owner can still Resume
// until the next Acquire of anybody.
//
// # Replies
//
// [Reply] says which fields each Outcome has. Held, Busy, NotOwner, WrongJob and the OK of
// Reserve tell who has the key: State, Holder, Job and Remaining as they are after the
// call. If the key is free they are zero, except the Job of WrongJob: the others would
// describe somebody who has gone.
//
// # The queue
//
// An Acquire with an Inbox that is answered Held has a place in the key's queue. The waiter
// keeps the place by asking again under the same Nonce. The place ends Patience after the
// last time it asked, or with a Release whose Grant is that Nonce.
//
// Places are served in the order in which they were taken. The call that frees the key, or
// finds it free, grants it to the first waiter whose place has not ended, and drops the
// places before. Then it pushes the waiter's Nonce to the waiter's Inbox, unless the call is
// the waiter's own.
//
// The waiter finds its grant by asking again, with or without a push: row "again". The reply
// is the one to an immediate grant, except that Lease is what is left. The record is
// remembered at least until the end of each place and the Retain of its Acquire beyond.
//
// Reply.Ahead is how many places are before the caller's. It may include places that have
// ended or were given up. Record.Waiters may include places that have ended.
//
// A store may limit how many ended places one call drops. The answer stays the same, and the
// next call goes on.
//
// # Pushes
//
// A push saves its receiver from asking often. It may be lost: waiters also ask from time to
// time. So a store may push after the step, and a push that fails does not fail the call.
//
// # The index of jobs
//
// The index finds the locks of jobs without reading all records. It has an entry for each
// pair of a key and the job that its record is bound to. The entry is written before the
// record is bound, or in the same step, and is due Grace later. Park with a Job writes it,
// and so does a Resume that recovers a job's lock or binds one to Back. If the entry cannot
// be written the call is an error, and the record is not bound.
//
// No other call adds an entry. Only Forget removes one, but a store may drop an entry that
// has been due for JobKeep. So the index also has entries of locks that have ended, and its
// readers look at the record.
//
// # Seal keys
//
// SealKeys adds the keys of Known that are missing, with their Since. If there is still no
// key, Fresh becomes the first, and its Since is the store's clock. If there are more than
// MaxSealKeys, the oldest are dropped. Seal keys are not records: List does not show them.
// They do not expire.
//
// # Retention
//
// A record is remembered for Retain after the end of its reservation, or after its END. The
// last call that changed the record sets Retain. Then the record is forgotten, as if it had
// never been. The rows "ended" and "again" need that memory.
//
// A caller that ends a lock need not know how long its memo is wanted. So a record with a
// memo is remembered, counted from the END, for at least the time for which it would have
// outlived its reservation.
//
// A record without a memo is remembered for Brief after its END, if Brief is set. There is
// one exception: if fences come from a clock, a record whose fence is ahead of the clock is
// remembered for Retain. Otherwise the next fence could be smaller.
//
// # Hostile values
//
// A value that is not a record is never written to. Calls answer Foreign; Inspect and List
// show StateForeign.
//
// Keys, owners, labels, jobs and nonces are any UTF-8 without control characters, within the
// bounds of this package. Two are the same if their bytes are. A store escapes them where
// its own syntax needs that.
//
// # Errors
//
// [Store] says what an error means. joblock returns it as ErrUnavailable, and asks again
// under the same Nonce. A *joblock.Error it returns unchanged: ErrInvalid says that the
// store was set up wrongly. Errors are logged, so they must not contain an owner.
//
// If a store has a String method, messages to people use it to say where the locks are.
//
// # Compatibility
//
// Additions are not breaking: any version may add fields to requests, replies and records,
// and methods to Store. After a new method a store outside this module no longer compiles.
// That is intended, because the new behaviour would be missing in silence otherwise. So a
// store does not embed Store; a wrapper in a test may.
package driver
