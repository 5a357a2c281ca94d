// Package worker is the job side of a lock that travels: an asynq middleware
// that resumes the locks a task carries, renews them while its handler runs, and
// releases them when the job is done or has finally failed; and a keeper that sees
// to the locks of tasks that nobody runs.
//
//	w, err := worker.New(locks, asynq.NewInspector(redisOpt), nil)
//	...
//	mux := asynq.NewServeMux()
//	mux.Use(w.Middleware)
//	srv := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10}))
//	go w.Run(ctx) // the keeper
//
// and when the process stops, in this order:
//
//	srv.Shutdown()
//	w.Close(ctx) // the locks of handlers that Shutdown cut short; ends Run
//	locks.Close(ctx)
//
// With srv.Start the program waits for its signal itself. srv.Run(mux) waits for one,
// and has called Shutdown when it returns: go on with w.Close.
//
// Tasks without locks pass through untouched. Register the middleware first, so
// that it is the outermost: what runs outside it runs without the lock. If it is missing,
// or Configure is, or WithoutOverlapping comes before it, Config.Logger hears of that
// when the first task shows it.
//
// # Trust
//
// The right to enqueue a task is not the right to take a lock. What a task carries is
// sealed by handoff, for this task (its queue, ID and type), with a key that lives with
// the locks or with joblock.Config.Secrets. A header that is not genuine counts as absent:
// no token of it is used, the task runs as a task without locks, and Config.Logger hears
// why, as an ERROR, once a minute for each cause:
//
//	the seal does not match     the header is forged or was changed
//	it is of another task       it was copied, as some tracing middlewares do
//	its key is not known here   it is forged; or who enqueues looks at another Redis,
//	                            database or prefix, or has other Secrets, than this Worker
//	another version             it is of a newer build
//
// A key that is not known is looked for in the locks' store, at most once a second. While
// the store does not answer the task is snoozed without charge. With Secrets a task whose
// sealer looks at another store is known to be honest: it counts, Config.Gone decides, as
// its locks are not here, and the log has an ERROR too.
//
// When the locks' store loses all it has, no job is lost. Whoever knows the key puts it
// back: within ten seconds if it enqueues or runs jobs, or as soon as it meets a key that
// it does not know. For a Worker that knows the key the locks are gone, and Config.Gone
// decides. A Worker that was started since, and finds no trace of the key, runs the jobs
// that were sealed with it without their locks, and with the spare retry as one retry more.
//
// What is not kept out: who can write the locks' Redis, or read it and there are no
// Secrets. And who can read and write asynq's Redis can read the tokens of tasks that wait,
// which are of use only with the locks' Redis; can enqueue a task again that was deleted,
// under its own name, with its own header, and with another payload; and can delete tasks,
// which frees their locks. To know an ID is not enough.
//
// # The life of one attempt
//
// The attempt resumes the task's locks under new fences, bound to this very task:
//
//	all resumed               the handler runs; joblock.FromContext(ctx) has the lock,
//	                          LocksFromContext all in the order of the hand-over;
//	                          ctx ends with cause joblock.ErrLost if one is lost;
//	                          Status shows a holder such as "host:123 attempt 2/4"
//	busy                      another attempt still runs: snoozed without charge,
//	                          for two seconds at most
//	held by somebody else     snoozed without charge, for Config.Snooze at most
//	gone                      lapsed, forced, released by a final failure and run
//	                          again: Config.Gone decides
//	done                      by this job (or revoked), which its lock's record shows and
//	                          no reason of a release can say: a duplicate delivery; the
//	                          handler is not called, the task succeeds. A task that asynq
//	                          has completed and somebody has run again runs
//	store unavailable         snoozed without charge
//	with another job, to      snoozed without charge: a handler has handed it over,
//	which the token went on   or handoff is replacing that job by this one
//
// Of a job that handoff's EnqueueUnique has enqueued, a lock that it is to have only
// until it starts is released now, just before the handler is called; that it is gone
// already, as at a retry, does not matter, and neither does Config.Gone. With
// WithoutOverlapping it is kept until that has its own lock: directly inside Middleware
// that is seen to; if somebody else's middleware is in between, register Started as the
// innermost. Of one enqueued by KeepLast the lock that only one of the jobs runs under
// is taken now, and from here on it is carried like the others.
//
// And when the handler has ended:
//
//	nil                       released
//	RevokeTask, SkipRetry     released
//	error on the last attempt released, and the task is archived
//	error before that         parked for the retry's delay and Config.Reserve
//	a lock was lost, and the  snoozed without charge, for the delay of a retry, on the
//	error says so             last attempt too: it matches joblock.ErrLost, or it is
//	                          the error of the context that ended for that
//	panic                     as an error; the panic goes on
//	its context has ended     asynq has moved on (timeout, shutdown, cancellation,
//	                          lost lease): the Inspector is asked what became of
//	                          the task; parked while it lives, released otherwise
//	never called, deadline    released on the last attempt, when asynq finds a task
//	already past              past its deadline
//
// A job whose lock is taken away again and again is tried again and again, at the pace
// of RetryDelayFunc: asynq counts no snoozes, and what takes the lock away is no fault
// of the job's. An error that has nothing to do with the loss is a failure like any other;
// so is the loss of a lock that was no longer renewed, by joblock.Config.MaxRenew or
// StopRenewing: the next run would take just as long.
//
// asynq is told what the handler returned as soon as the locks are settled, and a
// second later at the most, or when half of what was left of the attempt's time has
// passed: a store that hangs costs no job its result. All locks of the task are settled
// at the same time; what takes longer goes on behind asynq, and Close waits for it.
// Until then a next attempt finds the lock busy and is snoozed. A release that has no
// answer is repeated, by the Locker; a park is not, and the reservation stands that the
// attempt had.
//
// asynq does not wait for a handler after its timeout: the next attempt may start
// while it still runs. It then finds the lock busy and is snoozed. The old
// attempt keeps its lease for at most Config.Overrun after its context ended;
// then the lease runs out, the next attempt gets the lock, and whatever the old
// one still does has a smaller fence. If there is no next attempt, the lock is
// freed when the lease has run out.
//
// A process that dies leaves the lock orphaned: reserved for the task until asynq
// recovers it. Renewals carry the reservation along: it stands for Config.Reserve
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
// and asynqmon show one more.
//
// The spare retry does not run. When the last true attempt has ended without its
// middleware, by a timeout, CancelProcessing or a panic, asynq puts the task into the
// retry queue, counts that retry if Config.IsFailure counts the end, and the worker
// archives it there within moments, whether it counts or not: asynq alone archives
// without asking. A crash has no worker to do that: the task comes back once more, is not
// run, and is archived; its last error then begins with "worker: no retries left", and
// the ErrorHandler hears of asynq.ErrLeaseExpired, of which asynq alone tells nobody. If
// the process dies between a timeout on the last attempt and the archive, the job may run
// once more.
//
// An archived task that somebody has run again runs, each time, whatever the run before
// has ended by; that run is its last attempt. While another job has its key it is put
// back like any other, by way of the archive, as asynq has no retry left for it; see
// below. After a rerun that crashed under a lock that the handler had given back early,
// or that it has only until it starts, one more RunTask may be needed: such a delivery
// looks like that of a job whose last attempt has crashed.
//
// This needs Configure. Without it, or for a task with locks that somebody else
// enqueued without the spare retry, a busy lock is waited for in place, as long as the
// task's own timeout lets it.
//
// # The keeper
//
// asynq ends tasks in many ways in which it calls nobody, and has no hook for tasks
// that wait. So Run looks, once in Config.Every, at each lock that is bound to a task
// and that nobody holds, asks the Inspector for the task, and
//
//	pending, scheduled,       prolongs the reservation: Config.Reserve beyond the time at
//	retry, aggregating,       which the task is due, however often; also where it had
//	active                    run out, if nobody has taken the key since
//	archived, completed       frees the lock, if the task carries it or it was parked
//	                          a minute ago or more
//	no such task              frees the lock, if it was parked a minute ago or more:
//	                          the task may still be on its way
//	no such queue             the same, if this process has met the queue before
//	no answer                 leaves the lock alone
//
// A lock is freed only as it was when the task was asked about, while nobody holds
// it. Status shows it as forced, with the reason; the job's next attempt, if a person
// has the task run after all, finds the lock gone, and Config.Gone decides. EXITS.md
// beside this file lists every way in which a task can end, what becomes of its lock
// and within how long, and the test that shows it.
//
// The work is done by one process of the cluster at a time, the one that holds the
// lock on the key "%keeper". It costs two commands to asynq's Redis per lock and round,
// one pipelined read in the locks' store for each 500 of them, and a question every
// second, or ten a round if that is more, for what is due; the locks that are held and
// the keys that are no locks of jobs cost asynq nothing. A round of 10,000 takes about
// a second, one of 100,000 about ten.
//
// The keeper believes the Inspectors that it was given. If the tasks of several asynq
// databases have their locks in one store under one prefix, then every keeper must be
// given all of them, as Config.Inspectors, or the locks of the others' tasks would be
// freed wherever the databases have queues of the same name. Where that cannot be
// done, give each database's locks a prefix of their own, or run no keeper.
//
// Without a keeper a lock that nobody gives back is freed by the end of its
// reservation, and a task that waits for longer than it may find its lock gone.
//
// # Groups
//
// Configure has the task that a group is made into take over the locks of the group's
// members, of those that are genuine: asynq says of no member which task it is, so the
// Inspector is asked for the task that the header was sealed for, which must wait in this
// group with the same header and payload. It carries all of them, up to 1,024; GroupMaxSize bounds them. They are
// bound to it before asynq has it, so that no moment is without an owner, and if asynq
// then refuses it the members keep their locks until the next aggregation. Without
// Configure, or on another server, the locks of aggregated tasks are freed by the
// keeper.
//
// # Locks that tasks do not carry
//
// WithoutOverlapping takes a lock when a task is about to run, on a key made of the
// task, and releases it when the attempt ends. It works for tasks that anybody
// enqueued; with Limit a few may run at a time.
//
//	mux.Use(w.Middleware) // first, where it is used too
//	mux.Use(w.WithoutOverlapping(func(task *asynq.Task) string {
//		return task.Type() // "" if the task needs no lock
//	}, worker.Limit(3)))
//
// Unlike a lock that is carried this one guards attempts, not the job: between two
// attempts it is free, and after a crash as soon as its lease has ended. A task that
// carries the very lock that it wants has it. If it is to give that lock up when it
// starts (handoff.UntilStarted) the attempt fails, with joblock.ErrInvalid: it would run
// without a lock.
//
// A task whose key is busy waits in place, in line with the others, and runs in the
// moment in which the key is released. But it takes up one of the server's Concurrency
// meanwhile, and its own timeout runs. So it waits for MaxWait at the most and for a
// tenth of its timeout, or until no more of that is left than Need says; and unless
// MaxWait is given, a quarter of the server's tasks may wait, rounded up, and the others
// only for half a second while locks here are held for short times. Then it is snoozed without charge and comes back later, at the end of the
// line: after a second if locks here are held for a short time, after Config.Snooze if
// they are held for long.
//
//	busy                        snoozed without charge; DropIfBusy has it succeed, not
//	                            run, and FailIfBusy has the attempt fail
//	store unavailable           snoozed without charge
//	the same on the last        snoozed by way of the archive; with the store away it
//	attempt                     waits in place first
//	the same without Configure  waited for in place, for half of its timeout; then the
//	                            attempt fails, by asynq's rules
//
// asynq archives a task that has no retries left, one with MaxRetry(0) at once, and asks
// nobody. Unless handoff has given it a spare retry, such a task is snoozed by way of
// the archive: asynq archives it, and this process runs it again when the pause is over,
// by Inspector.RunTask: the same task with the same ID, options and asynq.Unique lock.
// What is to be seen of it: the task is in the archive for some seconds, with a last
// error that has "worker: snoozed without charge" in it; asynq counts a failure and
// logs "Retry exhausted", but the ErrorHandler does not hear of it. Who empties the
// archive in those seconds deletes the task. As asynq deletes the oldest of more than ten
// thousand archived tasks, 500 tasks of a process wait there at a time; others are tried
// again at once. If the process dies meanwhile the keeper runs the task again; it knows of it by a lock on the key "%again:" and the job. A task that
// is enqueued with one retry more than its handler is to have does without all this.
//
// A task that carries locks is snoozed with those parked.
//
// A carried lock is its job's until that is done, so two tasks that each carry what the
// other takes here wait for ever: keep the two kinds of keys apart. Two uses of
// WithoutOverlapping on one task let go of each other's keys with each snooze.
//
// # What is not promised
//
// Exactly-once execution: a handler that finished just as the process died, or
// just as its time was up, may run again. An enqueue that takes effect more than a
// minute after its lock was parked may find the lock freed; Config.Gone decides. Locks
// that no keeper has looked at for driver.JobKeep, a day, are left to the end of
// their reservations.
package worker
