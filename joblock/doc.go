// Package joblock provides locks that can outlive the request that took them. A lock
// serialises into its owner token and travels inside a background job. Whoever carries
// the token can resume, renew and release the lock.
//
// # Using it
//
// A [Locker] takes locks in a store and keeps them alive. Package redisstore has the
// store for Redis, memstore one for a single process, driver what a store must do. A
// [Lock] is one holding of one key.
//
//	locks, err := joblock.New(redisstore.New(rdb, nil), nil)
//	...
//	lock, err := locks.TryAcquire(ctx, "export:acct-7")
//	if errors.Is(err, joblock.ErrHeld) {
//		// somebody else has it; err says who and for how long
//	}
//	defer lock.Release(ctx)
//
// TryAcquire asks once. Acquire waits, bounded by ctx and [MaxWait]. Do is Acquire, a
// function, Release. Most callers want Do, or the middlewares of packages handoff and
// worker. [Option] has a table of which call takes which option.
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
// The states are:
//
//   - free: nobody owns the key.
//   - held: a live holder has a lease, which it renews every third of its TTL.
//   - parked: nobody is running; the key is reserved for the token until the
//     reservation ends. This is a lock inside a queued job.
//   - orphaned: the holder's lease ended without a release (it crashed), but the
//     reservation made for its job still stands: only the token can have it.
//
// Only a lock that was handed over has a reservation, which it loses if the hand-over is
// undone. A plain lock is free one TTL after its holder has died.
//
// An owner token names a chain of holders: the request that acquired, the job that
// resumed, the retry that resumed again. Each of them has a fence of its own, and can
// act only until the next one exists.
//
// # What is promised
//
// Exclusion (P1). Between a successful Acquire or Resume and the trust deadline no other
// holder of the key exists, as long as the store has not lost writes that it
// acknowledged. The trust deadline is
//
//	(local time at which the request was sent) + TTL − margin
//
// and never counts from the reply. It has passed when the monotonic clock or the wall
// clock says so: the monotonic clock can stand still while a machine is suspended.
//
// Loss is told (P2). When the lock is lost, or can no longer be trusted, every context
// from [Lock.Context] is cancelled with cause [ErrLost]. This happens an eighth of the
// margin before the trust deadline, because timers are late, never early. A local timer
// decides, not the return of a call, so a server that hangs changes nothing. In a process
// that was paused past the deadline, Err of such a context compares the clocks itself and
// is right at once. After [Locker.ForceRelease] the holder finds out at its next renewal,
// or at once with [Config].WatchForced.
//
// Fencing (P3). Every Acquire, Park and Resume of a key gets a strictly larger fence,
// across expiry, restarts of the store and fail-over. The exception is a store whose
// clock was set back to before a fence that it has forgotten. Renew, Park and Release
// under an older fence fail and change nothing. Send [Lock.Fence] along to the resource
// you protect, and let it refuse smaller numbers: that holds even when a process is
// paused at the wrong moment.
//
// Hand-over is atomic (P4). [Lock.Park] moves the lock from the handle to the token in
// one step. After it the handle can do nothing, so a deferred Release cannot free a job's
// lock. [Lock.Reclaim] is the way back when the enqueue failed.
//
// Only the store's clock (P7). No decision compares the clocks of two machines.
//
// Honest errors (P8). Every refusal and every failure is an *[Error] with one code, and
// errors.Is tells the sentinels apart. [Retryable] tells whether the same call may succeed
// later. A call whose outcome is unknown is [ErrUnavailable], never "held"; what it may
// have left behind is cleaned up in the background. If a call ends only because the
// caller's context has ended, the error matches the context's cause and is no *Error: it
// says nothing about the lock.
//
// Calls are idempotent. Redis clients send a command again when its reply was lost; each
// call carries a nonce by which the store finds what the first one has done.
//
// # Waiting
//
// An Acquire that finds the key busy takes a place in its queue. Whoever frees the key
// makes the first in line the owner in the same step, and pushes a hint to that waiter's
// process. The waiter then asks for its grant. So a hand-over is one release, one push
// and one answer, and wakes nobody else. Waiters of all processes are served in the order
// in which they came. One subscription serves all waiters of a Locker.
//
// Pushes may be lost, so waiters also ask by themselves: once per [Config].Poll, or six
// times in a lease where that is more often. That keeps their place. The first in line
// asks when the holder's lease ends, too. Whoever asks serves the first in line: nobody
// overtakes, not even TryAcquire. A waiter's lease begins when it is granted, not when
// the waiter asks.
//
// A push is a hint and proves nothing. A forged one costs a call to the store, no more:
// a waiter asks because of it at most once a second, and a holder checks its lock at
// most five times a second.
//
// # Several holders
//
// Package limit lets up to n have a key at a time. Package singleflight computes a result
// once in the cluster and shares it. Package memo keeps what a holder leaves for the next.
//
// # The locks of jobs
//
// A lock that is parked for a job should live as long as the job. For asynq, the keeper of
// package worker ensures that. Package jobs is for writing a keeper for another queue.
//
// # Watching
//
// [Locker.Status] and [Locker.List] show who has what, by the store's clock and for all
// processes. [Config].Observer is told of what happens in this process: package event has
// the kinds. Packages slogobserver and otelobserver make log lines and metrics of them.
//
// # What is not promised (P9)
//
// Exactly-once execution. Exclusion after the store lost acknowledged writes (a
// fail-over to a replica that lagged, an eviction, a restart without
// persistence) or after its clock jumped forward past a lease. Exclusion for
// code that neither watches the context nor passes the fence on.
//
// FAULTS.md, beside this file, has a row for each fault: what still holds, how the fault
// shows, and the test.
//
// A token is a capability: whoever has one can resume or release the lock. Logs, errors
// and String show a short digest of the owner. The marshalled forms (text, binary, JSON,
// msgpack) of a [Token] or a [Lock] are the token itself.
package joblock
