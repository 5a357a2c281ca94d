// Package worker is the job side of a lock that travels: an asynq middleware
// that resumes the locks a task carries, renews them while its handler runs, and
// releases them when the job is done or has finally failed.
//
//	w, err := worker.New(locks, asynq.NewInspector(redisOpt), nil)
//	...
//	mux := asynq.NewServeMux()
//	mux.Use(w.Middleware)
//	srv := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10}))
//
// and when the process stops, in this order:
//
//	srv.Shutdown()
//	w.Close(ctx) // the locks of handlers that Shutdown cut short
//	locks.Close(ctx)
//
// Tasks without locks pass through untouched. Register the middleware first, so
// that it is the outermost: what runs outside it runs without the lock.
//
// # The life of one attempt
//
// The attempt resumes the task's locks under new fences, bound to this very task:
//
//	all resumed               the handler runs; LockFrom(ctx) has the lock, and ctx
//	                          ends with cause joblock.ErrLost if it is lost
//	busy                      another attempt still runs: put back without charge,
//	                          for two seconds at most
//	held by somebody else     put back without charge, for Config.PutBack at most
//	gone                      lapsed, forced, released by a final failure and run
//	                          again: Config.Gone decides
//	released as done          by this job (or as revoked): a duplicate delivery; the
//	                          handler is not called, the task succeeds
//	store unavailable         put back without charge
//
// and when the handler has ended:
//
//	nil                       released
//	RevokeTask, SkipRetry     released
//	error on the last attempt released, and the task is archived
//	error before that         parked for the retry's delay and Config.Hold
//	panic                     as an error; the panic goes on
//	its context has ended     asynq has moved on (timeout, shutdown, cancellation,
//	                          lost lease): the Inspector is asked what became of
//	                          the task; parked while it lives, released otherwise
//	never called, deadline    released on the last attempt, when asynq finds a task
//	already past              past its deadline
//
// asynq does not wait for a handler after its timeout: the next attempt may start
// while it still runs. It then finds the lock busy and is put back. The old
// attempt keeps its lease for at most Config.Overrun after its context ended;
// then the lease runs out, the next attempt gets the lock, and whatever the old
// one still does has a smaller fence. If there is no next attempt, the lock is
// freed when the lease has run out.
//
// A process that dies leaves the lock orphaned: reserved for the task until asynq
// recovers it. Renewals carry the reservation along: it stands for Config.Hold
// beyond the lease as last renewed, however long the handler had run.
//
// A process that is stopped leaves it parked, and the next attempt can have it at
// once: see Close for why the server's Shutdown is not enough for that.
//
// A handler may release its lock early, or hand it over to another task with Park;
// what becomes of its own task then leaves the lock alone. A retry of a task that
// has handed its lock over waits until the other one is done.
//
// # Contention never costs a job
//
// A task whose lock is busy is neither failed nor charged a retry, whatever its
// MaxRetry. asynq archives a task with no retries left before it asks whether
// the error counts, so handoff enqueues with one spare retry and tells the
// worker the true number; asynq.GetMaxRetry inside the handler and the
// ErrorHandler, and MaxRetry of this package, give the true one. The Inspector
// and asynqmon show one more. An attempt that ended without its middleware (a
// timeout, a crash, a panic) on the last true retry comes back once more, is not
// run, and is archived; its last error then begins with "worker: no retries left".
// If Config.IsFailure of the server does not count such an end, the attempt is
// repeated. An archived task that somebody has run again gets one more last
// attempt.
//
// This needs Configure. Without it, or for a task that somebody else enqueued
// without the spare retry, a busy lock is waited for in place, as long as the
// task's own timeout lets it.
//
// # What is not promised
//
// Exactly-once execution: a handler that finished just as the process died, or
// just as its time was up, may run again. Locks on paths where no code of this
// process runs (asynq's recoverer archiving a task without a spare retry, deletion
// by the Inspector) are freed by the end of their reservation.
package worker
