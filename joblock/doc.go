// Package joblock provides locks that can outlive the request that took them:
// a lock serialises into its owner token, travels inside a background job, and
// is resumed, renewed and released by whoever carries the token.
//
// # Using it
//
// A [Locker] takes locks in a [Store] (package redisstore for Redis, memstore
// for one process) and keeps them alive; a [Lock] is one holding of one key.
//
//	locks, err := joblock.New(redisstore.New(rdb, nil), nil)
//	...
//	lock, err := locks.TryAcquire(ctx, "export:acct-7")
//	if errors.Is(err, joblock.ErrHeld) {
//		// somebody else has it; err says who and for how long
//	}
//	defer lock.Release(ctx)
//
// TryAcquire asks once. Acquire waits, bounded by ctx and [MaxWait]. Do is
// Acquire, a function, Release. Most callers want Do, or the middlewares of
// packages handoff and worker.
//
// # The states of a key
//
// Every key has one record in the store:
//
//	          Acquire                     Park
//	┌──────┐ ────────► ┌──────┐ ────────────────────► ┌────────┐
//	│ free │           │ held │                       │ parked │
//	└──────┘ ◄──────── └──────┘ ◄──────────────────── └────────┘
//	    ▲     Release   │    ▲          Resume            │
//	    │               │    │ Resume                     │
//	    │  lease ends,  ▼    │                            │
//	    │            ┌──────────┐                         │
//	    └─────────── │ orphaned │                         │
//	    ▲ the        └──────────┘                         │
//	    │ reservation ends, or the token releases it      │
//	    └─────────────────────────────────────────────────┘
//
// The four are:
//
//   - free: nobody owns the key.
//   - held: a live holder has a lease, which it renews every third of its TTL.
//   - parked: nobody is running; the key is reserved for the token until the
//     reservation ends. This is a lock inside a queued job.
//   - orphaned: the holder's lease ended without a release (it crashed), but the
//     reservation made for its job still stands: only the token can have it.
//
// A plain lock has no reservation beyond its lease: when its holder dies it is
// free one TTL later. Only a lock that was handed over has one, and no longer if the
// hand-over was undone.
//
// An owner token names a chain of holders: the request that acquired, the job
// that resumed, the retry that resumed again. Each link of the chain has its own
// fence, so a link can act only until the next one exists.
//
// # What is promised
//
// Exclusion (P1). Between a successful Acquire or Resume and the trust deadline
// no other holder of the key exists, as long as the store that answers has not
// lost writes it acknowledged. The trust deadline is
//
//	(local time at which the request was sent) + TTL − margin
//
// and never counts from the reply. It is checked against the monotonic clock
// and against the wall clock, whichever ends first, because the monotonic clock
// can stand still while a machine is suspended.
//
// Loss is told (P2). When the lock is lost, or can no longer be trusted, every
// context from [Lock.Context] is cancelled with cause [ErrLost] before the trust
// deadline: an eighth of the margin before it, because timers are late, never
// early. A local timer decides, not the return of a call, so a server that hangs
// changes nothing. A process that was paused past the deadline
// learns it with its first look: Err of such a context compares the clocks itself.
// A holder whose lock [Locker.ForceRelease] takes away finds out at its next
// renewal, or at once with [Config].WatchForced.
//
// Fencing (P3). Every Acquire, Park and Resume of a key gets a strictly larger
// fence, across expiry, restarts of the store and fail-over: the larger of the
// previous fence plus one and the store's clock in microseconds; so not after that clock
// was set back to before a fence that the store has forgotten. Renew, Park and
// Release under an older fence fail and change nothing. Send [Lock.Fence] along
// to the resource you protect and have it refuse smaller numbers: that is what
// still holds when a process is paused at the wrong moment.
//
// Hand-over is atomic (P4). [Lock.Park] moves the lock from the handle to the
// token in one step; after it the handle can do nothing, so a deferred Release
// cannot free a job's lock. [Lock.Reclaim] is the way back when the enqueue failed.
//
// Only the store's clock (P7). No decision compares the clocks of two machines.
//
// Honest errors (P8). Every error is an *[Error] with one code, and errors.Is
// tells the sentinels apart. [Retryable] says whether trying again makes sense.
// A call whose outcome is unknown is [ErrUnavailable], never "held", and what it
// may have left behind is cleaned up in the background.
//
// Calls are idempotent under re-sends: Redis clients repeat a command whose
// reply was lost, so each call carries a nonce and finds its own earlier effect.
//
// # Waiting
//
// A waiting Acquire takes a place in the key's queue in the same call that found
// it busy. Whoever frees the key makes the first in line the owner in the same
// step and pushes a hint to that waiter's process, which asks for its grant: a
// hand-over is one release, one push and one answer, in the order in which the
// waiters came, across processes, and wakes nobody else. One subscription serves all
// waiters of a Locker.
//
// Pushes may be lost, so waiters also ask, once per [Config].Poll or six times in a lease, which keeps
// their place too; the first in line asks when the holder's lease ends. Whoever
// asks serves the first in line: nobody overtakes, TryAcquire neither. The lease
// counts from the answer to that call, less what of it is over by then.
//
// Nothing is believed of a push: whoever may publish to the store's channels can
// make a waiter ask, at most once a second, and a holder look whether it still has
// its lock, at most five times a second, and that is all.
//
// # Several holders
//
// Package limit lets up to n have a key at a time. Package singleflight computes a result
// once in the cluster and shares it. Package memo keeps what a holder leaves for the next.
//
// # The locks of jobs
//
// A lock that is parked for a job is to live as long as the job does. The keeper of
// package worker sees to that for asynq. Whoever writes a keeper for another queue finds
// what it needs in package jobs.
//
// # Watching
//
// [Locker.Status] and [Locker.List] show who has what, by the store's clock and for
// all processes. [Config.Observer] is told, as it happens, of what this process does
// and suffers: one [Event] when a lock is acquired, contended, parked, resumed,
// released, lost, freed or forced, and when renewals are late or have no answer, but
// none for renewals that go well. Packages slogobserver and otelobserver turn them
// into log lines and metrics.
//
// # What is not promised (P9)
//
// Exactly-once execution. Exclusion after the store lost acknowledged writes (a
// fail-over to a replica that lagged, an eviction, a restart without
// persistence) or after its clock jumped forward past a lease. Exclusion for
// code that neither watches the context nor passes the fence on.
//
// FAULTS.md, beside this file, has a row for each fault: what holds, what is seen of
// it, and the test that shows it.
//
// Stored times are the store's. Token contents are a capability: whoever has the
// text can resume or release the lock. Logs, errors and String show a short
// digest of the owner instead; the marshalled forms (text, binary, JSON,
// msgpack) are the token itself.
package joblock
