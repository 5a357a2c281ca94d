// Package torture has only tests: processes that take, wait for, renew, park, resume,
// release and lose locks, while everything around them is being broken, and then a
// look at what they saw. How long, and with which seed:
//
//	JOBLOCK_TORTURE=10m JOBLOCK_SEED=7 go test -v ./internal/torture
//
// Each process has a proxy of its own before one redis-server: connections are cut,
// refused and black-holed, requests and replies dropped and held back for longer than
// a lease. The processes are stopped with SIGSTOP for longer than a lease, and killed.
// The server is stopped, killed and started again with its append-only file, and loses
// its scripts and its subscribers. Its clock is not set: package joblock says what that
// would cost.
//
// Asked for at the end: no two holders at once, growing fences, an order that explains
// all answers (package history), and once leases and reservations are over no key that
// is still locked and no place in a queue.
//
// The seed decides what is done to whom in which order; it does not make a run
// repeatable to the instruction, as the machine and its scheduler play along. A seed
// that found something mostly finds it again.
//
// This is not part of package e2e: there a test is one scenario with one right outcome,
// here every outcome is right that breaks no promise, and a run is as long as one
// likes. It also builds fast, as it reaches no asynq, and package mutants builds it once
// for every rule that it breaks.
package torture
