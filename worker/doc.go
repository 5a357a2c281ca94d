// Package worker is the job side of a lock that travels. It has two parts. An asynq
// middleware resumes the locks that a task carries, renews them while the handler runs,
// and releases them when the job is done or has finally failed. A keeper looks after the
// locks of tasks that nobody runs.
//
//	w, err := worker.New(locks, asynq.NewInspector(redisOpt), nil)
//	...
//	mux := asynq.NewServeMux()
//	mux.Use(w.Middleware)
//	srv := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10}))
//	go w.Run(ctx) // the keeper
//
// When the process stops, in this order:
//
//	srv.Shutdown()
//	w.Close(ctx) // settles the locks of handlers that Shutdown cut short; ends Run
//	locks.Close(ctx)
//
// With srv.Start the program waits for its signal itself. srv.Run(mux) waits for one and
// has called Shutdown when it returns: go on with w.Close.
//
// Tasks without locks pass through untouched. Register Middleware first, as the outermost:
// what runs outside of it runs without the lock. If Middleware or Configure is missing, or
// WithoutOverlapping is registered before Middleware, Config.Logger hears of it with the
// first task.
//
// To snooze a task is to give it back to asynq for a while without charging it a retry.
//
// # Trust
//
// The right to enqueue a task is not the right to take a lock. handoff seals the header for
// this one task: its queue, ID and type. The key of the seal lives with the locks, or is
// derived from joblock.Config.Secrets. A header that is not genuine counts as absent. The
// task runs as a task without locks, and Config.Logger hears why: an ERROR, once a minute
// for each cause.
//
//	the seal does not match     forged, or changed
//	sealed for another task     copied, as some tracing middlewares do
//	the key is not known here   forged; or the enqueuing side uses another Redis, database,
//	                            prefix or Secrets than this Worker
//	another version             from a newer build
//
// An unknown key is searched for in the locks' store, at most once a second. While the
// store does not answer the task is snoozed. With Secrets a Worker also accepts an honest
// task whose sealer uses another store, and logs an ERROR. The task's locks are not here,
// so Config.Gone decides.
//
// When the locks' store loses all its data, no job is lost. A process that knows the key
// puts it back: within ten seconds if it enqueues or runs jobs, or as soon as it meets an
// unknown key. For a Worker that knows the key the locks are gone, and Config.Gone decides.
// A Worker that was started later, and does not find the key, runs the jobs that were
// sealed with it, without locks and with one retry more.
//
// The seal does not stop everybody. Knowing a task's ID is not enough, but:
//
//	who can                       can
//	write the locks' Redis        do anything
//	read it, without Secrets      do anything
//	write asynq's Redis           delete tasks, which frees their locks
//	read and write asynq's Redis  also enqueue a deleted task again, with its ID and header
//	                              but another payload. The tokens that it can read are of
//	                              use only together with the locks' Redis
//
// # The life of one attempt
//
// An attempt first resumes the task's locks, bound to this very task, under new fences:
//
//	all resumed               the handler runs. joblock.FromContext(ctx) returns the lock,
//	                          LocksFromContext all of them in the order of the hand-over.
//	                          ctx ends with cause joblock.ErrLost if one is lost. Status
//	                          shows a holder such as "host:123 attempt 2/4"
//	busy                      another attempt still runs: snoozed for two seconds at most
//	held by somebody else     snoozed for Config.Snooze at most
//	gone                      it has lapsed, was forced, or was released by a final failure
//	                          before the task was run again: Config.Gone decides
//	done                      by the lock's record this job is done, or was revoked: a
//	                          duplicate delivery. The task succeeds without being run. But
//	                          if asynq has it as completed somebody has run it again: it
//	                          runs
//	store unavailable         snoozed
//	moved to another job      snoozed: a handler has handed the lock over, or handoff is
//	                          replacing that job by this one
//
// A job enqueued by handoff.EnqueueUnique can have a lock only until it starts. That lock
// is released now, just before the handler is called, or with WithoutOverlapping when that
// has its own lock. If it is gone already, as at a retry, that does not matter, and
// Config.Gone is not asked. If another package's middleware follows Middleware, register
// Started as the innermost. A job enqueued with handoff.KeepLast takes a second lock now,
// which it carries from here on like the others.
//
// When the handler has ended:
//
//	nil                       released
//	RevokeTask, SkipRetry     released
//	error on the last attempt released, and the task is archived
//	error before that         parked for the retry's delay and Config.Reserve
//	a lock was lost, and the  snoozed for the delay of a retry, on the last attempt too.
//	error says so             The error matches joblock.ErrLost, or is that of the context
//	                          that ended because of the loss
//	panic                     as an error; the panic goes on
//	its context has ended     asynq has moved on (timeout, shutdown, cancellation, lost
//	                          lease). The Inspector is asked for the task: parked while
//	                          the task lives, released otherwise
//	never called, deadline    released on the last attempt, when asynq finds a task past
//	already past              its deadline
//
// A job whose lock is taken away again and again is tried again and again, at the pace of
// RetryDelayFunc: asynq counts no snoozes, and the job is not to blame. Two kinds of errors
// are failures like any other: an error that has nothing to do with the loss, and the loss
// of a lock that was no longer renewed, because of joblock.Config.MaxRenew or StopRenewing.
// After such a loss the next run would take just as long.
//
// asynq hears the handler's result as soon as the locks are settled, after a second at
// most, and within half of the time that the attempt has left: a store that hangs costs no
// job its result. What takes longer goes on in the background, and Close waits for it.
// Until then the next attempt finds the lock busy and is snoozed. The Locker repeats a
// release that had no answer. It does not repeat a park; then the attempt's reservation
// stands.
//
// asynq does not wait for a handler after its timeout, so the next attempt may start while
// the old one still runs. It finds the lock busy and is snoozed. The old attempt keeps its
// lease for at most Config.Overrun after its context ended. When the lease has run out the
// next attempt gets the lock, under a greater fence than the old one's. If there is no next
// attempt, the lock is freed then.
//
// A process that dies leaves the lock orphaned: reserved for the task until asynq recovers
// it. Each renewal prolongs the reservation, to Config.Reserve beyond the lease. A process
// that is stopped leaves the lock parked, and the next attempt gets it at once. That takes
// Close; the server's Shutdown alone is not enough.
//
// A handler may release its lock early, or hand it over to another task with Park. Its own
// task then leaves the lock alone. A retry of a task that has handed its lock over waits
// until the other task is done.
//
// # Contention never costs a job
//
// A task whose lock is busy does not fail and is not charged a retry, whatever its
// MaxRetry. But asynq archives a task that has no retries left before it asks whether the
// error counts. So handoff enqueues every task with one spare retry, and tells the worker
// the author's number. asynq.GetMaxRetry returns that, in the handler and in the
// ErrorHandler. The Inspector and asynqmon show one more.
//
// The spare retry does not run:
//
//	the last attempt ended by   asynq sets the task to retry, and counts that if
//	timeout, CancelProcessing   Config.IsFailure says so. The worker archives the task
//	or panic                    within moments, counted or not, as asynq alone would
//	it ended by a crash         the task comes back once more, is not run, and is archived.
//	                            Its last error then begins with "worker: no retries left".
//	                            The ErrorHandler hears of asynq.ErrLeaseExpired; asynq
//	                            alone tells nobody
//	the process dies between    the job may run once more
//	timeout and archive
//
// RunTask runs an archived task each time, however the run before has ended. That run is
// its last attempt. While another job has its key it is snoozed, by way of the archive; see
// below. After a rerun that crashed, RunTask may be needed twice, if the handler had given
// its lock back early or has it only until it starts: such a delivery looks like that of a
// job whose last attempt has crashed.
//
// This needs Configure. Without it, or for a task that somebody else has enqueued with
// locks but no spare retry, a busy lock is waited for in place, for as long as the task's
// timeout allows.
//
// # The keeper
//
// asynq ends tasks in many ways without calling anybody, and has no hook for tasks that
// wait. So Run checks, once in Config.Every, each lock that is bound to a task and that
// nobody holds. It asks the Inspector for the task:
//
//	pending, scheduled,       prolongs the reservation, to Config.Reserve beyond the time
//	retry, aggregating,       at which the task is due. Also if it had run out and nobody
//	active                    has taken the key since
//	archived, completed       frees the lock, if the task carries it or it was parked
//	                          a minute ago or more
//	no such task              frees the lock, if it was parked a minute ago or more:
//	                          the task may still be on its way
//	no such queue             the same, if this process has met the queue before
//	no answer                 leaves the lock alone
//
// The keeper frees a lock only if it is as it was when the task was asked about, and nobody
// holds it. Status shows it as forced, with the reason. If a person runs the task after
// all, its next attempt finds the lock gone, and Config.Gone decides. EXITS.md beside this
// file lists every way in which a task can end: what becomes of its lock, within how long,
// and the test that shows it.
//
// One process of the cluster works at a time: the holder of the lock on the key "%keeper".
// Per round it costs two commands to asynq's Redis for each lock, one pipelined read of the
// locks' store for each 500 locks, and one more read every second, or ten in a round if
// that is more. Locks that are held, and keys that are not locks of jobs, cost
// asynq nothing. A round of 10,000 locks takes about a second, one of 100,000 about ten.
//
// The keeper believes the Inspectors that it was given. If several asynq databases have
// their locks in one store under one prefix, give every keeper all of them, as
// Config.Inspectors. Otherwise it frees locks of the others' tasks, if the databases have
// queues of the same name. Where that cannot be done, give each database's locks a prefix
// of their own, or run no keeper.
//
// Without a keeper, a lock that nobody gives back is freed when its reservation ends, and
// a task that waits for longer than its reservation may find its lock gone.
//
// # Groups
//
// With Configure, the task that a group is aggregated into takes over the locks of the
// group's members. asynq does not say which task a member is. So the Inspector is asked for
// the task that the member's header was sealed for: it must wait in this group, with the
// same header and payload. The new task carries up to 1,024 locks; GroupMaxSize bounds
// them. They are bound to it before asynq has it, so they always have an owner. If asynq
// then refuses the task, the members keep their locks until the next aggregation. Without
// Configure the keeper frees the locks of aggregated tasks.
//
// # Locks that tasks do not carry
//
// WithoutOverlapping takes a lock when a task is about to run, on a key made of the task,
// and releases it when the attempt ends. It works for tasks that anybody has enqueued. With
// Limit a few may run at a time.
//
//	mux.Use(w.Middleware) // first, where it is used too
//	mux.Use(w.WithoutOverlapping(func(task *asynq.Task) string {
//		return task.Type() // "" if the task needs no lock
//	}, worker.Limit(3)))
//
// A carried lock guards the job. This one guards attempts: it is free between two of them,
// and after a crash as soon as its lease has ended. A task that carries the very lock that
// it wants has it already. If it is to give that lock up when it starts
// (handoff.UntilStarted), the attempt fails with joblock.ErrInvalid: it would run without
// a lock.
//
// A task whose key is busy waits in place, in line with the others, and runs in the moment
// in which the key is released. Meanwhile it takes up one of the server's Concurrency, and
// its own timeout runs. So the wait is bounded:
//
//	MaxWait                     the longest wait. Not given: 3 s for a quarter of the
//	                            server's tasks at a time, rounded up. The others wait half
//	                            a second while locks are held for short times, and else
//	                            not at all
//	Need                        the part of the task's timeout that must be left: nine
//	                            tenths by default
//
// After that the task is snoozed, and comes back at the end of the line: after a second if
// locks here are held for a short time, after Config.Snooze if they are held for long.
//
//	busy                        snoozed. With DropIfBusy it succeeds without being run,
//	                            with FailIfBusy the attempt fails
//	store unavailable           snoozed
//	the same on the last        snoozed by way of the archive; while the store is away it
//	attempt                     waits in place first
//	the same without Configure  waited for in place, for half of its timeout; then the
//	                            attempt fails, by asynq's rules
//
// By way of the archive: asynq archives a task that has no retries left, and asks nobody.
// So a task without a spare retry is snoozed like this: asynq archives it, and when the
// pause is over this process calls Inspector.RunTask. It is the same task, with the same
// ID, options and asynq.Unique lock. What can be seen of it:
//
//   - The task is in the archive for some seconds. Its last error has "worker: snoozed
//     without charge" in it. Who empties the archive in those seconds deletes the task.
//   - asynq counts a failure and logs "Retry exhausted". The ErrorHandler does not hear
//     of it.
//   - asynq deletes the oldest of more than 10,000 archived tasks. So at most 500 tasks of
//     a process wait in the archive at a time; others are tried again at once.
//   - If the process dies meanwhile, the keeper runs the task again. It knows of it by a
//     lock on the key "%again:" and the job.
//
// A task that is enqueued with one retry more than needed does not go this way. A task that
// carries locks is snoozed with those parked.
//
// A carried lock belongs to its job until that is done. So two tasks wait for ever if each
// carries the lock that the other takes here: keep the two kinds of keys apart. Two uses of
// WithoutOverlapping on one task are safe: each snooze lets go of both keys.
//
// # What is not promised
//
// Exactly-once execution: a handler that finished just as the process died, or just as its
// time was up, may run again. An enqueue that takes effect more than a minute after its
// lock was parked may find the lock freed; Config.Gone decides. Locks that no keeper has
// checked for a day are left to the end of their reservations.
package worker
