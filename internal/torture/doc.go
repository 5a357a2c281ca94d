// Package torture has only tests: processes take, wait for, renew, park, resume, release
// and lose locks, while everything around them is being broken, and then the tests check
// what they saw. How long, and with which seed:
//
//	JOBLOCK_TORTURE=10m JOBLOCK_SEED=7 go test -v ./internal/torture
//
// On a server that has SET with IFEQ, some calls go without a script, and TestTorture fails if none does. At any time
// some of the processes make none, and processes that do take their place: a rolling change of the setting, back and forth.
//
//	make torture SERVER=redis-8
//
// There is a test for each way to set Redis up. They get 60, 20 and 20 percent of
// JOBLOCK_TORTURE:
//
//   - One server, which is stopped, killed and started again with its append-only file.
//   - Sentinel, a master and a replica, without files and with redisstore's Replicas 1:
//     the master is killed and comes back empty, or stopped and comes back as one that
//     takes itself for the master.
//   - A cluster of three masters with a replica each, and Replicas 1: slots with locks
//     and the one with the index of jobs move from master to master, and masters are
//     killed.
//
// On the latter two a release may be undone, and so may a keeper's reservation: these wait
// for no replica, and nothing else is promised of them. All of the rest is.
//
// Each process has its own proxy in front of each server: connections are cut, refused and
// black-holed, requests and replies dropped and held back for longer than a lease. The
// processes are stopped with SIGSTOP for longer than a lease, and killed. Servers lose
// their scripts and their subscribers. Their clocks are not set: package joblock says what
// that would cost.
//
// Locks are plain ones and permits of a limit, parked with and without a job, resumed by
// the right job and by a wrong one, and taken back by the holder that parked them. A keeper
// in each process goes through the index of jobs, and reserves or frees at random. Jobs
// wait in line with other waiters, ask again, leave, are forgotten, and come under another
// token; the caller that gives a key to a job starts it, or a process that listens does. A
// key has three slots, and now and then a process gives the free ones to the first jobs in
// its line. On one server locks are also forced away.
//
// Checked at the end: no two holders at once nor more than there are permits, growing
// fences, no key given to another caller while a job had waited longer, an order that
// explains all answers (package history), and, once leases and reservations have ended, no
// key that is still locked, no place in a queue and no entry in the index.
//
// The seed decides which faults and calls come in which order. It does not make a run
// repeatable to the instruction, because the machine and its scheduler also have an
// influence. A seed that found a fault mostly finds it again.
//
// This is not part of package e2e: there a test is one scenario with one right outcome;
// here every outcome is right that breaks no promise, and a run is as long as you like. It
// also builds fast, because it does not use asynq, and package mutants builds it once for
// every rule that it breaks.
package torture
