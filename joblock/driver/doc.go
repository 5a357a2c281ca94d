// Package driver is the contract between package joblock and the stores that keep the locks. Only authors of stores
// need this package. The guide docs/writing-a-store.md shows a small store, worked out in full.
//
// [Store] lists the calls. The transition table below says what each call does to a record. Package storetest checks a
// store against each row of the table and against the rest of this comment.
//
// # Words
//
// A record is what a store knows of one key. An ownership begins when the store grants an Acquire or a Take, and ends
// with a Release or when its reservation runs out. An ownership consists of terms: Acquire, Take, Resume and Park each
// begin a term, with a new fence. The lease is the time for which the holder may run. The reservation is the time for
// which the store keeps the key for its owner, and never ends before the lease. At any instant of the store's clock a
// key has one state:
//
//	free       the key has no record, a Release has ended the ownership, or the reservation has run out
//	held       the lease has not run out
//	parked     the key is reserved and has no lease: Park has ended the lease, or Take has granted none
//	orphaned   the key is reserved and its lease has run out: the holder died or is cut off
//
// An ownership is live unless its key is free. The record outlives the ownership: see Retention.
//
// # One step
//
// A store judges and applies each item of a call, such as one request of a batch, in one atomic step. If the step frees
// a key, the same step grants the key to the first waiter. The items of a batch may be separate steps.
//
// Only the store's clock counts. A deadline never takes effect early, but may take effect up to one millisecond late,
// so a store may round up. If the clock is set back, deadlines last longer; nothing else changes.
//
// # Fences
//
// A fence is a number from 1 to MaxFence. Each term of a key has a larger fence than all earlier terms of that key,
// even if the store has forgotten the record in between or the clock was set back. A fence has no other meaning. One
// sequence for the whole store is best. A store may instead use the larger of two numbers: the key's last fence + 1,
// and the clock in microseconds. Then fences shrink only if the clock is set back by more than the time for which
// records are remembered.
//
// # Repeated calls
//
// A caller that got no answer sends the same call again, with the same Nonce. The rows named "again" recognise such a
// call: it changes nothing, and its answer is the first answer, as far as the record still shows that answer. Recovered
// may differ. Renew and Reserve have no Nonce, because repeating them does no harm.
//
// A call may arrive late: after its caller has given up, or after later calls. A store judges a late call by the record
// that it finds.
//
// # The transition table
//
// The first row whose condition holds decides. The last column is the record after the call; "same" is the record
// unchanged. Words in capitals are defined below the table. Term is the [Term] of the request. A Term names the
// present term if its Fence is the record's fence, or if its Grant is the Nonce of the call that began the present
// term.
//
//	Every call
//	  foreign            the value at the key is not a record            Foreign   same
//
//	Acquire
//	  taken up           as again; a shorter lease began with the term   OK        LEASE
//	  again              held by Owner; the term began with this Nonce   OK        same
//	  taken              live                                            Held      same; QUEUE
//	  next               no waiter, or this Nonce is first in line       OK        GRANT to the caller
//	  passed on          any other case                                  Held      GRANT to the first in line; QUEUE
//
//	Take
//	  again              parked by Owner with this Nonce, for Job        OK        same
//	  another owner      Patience; another Owner's place has this Nonce  NotOwner  same
//	  full               live; QUEUE would make more than Most places    Full      same
//	  taken              live                                            Held      same; QUEUE
//	  parked             no waiter, or this Nonce is first in line       OK        GRANT to the caller
//	  passed on          any other case                                  Held      GRANT to the first in line; QUEUE
//
//	Resume
//	  no record          the key has no record                           NotFound  same
//	  another owner      the record's owner is not Owner                 NotOwner  same
//	  ended              a Release has ended the ownership               Released  same
//	  another ownership  bound to no job; Fence is set and below First   NotOwner  same
//	  another job        bound to a job, not Job nor, with Unpark, Back  WrongJob  same
//	  again              held; the term began with this Nonce            OK        same
//	  busy               held                                            Busy      same
//	  taken back         live; Unpark                                    OK        TERM; new LEASE; bound to Back
//	  resumed            live                                            OK        TERM; LEASE
//	  recovered          any other case                                  OK        as taken back or resumed; Recovered
//
//	Park
//	  again              parked by Owner with this Nonce, for Job        OK        same
//	  moved              parked by Owner with this Nonce, not for Job    OK        TERM; parked for Reserve; bound to Job
//	  no record          the key has no record                           NotFound  same
//	  another owner      the record's owner is not Owner                 NotOwner  same
//	  ended              a Release has ended the ownership               Released  same
//	  another term       Term does not name the present term             NotOwner  same
//	  late               not held                                        Lapsed    same
//	  parked             any other case                                  OK        TERM; parked for Reserve; bound to Job
//
//	Renew
//	  no record          the key has no record                           NotFound  same
//	  another owner      the record's owner is not Owner                 NotOwner  same
//	  ended              a Release has ended the ownership               Released  same
//	  another term       Term does not name the present term             NotOwner  same
//	  taken back         parked by the call that Grant names             OK        new LEASE; bound to Back
//	  late               not held                                        Lapsed    same
//	  renewed            any other case                                  OK        LEASE; the request's Memo unless nil
//
//	Release (ReleaseOwn, ReleaseIdle)
//	  again              this Nonce ended an ownership in time           OK        same
//	  again, late        this Nonce ended an ownership that had run out  Lapsed    same
//	  no record          the key has no record                           NotFound  same
//	  another owner      the record's owner is not Owner                 NotOwner  same
//	  ended              a Release has ended the ownership               Released  same
//	  another term       Fence or Grant is set; Term names another term  NotOwner  same
//	  another job        Job is set and is not the record's job          WrongJob  same
//	  busy               ReleaseIdle; held                               Busy      same
//	  released           live                                            OK        END
//	  released late      any other case                                  Lapsed    END
//
//	Release (ReleaseForced, ReleaseForcedIdle)
//	  again              this Nonce ended an ownership in time           OK        same
//	  again, late        this Nonce ended an ownership that had run out  Lapsed    same
//	  left               ReleaseForcedIdle; the Grant of Job, waiting    OK        same
//	  passed on          free; a slot other than the first; a job waits  NotFound  GRANT to the first job in line
//	  free               the key is free                                 NotFound  same
//	  another fence      Fence is set and is not the record's fence      NotOwner  same
//	  another job        Job is set and is not the record's job          WrongJob  same
//	  busy               ReleaseForcedIdle; held                         Busy      same
//	  forced             any other case                                  OK        END; if held before, a push to ForcedInbox
//
//	Reserve
//	  no record          the key has no record                           NotFound  same
//	  reserved           live; bound to Job                              OK        reserved for at least Reserve
//	  waits              live; Job waits                                 Held      same; KEEP
//	  next               Job waits, and is first in line                 OK        GRANT to the first in line
//	  passed on          Job waits                                       Held      GRANT to the first in line; KEEP
//	  another job        Job is not the record's job                     WrongJob  same
//	  ended              a Release has ended the ownership               Released  same
//	  reserved again     any other case                                  OK        reserved for Reserve; Recovered
//
// GRANT begins an ownership with the Owner and the Holder of the Acquire or Take, and without a job. The lease and the
// reservation both end TTL from now. The record keeps its memo, and how the previous ownership ended. First is the
// new fence. Since and Changed are now. The GRANT to a Take has no lease: the same step parks the key for Reserve,
// under the same fence, and binds the record to Job.
//
// A GRANT is unheard if it goes to a waiting Acquire, in a call of another caller, while nothing is subscribed to the
// Inbox of that Acquire. The lease and the reservation of an unheard GRANT end with the place, or TTL from now if that
// is earlier, because the waiter has probably died and would block the key. If the waiter lives, it asks before the
// place ends, and row "taken up" gives it a whole lease. The row recognises the lease of an unheard GRANT: such a lease
// began with the term (Renewed equals Changed), and is shorter than the TTL of the Acquire. A store that cannot know
// whether an inbox has a subscriber counts the GRANT as heard.
//
// TERM begins a term with a new fence and this Nonce. A Resume also replaces Holder. Changed is now.
//
// LEASE begins a lease of TTL, and reserves the key for at least Reserve beyond the lease. A longer reservation stays.
// A record shows when its lease began and the TTL even after the lease has run out, so people see how long ago a holder
// last renewed. A new LEASE first drops the reservation that the Park made. A Renew that takes a Park back sets
// Changed, but keeps the fence.
//
// END ends the ownership, its lease and its reservation. Reason is the Reason of the request. Ended is EndedForced for
// ReleaseForced and ReleaseForcedIdle, EndedDone with Done, and EndedReleased in all other cases. Changed is now. If
// there is a waiter, the same step continues with a GRANT to the first in line.
//
// The record remembers the Nonce of the last END, and whether that END was in time. Later ownerships keep this memory,
// because a repeated release must not end a later ownership. After the next GRANT, a store may answer the repeated
// release OK even if the END was late.
//
// QUEUE gives an Acquire with an Inbox, or a Take with Patience, a place: see The queue. A Take gets no place if the
// key is live and bound to the Take's Job.
//
// KEEP makes the place of a waiting job last for at least Reserve from now: see Jobs in the queue.
//
// A Release whose Grant is the Nonce of a place gives up that place, whichever row decides. ReleaseOwn and ReleaseIdle
// give up only a place of the same Owner. The row "left" does not apply if the record is live and bound to Job.
//
// A store grants a key only in the step of a call, not when a deadline passes. So after a reservation has run out, the
// owner can still Resume until the key's next Acquire.
//
// # The queue
//
// An Acquire with an Inbox that gets Held has a place in the key's queue. The waiter keeps the place by sending the
// Acquire again with the same Nonce. The place ends Patience after the last such Acquire, or with a Release whose
// Grant is that Nonce. Jobs have places too: see Jobs in the queue.
//
// The store serves places in the order in which waiters took them. The call that frees the key, or finds it free,
// grants the key to the first waiter whose place has not ended, and drops the places before that one. Then it pushes
// the waiter's Nonce to the waiter's Inbox, unless the call is that waiter's own Acquire.
//
// The waiter finds the grant in the push, or by sending the Acquire again: see rows "taken up" and "again". A push only
// saves the waiter from asking often: without a push, the waiter still asks from time to time. The reply to a repeated
// Acquire is that of an immediate grant, except that Lease is what is left of the lease. The store remembers the record
// until the place has ended, and then for the Retain of the place's request.
//
// Reply.Ahead is the number of places before the caller's place. Ahead may count places that have ended or that a
// Release gave up. Record.Waiters may count places that have ended. A store may limit how many ended places one call
// drops. The limit does not change the call's answer, and the next call drops more places.
//
// The Takes of a batch for one key are served in the order of the batch, however many ended places the calls drop.
//
// # Jobs in the queue
//
// A Take with Patience that gets Held may have a place in the queue, among the places of Acquires. Then the Take's Job
// waits, and no process has to wait on its behalf. The reply sets Now only if the job has a place, and Since to when
// the place was taken. If Since equals Now, the place is new.
//
// The caller makes the Nonce of such a Take from Job alone, so that any process that knows the job can name the place.
// The place belongs to the Owner of the Take: a Take by another Owner changes nothing. The place lasts for Patience
// after the last Take with this Nonce, or as long as a Reserve has asked for. Until the store has dropped a place that
// has ended, a Take or a Reserve can still keep that place.
//
// GRANT to a waiting job parks the key for that job, which a process then has to start. The caller of a Release or a
// Reserve finds the job in Reply.Next. The step pushes key and job to JobsInbox, unless the call is a Release or a
// Reserve with Starts. The index shows a keeper the jobs that no process has started.
//
// A Take that takes or keeps a place writes the job's entry in the index. So the later GRANT need not write one.
//
// After the ownership that a Take got has ended, a Take with the same Nonce is a new Take: it gets a new ownership, or
// a new place behind all other places.
//
// # Slots
//
// Several jobs that wait for a key can run at a time. A key has MaxSlots slots. The first slot is the key itself. The
// other slots are keys too, each with a record of its own: see [SlotKey]. All jobs wait in the queue of the key. No
// Acquire with an Inbox and no Take with Patience names a slot other than the first.
//
// A slot other than the first differs from other keys in two points. First, it shares the queue of the key. A Release
// of the slot gives the slot to the first waiting job, and passes over the places of Acquires. The step of that Release
// drops only places that have ended. Inspect and Line show no places of the slot. Second, the same step writes an entry
// of the index, for the slot and the job. The entry is due after the Grace of the Release, or after half of the job's
// Reserve if that is less.
//
// The entries of a slot are in the same part of the index as those of the key.
//
// # Grants in pushes
//
// A push may carry the Grant, which saves the waiter the call. A store sets Push.Grant only if two conditions hold.
// First, the store is certain that the push is its own: no other program can have made or altered the Grant. Second, an
// Acquire sent again at the time of the push would have been answered OK with this Fence, this Ended and a whole lease.
// For example, a store that answers a grant only after a replica has the record waits for the replica, or leaves Grant
// nil. The push for an unheard GRANT carries no Grant, because a subscriber may receive the push after all. Without
// Grant the waiter asks.
//
// A push with a Grant may still be late or repeated. So the waiter compares fences. The Fence of a Held is the fence
// of the present term, after the call. A larger Grant.Fence therefore belongs to a grant that the store made after it
// answered Held. The lease of such a grant began after the waiter sent the Acquire that was answered Held. A store
// that sets Grant sets the Fence of every Held.
//
// # The index of jobs
//
// The index finds the locks of jobs without reading all records. The index has an entry for each pair of a key and a
// job that the key's record is bound to. A store writes the entry before the step that binds the record, or in that
// step. The entry is due Grace after the store has written it. Park and Take with a Job write an entry. A Resume writes
// an entry if it recovers a job's lock or binds a record to Back. A Reserve writes an entry if it recovers a lock.
// Without that entry, a late reader could recover a lock that no entry leads to, because another reader has removed the
// entry. A waiting job has an entry as well. If a store cannot write the entry, the call returns an error: the record
// is not bound, and there is no place.
//
// No other call adds an entry, except for slots. Only Settle removes entries, but a store may drop an entry that has
// been due for JobKeep. So the index also has entries of locks that have ended, and readers of the index read the
// record too. A reader may skip a record that was read before if Entry.Settled says that the entry was not written
// since.
//
// A store may keep the index in several parts, for example one on each node. Parts is their number, which never
// changes. Each entry is in one part, which depends on nothing but the key. So all entries of a key are in one part.
//
// Several readers share the index without knowing of each other. Due claims the entries that it returns: until the
// claim has ended, no other Due returns these entries. The reader settles the entries before its claims end. A claim
// that no reader settles ends by itself, and then the entry is due. A settled entry has no claim. A Settle changes an
// entry only if the Mark is from the entry's last Due, and the entry has neither been written nor settled since that
// Due. So a late reader, or a repeated Settle, does no harm.
//
// Entries shows the index to people and tools. It claims nothing, so the keepers do not notice.
//
// # Lists
//
// A list begins with the page whose cursor is "". That page has a cursor for each part of the list that follows, and
// each later page has the cursor of the next page of the same part. A page without a cursor ends its part. The parts
// may be read at the same time. A store makes several parts only if each is on another server.
//
// A reader limits what the list costs the other clients of a server. Count bounds how long one call occupies the
// server, and the reader may rest between two pages of a part.
//
// # Seal keys
//
// SealKeys adds each key of Known that the store lacks, with its Since. If the store still has no key, Fresh becomes
// the first key, and its Since is the store's clock. If there are more than MaxSealKeys keys, SealKeys drops the
// oldest. Seal keys are not records: List does not show them. Seal keys do not expire.
//
// # Retention
//
// A store remembers a record for Retain after the end of its reservation, or after its END. The last call that
// changed the record sets Retain. Then the store forgets the record, as if the record had never existed. The rows
// "ended" and "again" need this memory.
//
// A caller that ends a lock need not know how long other callers want the memo. So a store remembers a record with a
// memo after an END at least for the time for which the record would have outlived its reservation without the END.
//
// If Brief is set, a store remembers a record without a memo for Brief after its END. There is one exception: if
// fences come from a clock, a record whose fence is ahead of the clock is remembered for Retain. Without the
// exception the next fence could be smaller.
//
// # Hostile values
//
// A store never writes to a value that is not a record. Calls answer Foreign; Inspect and List show StateForeign.
//
// Keys, owners, labels, jobs and nonces are any UTF-8 text without control characters, within the bounds of this
// package. Two texts are equal only if their bytes are equal. A store escapes a text where the store's own syntax
// requires it.
//
// # Errors
//
// [Store] says what an error means. Package joblock returns the error as ErrUnavailable, and sends the call again with
// the same Nonce. If [ErrRefused] is in the chain of the error, the text of the ErrUnavailable says that the store has
// refused the call. Package joblock returns a *joblock.Error of a store unchanged; a store returns ErrInvalid if it was
// set up wrongly. Package joblock logs errors, so an error must not contain an owner. If a store has a String method,
// joblock's messages for people use it to say where the locks are.
//
// # Compatibility
//
// Any version may add fields to requests, replies and records, and methods to Store. After a new method, a store
// outside this module no longer compiles. That is intended: if such a store did compile, it would silently lack the new
// behaviour. So a store does not embed Store. A wrapper in a test may embed Store.
package driver
