// Package worker is the job side of a lock that travels with a task. It has two parts. The asynq middleware
// Worker.Middleware resumes the locks that a task carries, renews them while the handler runs, and releases them when
// the job is done or has failed for good. The keeper, Worker.RunKeeper, looks after the locks of tasks that no worker
// runs.
//
//	w, err := worker.New(locks, asynq.NewInspector(redisOpt), nil)
//	...
//	mux := asynq.NewServeMux()
//	mux.Use(w.Middleware)
//	srv := asynq.NewServer(redisOpt, w.Configure(asynq.Config{Concurrency: 10}))
//	go w.RunKeeper(ctx) // the keeper
//
// Process.NewServer in package toolkit, at the root of the module, does all this in one call, and Process.Close does
// all that follows.
//
// A program that uses srv.Start stops in this order. With srv.Run, which calls Shutdown itself, continue with w.Close
// when srv.Run has returned.
//
//	srv.Shutdown()
//	w.Close(ctx) // waits until handlers that Shutdown cancelled have parked or released their locks; ends w.RunKeeper
//	locks.Close(ctx)
//
// Tasks without locks pass through untouched. Register Middleware first, as the outermost middleware: code outside of
// Middleware runs without the locks. If Middleware is not registered, Configure is not called, or WithoutOverlapping is
// registered before Middleware, the first affected task makes the Worker log an error or a warning to Config.Logger.
//
// A snoozed task is given back to asynq for a while without charging a retry. A task that waits in place keeps its
// worker of the server's Concurrency busy until the wait ends. The locks of an attempt are settled when the attempt
// ends: they are released or parked. The author of a task is the program that enqueues the task. A rerun is a run of an
// archived task, by Inspector.RunTask.
//
// # Trust
//
// A program that may only enqueue tasks cannot make a Worker take locks. handoff seals the header for one task: for its queue, ID
// and type. The key of the seal lives in the locks' store, or is derived from joblock.Config.Secrets. A header that is
// not genuine counts as absent: the task runs without locks. The Worker logs the cause as an ERROR, each cause at most
// once a minute:
//
//	the seal does not match     the header was forged or changed
//	sealed for another task     the header was copied, as some tracing middlewares do
//	no header of the toolkit    the header was forged
//
// A header that may be genuine, but that this Worker cannot verify or read, does not count as absent:
//
//	the key is not known here   the enqueuing process uses a different Redis, database, prefix or Secrets; or
//	                            a secret was removed from Config.Secrets too early; or the locks' store has lost the key;
//	                            or the header was forged
//	another version             a newer build of the toolkit has sealed or written the header
//
// The task does not run here: it is snoozed until a Worker that can read the header gets it, and waits in place if it
// cannot be snoozed. A group with such a task is not aggregated here. While such a task is archived, the keeper keeps
// its locks, because it may halt a sequence. All of this is logged as an ERROR, at most once a minute. The same holds
// for a lock whose record only a newer build can read: a task that needs the lock is snoozed, and the keeper leaves the
// lock alone until it can read the record.
//
// The Worker searches the locks' store for an unknown key, at most once a second. While the store does not answer, the
// task is snoozed. A header that was sealed with one of the Secrets is genuine even if the enqueuing process keeps its
// locks in another store. The Worker then logs an ERROR, and Config.OnLockLost decides, because the locks are not in the
// Worker's store.
//
// When the locks' store loses all data, no job is lost. Each process that knows the key of the seals puts the key back:
// within ten seconds if the process enqueues or runs jobs, and at once when the process meets an unknown key. A Worker
// that knows the key finds the locks gone, and Config.OnLockLost decides. A Worker that starts later may not find the
// key. Then the jobs wait until a process that knows the key puts it back. If no such process runs any longer, the key
// is lost: delete those tasks and enqueue the jobs again. A secret in Config.Secrets cannot be lost with the store.
//
// Knowledge of a task's ID is not enough to take its locks. The seal does not stop the following:
//
//	who can                       can
//	write the locks' Redis        do anything
//	read it, without Secrets      do anything
//	write asynq's Redis           delete tasks, which frees their locks
//	read and write asynq's Redis  also enqueue a deleted task again, with the same ID and header but another payload.
//	                              The tokens in asynq's Redis are useless without access to the locks' Redis
//	put a task into a group       keep the group from being aggregated, with a header that no Worker can verify
//
// # The life of one attempt
//
// An attempt first resumes all locks of the task, bound to this task, under new fences:
//
//	all resumed               the handler runs. joblock.FromContext(ctx) returns the lock, LocksFromContext all locks in
//	                          the order of the hand-over. If a lock is lost, ctx ends with cause joblock.ErrLost.
//	                          Status shows a holder such as "host:123 attempt 2/4"
//	busy                      another attempt still runs: the task is snoozed, for two seconds at most
//	gone                      the lock has lapsed, was forced, or was released by a final failure before an operator ran
//	                          the task again: Config.OnLockLost decides
//	held by another caller    Config.OnLockLost decides. The default snoozes the task, for Config.Snooze at most
//	done                      the lock's record says that the job is done or revoked. If asynq has a completion time
//	                          for the task, an operator has run the completed task again: Config.OnLockLost decides. Otherwise
//	                          the delivery is a duplicate: the task succeeds without a call of the handler
//	store unavailable         the task is snoozed
//	record not readable       the task is snoozed: a newer build or another program has written the record
//	moved to another job      the task is snoozed: a handler handed the lock over, or handoff is replacing the other
//	                          job by this task's job
//
// No wait outlasts the attempt. If the locks' store has not answered when half of the attempt's time has passed, the
// task is snoozed before asynq ends the attempt; a lock that the store grants later is parked for the next attempt. So
// a store that hangs for longer than the task's Timeout costs the job no retry.
//
// A lock that a job has only until the job starts (handoff.Unique.UntilStarted) is released just before the handler is
// called; Started has the details. If that lock is already gone, as at a retry, the handler is called anyway. A job
// enqueued with handoff.KeepLast or CancelInProgress first acquires the lock on its key, and then releases the lock
// that it waited with. With CancelInProgress a newer job of the key ends the handler's context: see ErrSuperseded. If
// there is a newer job when an attempt begins, the handler is not called.
//
// When the handler has ended, the locks are:
//
//	nil                       released, or kept for handoff.Unique.Cooldown
//	RevokeTask, SkipRetry     released
//	superseded                released, when asynq has deleted the task
//	error, last attempt       released, and asynq archives the task
//	error, earlier attempt    parked for the retry's delay plus Config.Reserve
//	error because a lock      parked. The task is snoozed for the delay of a retry, on the last attempt too. The error
//	was lost                  must match joblock.ErrLost, or be the error of the handler's context after the loss
//	panic                     as after an error; the panic continues
//	the context has ended     asynq has moved on: timeout, shutdown, cancellation, lost asynq lease. The Worker asks
//	                          the Inspector for the task: parked while the task lives, released otherwise
//	Deadline has passed       released, and the Worker archives the task, whatever retries are left
//
// Once the Deadline of a task has passed, asynq calls no handler for the task, but goes on to retry it. With Configure,
// the first delivery after the Deadline ends the job as a final failure: the ErrorHandler is called with
// context.DeadlineExceeded, and the Worker archives the task within moments and logs a WARN. The same happens to a task
// that waits in line with InLine; its place or key is then freed by the keeper. A Timeout alone is a failed attempt. If
// the next attempt after a failed one would begin after the Deadline, the job ends with the failed attempt.
//
// A job that loses its lock repeatedly is retried repeatedly, at the pace of RetryDelayFunc: asynq counts no snoozes,
// and the job is not to blame. An error that is not due to the loss is a failure like any other, and so is the loss of
// a lock whose renewal joblock.Config.MaxRenew had ended: the next run would take just as long.
//
// asynq gets the handler's result when the locks are settled; for the key of a sequence see Sequences. A slow store
// delays the result by a second at most, and by at most half of the time that the attempt has left. The rest is settled
// in the background, and Close waits for it. Meanwhile the next attempt finds the lock busy and is snoozed. The Locker
// repeats a release that had no answer. A park is not repeated: the attempt's own reservation of the lock remains in
// force.
//
// asynq does not wait for a handler after the timeout, so the next attempt may start while the old attempt still runs.
// The next attempt finds the lock busy and is snoozed. The old attempt renews its lease for at most Config.Overrun
// after the end of its context. When the lease has ended, the next attempt gets the lock under a greater fence. If
// there is no next attempt, the lock is freed.
//
// A process that dies leaves its locks orphaned: reserved for their tasks until asynq recovers the tasks. Each renewal
// prolongs the reservation to Config.Reserve beyond the lease. A process that calls Close leaves its locks parked, and
// the next attempts get them at once.
//
// A handler may release its lock early, or hand it over to another task with Park; its own task then leaves the lock
// alone. If the lock was handed over, a retry of the handler's own task waits until the other task is done.
//
// # Sequences
//
// A job that was enqueued in a sequence (handoff.Sequence) may wait for its turn: then it has a place in the line of the
// key. What happens at a delivery of its task:
//
//	the job has the key       an attempt like any other. But before the time that ProcessAt or ProcessIn has asked for,
//	                          the task is snoozed until that time, and keeps the key. RunTask during that snooze runs it
//	the job waits             an operator has run the task too early, or the day has passed for which it was scheduled or
//	                          snoozed: the place is kept, and the task is snoozed for another day
//	neither                   the job has lost the key or its place, or had failed for good. It lines up again: it gets the
//	                          key if the key is free, and otherwise a place at the end of the line. The Worker logs a
//	                          WARN. Config.OnLockLost does not apply
//	the lock is busy, done,   as in the table above
//	or not answered
//
// When the last attempt of a job has ended, the Worker keeps the key until asynq has recorded the end, which takes one
// more lookup of the task. If asynq records that the task will run again, or records nothing for 30 s, the key is parked
// for the task. So a job that runs again, because its worker died or asynq did not get the result, runs before the jobs
// behind it.
//
// Each release of the Worker gives the key to the first in line in the same step. If that is a job, the Worker runs its
// task with the Inspectors, in the background. The task of the next job may not exist yet, or may still be active: then
// the Worker tries again for about a second. After that the keeper runs the task. If the task has ended meanwhile, the
// Worker passes the key on. Close waits for all of this. A job that waits with InLine is started in the same way, but
// the key of a task with InLine is released when the handler returns.
//
// With handoff.Sequence.Limit several jobs of a sequence run at a time, each under the lock of one of the sequence's
// slots. A job that has waited finds its slot with one read more. The key of the first slot is that of the sequence.
// The key of each other slot is that key, "%+" and a number, and Lock.Key and Locks.ByKey use it.
//
// A job fails for good on its last attempt, or with SkipRetry. If its sequence then halts
// (handoff.Sequence.HaltOnFailure), the key is not released but parked for the job, for 90 days or as long as the
// keeper finds the task in the archive. When the task is run again, it runs under the key, and success or RevokeTask
// starts the next job. A job that asynq archives while the job waits does not halt the sequence, but leaves the line.
//
// # Chains
//
// When the handler of a step of a handoff.Chain has returned nil, and steps follow, the Worker parks the locks for the
// next step instead of releasing them, and enqueues its task, before asynq gets the result. If asynq or the locks'
// store does not answer, the task is snoozed, and its next attempt finishes the hand-over; if the locks were not parked
// yet, the handler runs again. The next step waits until asynq has recorded the end of the step before: for half a
// second in place, then it is snoozed for a second at a time. All Workers of a chain use the asynq database of their
// own Inspector. The function Then adds steps.
//
// # Paused keys
//
// An operator can pause a key, and with it all keys below it, those that begin with the key and ":": see "joblock jobs
// pause". A task that has a lock on such a key, or wants one by WithoutOverlapping, does not start: before an attempt takes or
// resumes any lock, the task is snoozed until the end of the pause. It occupies no worker, is charged no retry, keeps
// its locks and its place in line, and also waits if WithoutOverlapping has DropIfBusy or FailIfBusy. An attempt that runs goes on.
// When the pause ends, a process that runs RunKeeper starts the tasks, in the order in which they were held back.
//
// A Worker reads the pauses and limits that operators have set at most once a second, when a task with a lock is
// delivered. RunKeeper also reads them when they change. A pause extends neither the Deadline of a task nor
// Config.MaxHold.
//
// # Contention never costs a job
//
// A task whose lock is busy does not fail and is not charged a retry, whatever its MaxRetry. But asynq archives a task
// that has no retries left, even if IsFailure says that the error does not count. So handoff enqueues every task with
// one retry more than its author asked for: the spare retry. The header has the author's own MaxRetry, which
// asynq.GetMaxRetry returns in the handler and in the ErrorHandler. The Inspector and asynqmon show one more.
//
// The handler is not called at the spare retry:
//
//	the last attempt ended by   asynq sets the task to retry, and charges the retry if the server's IsFailure says so.
//	timeout, CancelProcessing   The worker archives the task within moments, charged or not, as asynq alone would
//	or panic
//	the last attempt crashed    the task comes back once more and is archived without a run. Its last error then begins
//	                            with "worker: no retries left". The ErrorHandler gets asynq.ErrLeaseExpired; asynq alone
//	                            would not call the ErrorHandler
//	the process dies between    the job may run once more
//	timeout and archive
//
// RunTask runs an archived task each time, however the previous run ended. That run is the task's last attempt. While
// another job has the key, the task is snoozed by way of the archive; see below. After a rerun that crashed, RunTask
// may be needed twice: the first delivery may look like the delivery of a job whose last attempt crashed. That happens
// if the handler released its lock early, or if the task has the lock only until the task starts.
//
// All this needs Configure. Without Configure, an attempt waits in place for a busy lock, as long as the task's timeout
// allows. With Configure, that is true only for the last attempt of a task that has no spare retry, because another
// package enqueued the task with its locks.
//
// # The keeper
//
// asynq ends tasks in many ways without calling a middleware, and has no hook for tasks that wait. So the keeper
// checks, once per KeeperConfig.Interval, each lock that is bound to a task and has no holder. It looks the task up
// with the Inspector:
//
//	pending, scheduled,       the keeper prolongs the reservation to Config.Reserve beyond the time at which the task is due,
//	retry, aggregating,       even if the reservation had ended, unless another owner has taken the key
//	active
//	archived, completed       the keeper frees the lock if the task carries the lock, or the park is a minute old
//	no such task              the keeper frees the lock if the park is a minute old: the enqueue may still be under way
//	no such queue             as for no such task, but only if the keeper's process has seen the queue before: in a check,
//	                          or among the names of all queues, which a keeper that stands by reads once per Interval
//	no answer                 the keeper leaves the lock alone
//
// The keeper also checks the place of each job that waits in line, and each lock of a job whose turn has come:
//
//	the job waits, and its task lives          the keeper prolongs the place. If the key is free, the first in line gets the key
//	the job waits, and its task has ended      the keeper gives the place up if the place is a minute old
//	or does not exist
//	the job has its turn, and its task was     the keeper starts the task
//	not started
//	the job has failed and halts its sequence  the keeper keeps the key for the job while the task is archived
//
// A process that gives a key to a job and starts no tasks, such as a request that ends, announces the job to all
// keepers that work. They start the job's task at once. So run a keeper where requests and jobs share keys.
//
// The keeper frees a lock only if it has no holder and has not changed since the keeper read the record. Status shows
// the lock as forced, with the reason. If an operator runs the task after all, the next attempt finds the lock gone,
// and Config.OnLockLost decides. EXITS.md, next to this file, lists every way in which a task can end: what happens to
// its lock, within how long, and the test that shows it.
//
// Of all keepers that share a store and prefix, KeeperConfig.MaxKeepers work at a time, by default one; the others
// stand by. A keeper that works has a permit, see package limit. With the default joblock.Config, a keeper that stands
// by makes about 15 calls a minute to the locks' store, the first in line some 40, and one command per Interval to
// asynq's Redis. A keeper that works claims up to 500 locks that are due for a check, checks them, and records when
// each is due again. What happens to a keeper that works:
//
//	it returns                a keeper that stands by takes over at once
//	its process dies          another keeper takes over when the permit's lease ends, within 10 seconds, or within one
//	                          joblock.Config.TTL if that is shorter. The locks of the dead keeper's last claim are due again
//	                          20 seconds after the claim
//	no answer from asynq or   the keeper gives its place away after two periods of KeeperConfig.Interval, and lines up again
//	the store
//
// More keepers do more checks a second. They check a lock as often as one keeper would, or up to twice as often,
// because each has lists of its own. While the store does not answer calls about the permits, no keeper works. In a
// Redis Cluster, that is so while the permits' node is unreachable.
//
// What the checks cost, for each check of a lock:
//
//	the locks' store   one claim and one report per 500 locks, and a read of each lock, a hundred in a command. If the
//	                   lock's task is in a list, and this keeper or the previous one has found the reservation long
//	                   enough, the lock is read only four times per Reserve
//	asynq's Redis      two commands, if a keeper looks the task up
//	                   some thousandths of a command, if a keeper reads the lists of the task's queue instead
//
// A keeper reads the lists of a queue, in pages of up to 1,000 tasks, if this costs asynq's Redis less than the
// lookups: as a rule if this keeper checks the locks of an eighth to a fifth of the waiting tasks. The pages are spread
// over a round of some 0.9 Interval. A lock is checked when the page with its task has been read again. A task in a
// list lives. A task that is no longer on its page is looked up before the keeper frees its lock, because a task may
// move while a keeper reads. The keeper remembers some 150 bytes for each lock of such a queue. Locks that are held,
// and keys that are not locks of jobs, cost asynq nothing.
//
// # How soon a lock is freed
//
// After calls to asynq's Redis a keeper rests, so that its calls take at most KeeperConfig.MaxLoad of the time. So all
// processes together spend at most MaxKeepers × MaxLoad of the time in such calls. The times of EXITS.md therefore
// depend on R, the time that a keeper takes to read all lists once:
//
//	R = the time of the calls for all lists / MaxLoad; some 0.1 s / MaxLoad for ten thousand waiting tasks
//
//	R                   freed after the end of the task   if the keeper's process dies, later by
//	up to 0.8 Interval  within Interval                   10 s + 1.5 R at most
//	longer              within 1.2 R; Behind is true      10 s + 1.5 R at most
//
// The keeper that takes over has to read all lists before it knows which tasks are gone. So a death delays no job by
// more than 30 seconds, the default joblock.Config.TTL, if R is 13 seconds or less. Some
// examples:
//
//	waiting tasks   MaxLoad         R       freed within   if a keeper dies
//	50,000          0.1 (default)   5 s     30 s           48 s
//	200,000         0.1             20 s    30 s           70 s
//	1,000,000       0.1             100 s   120 s          280 s
//	1,000,000       0.8             12.5 s  30 s           59 s
//
// All this holds if a keeper keeps up with the checks, some 30,000 a second, and if few tasks end without a call of the
// Worker: a keeper looks each of them up, some thousand a second with the default MaxLoad. Otherwise
// Behind stays true. Choose a larger MaxLoad, a longer Interval, or further Redis servers for asynq's queues.
//
// A keeper that works writes its statistics next to the locks, every ten seconds: who it is, how often it checks,
// whether it is behind, what it has freed, and the queues that none of its Inspectors has. An operator's tool can thus
// show the keeper without asking its process. The write renews the lease of the keeper's permit, which is due anyway.
//
// In addition, a keeper that works asks the store which locks are due: every second, or ten times per Interval if that
// is more often. If the store keeps the index of jobs in several parts, a keeper asks each part when a lock in that
// part is due, and at least three times per Interval.
//
// The keeper relies on the Inspectors that it has: if several asynq databases share one store, see Config.Inspectors.
//
// Without a keeper, a lock that is not released is freed when the reservation ends. A task that waits for longer than
// the reservation may find its lock gone.
//
// # Groups
//
// With Configure, the task that a group is aggregated into takes over the locks of the group's members. asynq does not
// say which task a member is, so the Worker asks the Inspector for the task that the member's header was sealed for:
// that task must wait in this group, with the same header and payload. The locks are bound to the new task before asynq
// has that task, so they always have an owner. If asynq refuses the new task, the members keep their locks until the
// next aggregation. Without Configure, the keeper frees the locks of aggregated tasks.
//
// The new task stands for all members, so no call about the key of one member ends the task: handoff does not replace
// it, and if one of its locks is gone, the task takes that lock again, whatever Config.OnLockLost says.
//
// A task carries up to 1,024 locks. So Configure lowers GroupMaxSize to 512, and asynq makes several tasks of a larger
// group: 1,800 members with a lock each become three tasks of 512 members at once, and one of 264 after the grace
// period. A member has one lock, or two with handoff.KeepLast or CancelInProgress. If members have more, by handoff.Carry, set GroupMaxSize
// to at most 1,024 divided by the number of a member's locks. Otherwise the task of a group runs without the locks
// beyond 1,024, the Worker logs an ERROR, and the keeper frees these locks.
//
// # Locks that tasks do not carry
//
// WithoutOverlapping takes a lock when a task is about to run, on a key computed from the task, and releases the lock
// when the attempt ends. WithoutOverlapping works for the tasks of every client, with handoff and without. With
// MaxConcurrent, several tasks may run at a time.
//
//	mux.Use(w.Middleware) // first, if it is used
//	mux.Use(w.WithoutOverlapping(func(task *asynq.Task) string {
//		return task.Type() // "" if the task needs no lock
//	}, &worker.OverlapConfig{MaxConcurrent: 3}))
//
// A lock that a task carries guards the job. The lock of WithoutOverlapping guards attempts: the key is free between
// two attempts, and after a crash as soon as the lease has ended. If a task carries a lock on the wanted key,
// WithoutOverlapping takes no other lock. But if the task has the carried lock only until the task starts
// (handoff.Unique.UntilStarted), the attempt fails with joblock.ErrInvalid: the handler would run without a lock.
//
// A task whose key is busy waits in place, in line with the other waiters, and runs as soon as the key is released. A
// waiting task occupies one worker of the server's Concurrency, and the task's timeout runs. MaxWait bounds the
// wait. After the wait the task is snoozed, and later waits at the end of the line. The pause is about a second if this
// WithoutOverlapping holds its locks for a short time, and otherwise grows up to Config.Snooze.
//
// An idle asynq server looks for tasks once per TaskCheckInterval, 1 s by default. So a Worker that releases a key puts
// several of the tasks that it has snoozed for the key back into the queue at once: as many as can run one after another
// until asynq looks again, but no more than may wait in place. Then 30 tasks of 0.2 s take some 7 to 9 s. With a negative
// MaxWait no task waits in place, so one task runs per TaskCheckInterval: some 30 s. If a lock is held for more than
// 250 ms, at most a quarter of Concurrency run per TaskCheckInterval, which matters with MaxConcurrent: with a
// Concurrency of 10, 40 tasks of 0.3 s take some 15 s, two at a time. A shorter TaskCheckInterval helps in each case, a
// larger Concurrency in the last. If only tasks of other servers hold the key, a task waits until its pause ends.
//
//	busy                        snoozed. With DropIfBusy the task succeeds without being run, with FailIfBusy the
//	                            attempt fails
//	store unavailable           snoozed
//	either, last attempt        snoozed by way of the archive; if the store is unavailable, after a wait in place
//	either, without Configure   the task waits in place, for half of the time until its deadline; then the attempt
//	                            fails
//
// With InLine, a task whose key is busy has a place in the line of the key instead: it waits as a job of a sequence
// does, for as long as it takes, and is run when its turn comes. Its run then begins when asynq looks for tasks: on a
// server whose queues are empty, one asynq.Config.TaskCheckInterval later, 1 s by default. So 30 tasks of 0.2 s take
// some 30 s; with a TaskCheckInterval of 100 ms, some 9 s.
//
// A task that is snoozed by way of the archive is archived and taken out again at once. The detour is needed because
// asynq archives a task that has no retries left, whatever the error. As soon as asynq has archived the task, the
// Worker moves the task to the tasks that wait for a retry, due when the pause ends. The task keeps its ID, options and
// asynq.Unique lock. What an operator sees:
//
//   - The task waits for a retry although it has none left. Its last error contains "worker: snoozed without charge".
//   - The task is in the archive for the time of a command or two, about a millisecond. Emptying the archive in that
//     moment deletes the task. A program that cleans up can leave out archived tasks with that last error.
//   - asynq counts a failure and logs "Retry exhausted". The user's ErrorHandler is not called.
//   - If the process dies in that moment, the keeper runs the task again. The keeper finds the task by its mark, a lock
//     whose key is "%again:" and the name of the job.
//
// asynq's Inspector cannot move the task. The Worker does so with a script written to match the scripts of asynq v0.26. With a
// version of asynq whose scripts differ, the task stays in the archive for the whole pause, at most 500 tasks of a
// Worker at a time, because asynq deletes the oldest of more than 10,000 archived tasks. Further tasks are run again
// without a pause.
//
// A task with a spare retry is snoozed by way of the archive only in a rerun. When a task is snoozed, the locks that
// the task carries are parked.
//
// A carried lock belongs to its job until the job is done, so two tasks wait forever if each carries the lock that the
// other takes with WithoutOverlapping: keep the two kinds of keys apart. Two uses of WithoutOverlapping on one task are
// safe: each snooze gives up both keys.
//
// # What is not promised
//
// Exactly-once execution: a handler that finished just as the process died, or just as its time expired, may run again.
// An enqueue that takes effect more than a minute after the park may find the lock freed; Config.OnLockLost decides. A
// lock that no keeper has checked for a day is not checked later either: it is free when the reservation ends.
package worker
