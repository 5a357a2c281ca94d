// Package joblock provides locks that can outlive the request that took them. A lock marshals to its token, which
// travels inside a background job. The bearer of the token can resume, renew and release the lock.
//
// # Using it
//
// A [Locker] takes locks in a store and keeps them alive. Package redisstore has the store for Redis, and package
// memstore one for a single process. Package driver says what a store must do. A [Lock] is a lock on one key.
//
//	store, err := redisstore.New(rdb, nil)
//	...
//	locks, err := joblock.New(store, nil)
//	...
//	lock, err := locks.TryAcquire(ctx, "export:acct-7")
//	if errors.Is(err, joblock.ErrHeld) {
//		// another owner has the lock; err says who, and for how long
//	}
//	defer lock.Release(ctx)
//
// [Locker.TryAcquire] asks once. [Locker.Acquire] waits, at most as long as ctx and [MaxWait] allow. [Locker.Do]
// acquires, runs a function, and releases. Most callers want Do, or the middlewares of packages handoff and worker. The
// comment of [Option] has a table of the calls and their options.
//
// # The states of a key
//
// Every key has one record in the store, in one of four states:
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
// In detail:
//
//   - free: the key has no owner.
//   - held: a live holder has a lease. The holder renews the lease every third of its TTL.
//   - parked: no holder is running. The key is reserved for the token until the reservation ends. The lock of a queued
//     job is parked.
//   - orphaned: the holder crashed, so its lease ended without a release. The reservation for its job has not ended:
//     only the token can get the key.
//
// Only a lock that was handed over has a reservation, which ends if the hand-over is undone. A plain lock is free one
// TTL after its holder has died.
//
// An owner token names a chain of holders: the request that acquired the lock, the job that resumed it, the retry that
// resumed it again. Each holder has its own fence, a number larger than those of all earlier holders, and can act only
// until there is a next holder.
//
// # What is promised
//
// Exclusion (P1). From a successful Acquire or Resume to the trust deadline, no other holder of the key exists, as long
// as the store loses no write that it has acknowledged. The trust deadline is
//
//	(local time at which the request was sent) + TTL − margin
//
// The time of the reply does not matter. The deadline has passed when either the monotonic clock or the wall clock has
// reached it: the monotonic clock can stand still while a machine is suspended.
//
// Loss is signalled (P2). When the lock is lost, or can no longer be trusted, every context from [Lock.Context] is
// cancelled with cause [ErrLost]. The cancellation comes an eighth of the margin before the trust deadline, because
// timers are late, never early. A local timer decides, so a server that hangs changes nothing. If the process was
// paused past the deadline, the context's Err method is right at once, because it reads the clocks itself. After
// [Locker.ForceRelease] the holder finds out at its next renewal, or at once with [Config].WatchForced.
//
// Fencing (P3). Every Acquire, Park and Resume of a key gets a strictly larger fence, also after expiry, a restart of
// the store and a fail-over. There is one exception: if the store's clock was set back, a key whose record the store
// has forgotten may get a smaller fence. Renew, Park and Release under an older fence fail and change nothing. Send
// [Lock.Fence] to the resource that the lock protects, and let the resource refuse a number smaller than one it has
// seen. Fences protect the resource even when a process is paused at the wrong moment.
//
// Hand-over is atomic (P4). [Lock.Park] moves the lock from the handle to the token in one step. After Park the handle
// can do nothing, so a deferred Release cannot free a job's lock. [Lock.Reclaim] undoes Park when the enqueue failed.
//
// Only the store's clock counts (P7). No decision compares the clocks of two machines.
//
// Honest errors (P8). Every refusal and every failure is an *[Error] with one code, and matches one of the sentinel
// errors, such as [ErrHeld]. [Retryable] reports whether the same call may succeed later. A call whose outcome is
// unknown returns [ErrUnavailable], never [ErrHeld], and the effects of the call in the store are cleaned up in the
// background. An error that is not an *Error comes only from a call whose context has ended. Such an error matches the
// context's cause, and says nothing about the lock.
//
// Calls are idempotent. Redis clients send a command again when the reply was lost. Each call carries a nonce, by which
// the store finds what the first copy of the command has done.
//
// # Waiting
//
// An Acquire that finds the key busy takes a place in the key's queue. The call that frees the key grants it to the
// first waiter in line in the same step, and pushes a message to that waiter's process. If the store can rule out that
// another program has forged the push, the push carries the grant, so passing the lock on takes one release and one
// push. Otherwise the waiter asks the store for its grant. No other waiter is woken. Waiters of all processes are
// served in order of arrival. One subscription serves all waiters of a Locker.
//
// Pushes may be lost, so waiters also poll the store, once per [Config].Poll or, if that is more often, six times per
// lease. Each poll keeps the waiter's place. The first few in line also ask when the holder's lease ends. Every Acquire
// or TryAcquire that finds the key free grants it to the first in line, so no caller overtakes another. A waiter's
// lease begins when the store makes the grant, not when the waiter asks.
//
// A waiter that dies keeps its place for three polls, and a key that becomes free in that time is granted to it. The
// store usually knows that the grant reaches no process: memstore and redisstore count the subscribers, and the
// connection of a process that has died is closed. Then the lease ends with the place, and the next waiter gets the
// key. If the waiter is alive after all, it asks in time, and gets a whole lease. If a machine dies or is cut off
// without closing its connections, the key is busy for the dead waiter's TTL. In a cluster, this also happens if the
// waiter died before its first poll.
//
// A push without a grant is a hint and proves nothing. A forged push costs one call to the store. Pushes make a waiter
// ask at most once a second, and make a holder check its lock at most five times a second. A push with a grant may be
// late or repeated, so a waiter takes a grant only if the grant's fence is larger than the fence in the waiter's latest
// refusal. The lease then counts from the time at which the waiter sent the refused request. In three cases the waiter
// asks the store even after a push with a grant: it sent that request at least a third of a lease ago, it needs the
// memo of package memo, or its lock is not renewed.
//
// # Several holders
//
// Package limit lets up to n callers have a key at a time. Package singleflight computes a result once in the cluster
// and shares it. Package memo keeps data that a holder leaves for the next holder.
//
// # The locks of jobs
//
// A lock that is parked for a job should live as long as the job. For asynq, the keeper of package worker ensures this.
// Package jobs is for writing a keeper for another queue.
//
// # Watching
//
// [Locker.Status] and [Locker.List] show who has which key, by the store's clock and for all processes.
// [Config].Observer receives the events of this process, whose kinds are in package event. Packages slogobserver and
// otelobserver make log lines and metrics of events. With [Config].Tracer a request and its job are one trace.
//
// # What is not promised (P9)
//
// These are not promised:
//
//   - exactly-once execution;
//   - exclusion after the store has lost acknowledged writes, for example by a fail-over to a replica that lagged, an
//     eviction, or a restart without persistence;
//   - exclusion after the store's clock has jumped forward past the end of a lease;
//   - exclusion between processes for functions that package fallback runs while the store is unreachable;
//   - exclusion for code that neither watches the context nor passes the fence on.
//
// FAULTS.md, next to this file, has a row for each fault, with the promises that hold, how the fault shows, and its
// test.
//
// A token is a capability: its bearer can resume or release the lock. Logs, errors and String show a short digest of
// the owner. The marshalled forms (text, binary, JSON, msgpack) of a [Token] or a [Lock] are the token itself.
package joblock
