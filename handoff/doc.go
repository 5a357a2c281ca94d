// Package handoff is the web side of a job that carries a lock. An HTTP middleware serves a request under a lock, and
// a client enqueues an asynq task that takes the lock over.
//
//	mux.Handle("POST /exports", handoff.Middleware(locks, claim)(http.HandlerFunc(
//		func(w http.ResponseWriter, r *http.Request) {
//			lock, _ := joblock.FromContext(r.Context())
//			// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
//			if _, err := jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", payload, asynq.MaxRetry(5))); err != nil {
//				handoff.Refuse(w, r, err)
//				return
//			}
//			w.WriteHeader(http.StatusAccepted)
//		})))
//
// A second request for a key is answered 429 while the first one runs, and while its job waits, runs, is retried or is
// recovered from a crash. Package worker is the job's side; without it the task is an ordinary task, which runs without
// the lock.
//
// # Clients and Redis
//
// Package toolkit sets all of this up from asynq's options, with one Close. To do it by hand, on one connection pool:
//
//	rdb := redisOpt.MakeRedisClient().(redis.UniversalClient) // redisOpt: an asynq.RedisConnOpt
//	store, err := redisstore.New(rdb, nil)
//	locks, err := joblock.New(store, nil)
//	client := asynq.NewClientFromRedisClient(rdb)
//	inspector := asynq.NewInspectorFromRedisClient(rdb)
//	jobs, err := handoff.NewClient(locks, client, inspector, nil)
//
// None of these closes rdb. Close rdb last.
//
// Web side and workers must keep locks in the same place: the same Redis, database number and redisstore.Config.Prefix.
// A task's header is sealed with a key from that place. A worker that keeps its locks in another place therefore
// reports the mistake at its first job; see Trust in the documentation of package worker.
//
// # Routers
//
// The claim function sees the *http.Request as the middleware gets it. With net/http the middleware is inside the mux,
// as above, and r.PathValue has the route's parameters. Some routers run their middlewares before they match the route,
// or keep its parameters elsewhere: the middlewares of chi's root router do, and all those of gin, echo and fiber.
// There r.PathValue is empty, so the key, or a part of it, is empty, and every request is refused: no request is served
// without its lock, or under one lock shared by all.
//
// For these routers, and for gRPC, functions as a service and message consumers, use a Guard. Guard.Do calls a function
// under the locks that a Claim names, or returns a *Refusal as its error. docs/routers.md has an adapter for each, to
// copy; they are tested with the real routers. An adapter of your own must do three things:
//
//   - call the next handler inside of Guard.Do, so that a refused request does not reach it. Some routers call the next
//     handler unless stopped: an adapter to gin calls Abort after a refusal
//   - put the context of Guard.Do where the framework's handlers look for their context: an adapter to gin sets
//     c.Request, and sets it back afterwards
//   - read the parameters of the route with the framework's own function: c.Param
//
// Build the key from the parameter as the handler uses it. Some routers do not decode a parameter, so that "7" and
// "%37" are two keys. Decode the parameter, or refuse a value that does not look like your names.
//
// # Hostile clients
//
// A request gets its lock before its body is read, so a client that sends slowly can keep others out. Set two bounds:
// Claim.MaxHold bounds how long the lock is renewed, and ReadTimeout of http.Server, which has no default, bounds how
// long a client may send. Guard.MaxWaiting bounds how many requests wait.
//
// Put authentication and rate limits before this middleware. Each request for a lock costs Redis a record. A client
// that may choose any key can keep others out of theirs. If a key is made from client input, put the authenticated
// account into the key.
//
// A refused client gets a code and a time to retry, and neither the key nor the holder. Guard.OnRefusal must not reveal
// more: the text of an error names host, process and job.
//
// # Roll-out and shutdown
//
// Deploy the workers first. Deploy the enqueuing side when every worker has package worker's middleware. A worker
// without the middleware, such as an old build during a rolling deploy, runs the task without its lock. A worker that
// keeps its locks in another place cannot verify the task's header and snoozes the task, unless it has the same
// joblock.Config.Secrets: then it too runs the task without this lock. The key of such a task stays reserved, and every
// request for it is answered 429, until it is freed:
//
//	a keeper works where the locks are kept    by the keeper, within half a minute after the end of the job; for a job
//	                                           that ends within a minute of its enqueue, a minute later
//	none works there                           by the Client that has enqueued the job, as soon as a keeper would, with
//	                                           an ERROR in its log
//	… and that Client is closed                when the reservation ends: Config.Reserve after the job is due
//
// While it enqueues, a Client checks every half minute whether a keeper works. If none does, it logs that and looks up
// the latest 10,000 jobs that it has enqueued itself: it frees the locks of jobs that asynq no longer has, or has
// archived or completed. It prolongs no reservations, and leaves sequences that halt alone.
//
// To remove the toolkit, remove the enqueuing side first, and the workers' middleware once no queue has a task that
// carries locks.
//
// On shutdown close the HTTP server, then the Client, then the Locker.
//
// # Who owns the lock
//
// Request and job never own the lock at the same time:
//
//	step                        owner    a crash here
//	claim, AcquireAll           request  free one TTL later
//	handler, before Enqueue     request  free one TTL later
//	Enqueue: checks             request  free one TTL later
//	Enqueue: Park               job      reserved for a job that does not exist, until
//	                                     the reservation ends
//	Enqueue: asynq has the task job      the job runs under the lock
//	  … or has refused it       request  the lock is taken back (Lock.Reclaim)
//	  … or that is unknown      job      reserved; see below
//	handler returns             request's locks are released; the job's are not
//
// With Unique and Sequence no request owns the lock. The first step of Enqueue takes the key for the job; a crash from
// then on is like a crash after Park. If asynq has refused the task, the key is freed.
//
// The lock is bound to "queue/taskID" before the task exists, so a worker that starts the task before Enqueue returns
// finds the lock ready, and no other task can use the token.
//
// Enqueue before the handler returns: the middleware releases the lock with the response. A goroutine that enqueues
// later fails after the client has got a 202. Wait for such a goroutine, or call Keep with the lock, and release the
// lock if the enqueue fails.
//
// # The errors of Enqueue
//
// After an error lock.Err reports, for each lock, who has it now:
//
//	lock.Err            the lock                         the error of Enqueue
//	nil                 is the caller's, as before       ErrInvalid, or the error of another lock, Park, ctx or asynq
//	ErrLost             was lost, and has no holder      ErrLost
//	ErrAlreadyReleased  had been released by the caller  ErrAlreadyReleased
//	ErrNotOwner         had been handed over before      ErrNotOwner
//	ErrNotOwner         is parked, perhaps for no job    ErrUnavailable: unknown if the task exists, or if the lock is back
//	ErrNotOwner         is, or was, a job's              ErrBusy, ErrAlreadyReleased: asynq enqueued the task despite its error
//
// asynq turns an error of Redis into text, which matches no sentinel. Enqueue joins the error of ctx to that text.
//
// While it is unknown whether the task exists, the lock stays reserved and no work runs under it. The Client keeps
// asking Redis for five minutes. Once Redis answers, the job has the lock if the task exists, and otherwise the Client
// releases the lock. The Client gives up after five minutes, after Close, or with more than 256 such enqueues at a
// time. The lock is then free when the reservation ends.
//
// # Locks of other programs
//
// A shell script, or a program in another language, takes a lock with the command joblock, parks it, and gives the
// token to a Go program, which takes the lock over and hands it over to the job:
//
//	token, err := joblock.ParseToken(text)       // from the standard input, or a request's body; never from a URL
//	lock, err := locks.Resume(ctx, token)        // with joblock.ForJob(job) after "joblock park --job"
//	job, err := jobs.Enqueue(ctx, handoff.Carry(lock), task) // with the job's asynq.Queue and asynq.TaskID after "joblock park --job"
//
// Compare token.Key with the key that the task needs. Otherwise a mixed-up script runs the job under the wrong lock.
//
//	a crash                     the lock after "joblock park"          the lock after "joblock park --job"
//	before the Park of Enqueue  is reserved until --reserve ends       is freed by the keeper of package worker, within a
//	                                                                   minute or two after the park, or after the lease
//	after the Park of Enqueue   as in the table above                  as in the table above
//
// The directory examples/script has an example of each: a shell script, a Python program and a Go program.
//
// # One job per key
//
// With Unique an enqueue takes the lock itself and hands it over in the same call. So a key has one job from the
// enqueue on. If the key already has a job, the policy Unique.OnConflict decides:
//
//	the job that has the key              Reject    Skip      Replace   KeepLast            CancelInProgress
//	none                                  enqueued  enqueued  enqueued  enqueued            enqueued
//	pending, scheduled, aggregating       ErrHeld   its task  replaced  replaced            replaced
//	waits, and stands for other keys too  ErrHeld   its task  ErrHeld   ErrHeld             ErrHeld
//	between two attempts                  ErrHeld   its task  replaced  enqueued; it waits  enqueued; the other is deleted
//	running                               ErrHeld   its task  ErrHeld   enqueued; it waits  enqueued; the other is ended
//	has started (UntilStarted)            enqueued  enqueued  enqueued  –                   –
//	timed out, its handler still running  ErrHeld   its task  ErrHeld   enqueued; it waits  enqueued; it waits
//	being enqueued by another call        ErrHeld   its task  replaced  replaced            replaced (each after a moment)
//	archived or completed                 the key, if left behind, is freed and the new job enqueued
//	deleted                               ErrHeld until the keeper has freed the key: within half a minute,
//	                                      or a minute more if the job was just enqueued
//	none: a request holds the lock        ErrHeld   ErrHeld   ErrHeld   enqueued; it waits  enqueued; it waits
//	none: the key is cooling down         ErrHeld   Duplicate ErrHeld   enqueued; it waits  enqueued; it waits
//	the caller itself has the lock        ErrInvalid, and ERROR in the log  enqueued; it waits  enqueued; ends the caller
//
// With Unique.Limit up to Limit jobs have the key at a time, each under a permit of package limit, and the next one
// gets ErrHeld. A request takes such a permit with Claim.Limit.
//
// The task that carries the key's token is the job that has the key. A lock can name a task that does not carry the
// token, while an enqueue under an existing TaskID is about to be refused. That case counts as "being enqueued by
// another call", and the call returns ErrHeld if it lasts longer than a moment.
//
// A replacement never loses both jobs. The old task is deleted after the new one is in its queue. Until then the lock
// is bound to the old task, which cannot start meanwhile. If the old task has started already, the call leaves it alone
// and returns ErrHeld. Concurrent calls replace each other's jobs, so the newest payload is left: the calls of one
// process go one at a time, in order of arrival, and a call goes on while those of other processes replace the job. A
// call gives up after ten seconds. Its ErrHeld then asks to try again, and Refuse answers 429 with a Retry-After of one
// second. If a worker takes the new task from its queue before the old one is deleted, the worker snoozes the new task
// for a second or two.
//
// If the process dies in between, or Redis is unreachable, both tasks may be left. The older one then has the key, and
// the new one waits until the older one is done. If only the new one is left, it waits until the keeper finds that the
// older one does not exist. Then the worker's Config.OnLockLost decides whether the new one takes its lock again; with
// KeepLast, CancelInProgress and Debounce it always does. In all these cases the new one does not run if a still newer
// job has started: then asynq deletes its task. With UntilStarted it always runs, even after a newer one. A job that is
// left in a group runs with the others of the group. A job that is left with a long ProcessIn may run after a newer one
// if that has started longer ago than worker.Config.Reserve.
//
// CancelInProgress does what KeepLast does. In addition, the worker that runs the older job ends the job's context with
// cause worker.ErrSuperseded, once the task of the newer job exists. The enqueue only sends that worker a notice, so
// nothing is lost if the process dies at any step: if the notice is lost, the worker finds the newer job after its
// worker.Config.Snooze. The newer job gets the key when asynq has recorded the end of the older one, so a worker that
// dies meanwhile delays the newer job until asynq has recovered the older one, which then ends without a run. An older
// job that stands for other keys too, was enqueued with another policy, or runs in a worker without the middleware,
// goes on, and the newer job waits.
//
// The new job may have the asynq.TaskID of the waiting job that it replaces, to reschedule a job under its name. asynq
// has no call for that, so for a moment there is a stand-in: the new task under an ID of its own, due a minute later.
// If the process dies in that moment, or Redis is unreachable, the stand-in may be left, alone or in addition to the new task,
// and runs when it gets the key. The error then matches ErrUnavailable, and names the stand-in if it is known. A job
// that runs, is archived or is completed keeps its TaskID: the enqueue of another with the ID is
// asynq.ErrTaskIDConflict.
//
// A job stands for other keys too if it has locks on them, from Carry or as the task of a group. A job of a sequence is
// treated the same way, because it has to run. No call about one key ends such a job: Replace and KeepLast return
// ErrHeld, which says what else the job stands for. Enqueue again when the job has run.
//
// # Jobs in a sequence
//
// Sequence enqueues the jobs of one key in order: the webhooks of a customer, the commands of a wallet. One
// job of the key runs at a time, retries included, and the next one starts when that job has ended. Jobs of other keys
// run at the same time. Unique lets a key have one job; a sequence lets a key have a line of jobs.
//
// The locks' store keeps the line, in the order in which the enqueues took their places. Requests and processes that
// wait for the same lock are in the same line. A job has its place before its task exists. A task that waits is a
// scheduled task whose time is a day away, so asynq's tools show the task, and no worker spends time on the task. The
// process that releases the key gives it to the first in line in the same step, and then runs that job's task.
//
// The keeper of package worker does what a process that died has left undone, so run a keeper where sequences are used:
//
//	a crash between           the job                       others behind
//	place and enqueue         does not exist                go on: the keeper takes the place out of the line a minute
//	                                                        later, or frees the key
//	enqueue and its answer    waits, or has the key         wait for their turn
//	grant and start           is started by the keeper      wait for their turn
//	start and end, before     is started again by asynq     wait for their turn
//	asynq has recorded it
//	that and the release      has ended                     go on: the keeper frees the key, within a minute after the
//	                                                        lease and a round of checks
//
// A sequence promises the order in which jobs run, under fences that grow. The next job starts only when asynq has
// recorded the end of the one before. A sequence does not promise that a job runs once: it runs again if its worker dies
// before that, or if asynq's Redis is unreachable at that moment, but always before the jobs behind it.
//
// Only in these cases may a job run after jobs that were behind it. The Worker logs a warning in each:
//
//	the job has lost its place                 no keeper has run for a day. The job lines up again, behind the others
//	the job has lost the key                   the key was freed by hand, lapsed without a keeper, or was lost with the data
//	                                           of the locks' store
//	a failed job is run again by an operator   unless the job halts its sequence. The job lines up again
//
// After a final failure the next job starts, or with HaltOnFailure waits until an operator runs the failed task again
// (Inspector.RunTask), skips the job ("joblock jobs skip"), or deletes the task. Operators may control waiting jobs
// with asynq's tools:
//
//	RunTask, RunAll…     before the job's turn: the job keeps its place and goes on waiting; no retry is used
//	DeleteTask           the job leaves the line at the keeper's next check, when its place is a minute old; with Withdraw
//	                     at once
//	ArchiveTask          as DeleteTask. RunTask of the archived task lines the job up again, behind the others
//	UpdateTaskPayload    the job keeps its place
//	PauseQueue           a job whose turn comes gets the key, and those behind wait, until UnpauseQueue
//	DeleteQueue          all its jobs leave their lines, if the keeper has seen the queue
//
// If the job has the key, but does not run yet, those behind go on after DeleteTask, and after ArchiveTask too unless
// the sequence halts. jobs.Line lists who waits for a key and since when, and joblock's Status says how many wait.
//
// # Several jobs at a time
//
// With Sequence.Limit up to Limit jobs of the key run at a time. There is still one line: the process that releases a
// slot of the sequence gives it to the first job in line in the same step. So jobs start in the order of their
// enqueues, and a job may end before one that has started earlier.
//
// The first slot is the key itself, so a request that holds the key takes one slot. The other slots are keys of their
// own: the key, "%+" and a number from 2. The lock of a job in such a slot is on the slot's key, so use that key with
// Locks.ByKey. Fences of different slots are not comparable. Limit may change while jobs wait: the line stays, and at
// most as many jobs run at a time as the larger Limit allows. An enqueue while fewer than Limit jobs wait takes one
// round trip more, and so does one of eight enqueues into a longer line.
//
// In a Redis Cluster, a slot other than the first cannot be released while the server moves the key; the release is
// repeated in the background.
//
// # Options of asynq in a sequence
//
// How the options of asynq go together with a sequence:
//
//	ProcessAt, ProcessIn  the job has its turn in the order of the enqueues, and starts at its time or later. If its turn
//	                      comes first, the job has the key and waits for its time, and those behind wait too
//	Deadline              counts while the job waits. A job whose turn comes later is archived, without a call of the
//	                      handler, and its retries are not used
//	Timeout               applies to each attempt
//	MaxRetry              those behind wait for the retries. Waiting for its turn costs a job no retry
//	Retention             as without a sequence
//	Queue                 the jobs of one sequence may be in several queues. Priorities do not change their order
//	TaskID                the enqueue of a second task with the ID returns asynq.ErrTaskIDConflict, and joins no line
//	Unique                a duplicate returns asynq.ErrDuplicateTask, and joins no line. If the job waits, asynq's lock for
//	                      Unique lasts a day longer than the TTL, and ends with the job
//	Group                 ErrInvalid: asynq would make one task of several jobs
//
// With Sequence.Lock the job takes over a lock that the request holds, as with Carry, and comes before all that wait.
// Jobs of Carry and Unique take no place in line, and neither does a job that takes its lost lock again
// (worker.Config.OnLockLost): it keeps retrying, and the jobs in line come first.
//
// # Many jobs at once
//
// EnqueueMany enqueues up to 1,000 tasks, each with its own How, 16 at a time. Each item has its own result and error:
//
//	the error of an item             its task, and its key or locks
//	nil                              enqueued; or the other job's task with policy Skip
//	ErrInvalid                       the item is bad: nothing was done for it
//	ErrHeld                          not enqueued: another job has the key, perhaps that of an earlier item
//	ErrNotSent                       not enqueued, because the call ended early; it can be enqueued again as it is
//	ErrNotSent and ErrUnavailable    not enqueued, but its key or locks could not be taken back
//	ErrUnavailable alone, or other   as after Enqueue
//
// The call ends early when ctx ends, or when it is unknown whether one of the tasks exists, so an outage of asynq's
// Redis leaves a few tasks unknown, and not a thousand.
//
// # Enqueue and database transactions
//
// asynq's Redis takes no part in a database transaction: a job that is enqueued before the commit may run before the
// commit, and stays after a rollback. Enqueue after the commit, or through an outbox; docs/unique-jobs.md describes
// both. Withdraw takes back a job whose transaction was rolled back: it deletes the task and frees its key, or its
// place in line, at once. With asynq's DeleteTask alone, the keeper frees the key, as the tables above say.
//
// # When the enqueue fails
//
// asynq can report an error although the task was enqueued. go-redis repeats a command whose reply was lost, and
// asynq answers the repetition of a successful enqueue with asynq.ErrTaskIDConflict or ErrDuplicateTask. So Enqueue
// asks the Inspector for the task and compares the task's header:
//
//   - The task exists with this header: success.
//   - The task does not exist, or another task has its ID: Enqueue takes the locks back and returns the error. After
//     any error but those two the command may still be on its way. Enqueue therefore first asks the Inspector a second
//     time.
//   - The Inspector does not answer: the error matches joblock.ErrUnavailable, and the locks stay parked; see "The
//     errors of Enqueue". Do not Reclaim such a lock: its job may be about to start.
//
// The search goes on after the end of the request's context. It takes three seconds at most, counted from asynq's
// error or from the end of the context, whichever is first. If asynq is still waiting for Redis after three seconds,
// it is unknown whether the task exists. The Inspector is asked only after asynq has returned.
//
// One case is left: a command that is delayed for longer, and is applied after all. The task that then appears finds
// its token taken back. While the request holds the lock, the worker snoozes the task. After the release of the lock,
// the worker's Config.OnLockLost decides. There are never two holders, but by default a job may run after its enqueue
// was reported as failed. To exclude that, give the tasks a TaskID of your own, and make their effect idempotent under
// that TaskID.
//
// # Groups
//
// A task enqueued with asynq.Group carries its locks into its group. Aggregation deletes the members without running
// any middleware. On a server whose Config went through Worker.Configure of package worker, the aggregated task has the
// locks of all members, up to 1,024 locks. Configure therefore limits a group to 512 members at a time. If members
// carry more than two locks each, set a smaller GroupMaxSize; see Groups in package worker.
//
// A member that waits in its group is replaced by Replace, KeepLast and CancelInProgress like any other task. The
// aggregated task is not replaced, because it stands for all members: an enqueue for the key of a member returns
// ErrHeld until the aggregated task has run, or, for KeepLast and CancelInProgress, until it has started. With Skip the
// aggregated task is the result.
package handoff
