// Package joblocktest is for tests of an application's own handlers, jobs and schedules. It needs no server.
//
//	k := joblocktest.New(t, nil)
//	ctx := k.Context(joblock.Key("export", "acct-7")) // under a lock, as in a handler or in a job
//	err := export(ctx, task)
//
// k.Locks is a Locker like any other, whose store is the memory of the test. So handoff.Middleware, handoff.Guard,
// scheduler.New and all other functions that want a Locker work with it. joblock.FromContext and
// joblock.LocksFromContext find the locks in the contexts that the Kit returns. docs/testing.md covers testing in full,
// including asynq.
//
//	Kit.Context   a context with locks, as the work under these locks gets it
//	Kit.Hold      another holder has the lock: the code under test finds the key busy
//	Kit.Lose      the lock is lost while the work runs: its context ends with cause joblock.ErrLost
//	Kit.Fail      the store does not answer: joblock.ErrUnavailable
//	Kit.Advance   the store's clock moves: leases and reservations end
//	Kit.Status    what the store knows of a key
//	Kit.Go        a scheduler, or another function that runs until its context ends
//
// # Time
//
// The store's clock is the process's clock plus what Advance has added. Holders renew their leases by the process's
// clock: so after Advance the lease of a lock that is held may have ended, as after a pause of the holder's process.
// Other callers can then take the key, and the holder notices the loss at its next renewal.
//
// In a bubble of testing/synctest both clocks are that of the bubble. Make the Kit inside of the bubble. There, a day
// of a schedule takes milliseconds, because time moves forward as soon as every goroutine of the bubble waits.
//
// The Locker does not warn, as other Lockers on a memstore do, that other processes do not see its locks: this package
// is for tests.
package joblocktest
