// Package handoff is the web side of a lock that travels. An HTTP middleware serves a
// request while holding a lock, and a client enqueues an asynq task that carries the lock
// on.
//
//	mux.Handle("POST /exports", handoff.Middleware(locks, claim)(http.HandlerFunc(
//		func(w http.ResponseWriter, r *http.Request) {
//			lock, _ := joblock.FromContext(r.Context())
//			if _, err := jobs.Enqueue(r.Context(), lock, asynq.NewTask("export", payload)); err != nil {
//				handoff.Refuse(w, r, err)
//				return
//			}
//			w.WriteHeader(http.StatusAccepted)
//		})))
//
// A second request for the same key is answered 429 while the first one runs, and then
// while its job waits, runs, is retried or is recovered from a crash. The other end is
// package worker, without which the task is an ordinary task.
//
// # Clients and Redis
//
// An application that only has asynq's options can make everything on one connection
// pool:
//
//	rdb := redisOpt.MakeRedisClient().(redis.UniversalClient) // redisOpt: an asynq.RedisConnOpt
//	locks, err := joblock.New(redisstore.New(rdb, nil), nil)
//	client := asynq.NewClientFromRedisClient(rdb)
//	inspector := asynq.NewInspectorFromRedisClient(rdb)
//	jobs, err := handoff.NewClient(locks, client, inspector, nil)
//
// What is made of rdb does not close it: close rdb itself, last.
//
// Web side and workers must agree on where the locks are: the same Redis, database number
// and redisstore.Config.Prefix. A task's header is sealed with a key that lives there, so a
// worker that uses another place says so with the first job; see Trust in the
// documentation of package worker.
//
// # Routers
//
// The claim function sees the *http.Request as it is when the middleware runs. With
// net/http the middleware is inside the mux, as above, and r.PathValue has the route's
// parameters. Some routers run their middlewares before they have matched the route, or
// keep its parameters elsewhere: Use of gin, echo and chi. There r.PathValue is empty, so
// the key is empty or has an empty part, and every request is refused: it is served neither
// without its lock nor under one lock for everybody. With such a router wrap the handlers
// of single routes (chi's With), or copy the parameters with r.SetPathValue.
//
// Code that adapts this middleware to another kind of handler must do two things. It must
// stop after a refusal, that is, if the next handler was not called: with gin it has to
// call Abort. And it must pass on the request that the next handler gets, whose context has
// the lock: with gin as c.Request.
//
// A middleware of gin made of one of this package (use := handoff.Middleware(…)):
//
//	func(c *gin.Context) {
//		for _, p := range c.Params {
//			c.Request.SetPathValue(p.Key, p.Value)
//		}
//		served := false
//		use(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
//			served = true
//			c.Request = r
//			c.Next()
//		})).ServeHTTP(c.Writer, c.Request)
//		if !served {
//			c.Abort()
//		}
//	}
//
// And of echo, where not calling next is enough:
//
//	func(next echo.HandlerFunc) echo.HandlerFunc {
//		return func(c echo.Context) (err error) {
//			for _, name := range c.ParamNames() {
//				c.Request().SetPathValue(name, c.Param(name))
//			}
//			use(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
//				c.SetRequest(r)
//				err = next(c)
//			})).ServeHTTP(c.Response(), c.Request())
//			return err
//		}
//	}
//
// Build the key from the parameter as the handler uses it. Some routers give a parameter as
// it was sent, so that "7" and "%37" are two keys. Decode it, or refuse what does not look
// like your names.
//
// # Hostile clients
//
// A request holds its lock from before its body is read. A client that sends slowly must
// not keep others out. Claim.MaxHold bounds how long the lock is renewed; ReadTimeout of
// http.Server, which has no default, bounds how long a client may send. Set both.
// MaxWaiting bounds how many requests wait.
//
// Put authentication and rate limits before this middleware. Whoever asks for a lock costs
// Redis a record, and whoever may name any key can keep others out of theirs. If a key is
// made from what the client sends, put the authenticated account into it.
//
// A refused client learns a code and when to come again: neither the key nor who has it.
// Tell it no more in OnRefusal. The text of an error has host, process and job in it.
//
// # Roll-out and shutdown
//
// Deploy the workers first. Deploy the enqueuing side when no worker without package
// worker's middleware is left. Such a worker, an old build during a rolling deploy, runs
// the task without its lock. The key stays reserved until the job's reservation ends
// (Config.Reserve beyond its delay), and until then every request for it is answered 429.
// To take the middleware out again, go the other way round: first the enqueuing side, then,
// when no queue has a task that carries locks, the workers.
//
// On shutdown close the HTTP server, then the Client, then the Locker.
//
// # Who owns the lock
//
// At no step do two sides have it:
//
//	step                        owner    a crash here
//	claim, AcquireAll           request  free one TTL later
//	handler, before Enqueue     request  free one TTL later
//	Enqueue: checks             request  free one TTL later
//	Enqueue: Park               job      reserved for a job that does not exist, until
//	                                     the reservation ends
//	Enqueue: asynq has the task job      the job runs under it
//	  … or has refused it       request  the lock is taken back (Lock.Reclaim)
//	  … or nobody knows         job      reserved; see below
//	handler returns             request's locks are released; the job's are not
//
// The lock is bound to "queue/taskID" before the task exists. So a worker that is faster
// than the reply of Redis finds it waiting, and the token is of no use to any other task.
//
// Enqueue before the handler returns. A goroutine that enqueues later finds the lock
// released with the response, after the client was told 202. Wait for it; or take the lock
// out of the middleware's hands with Keep, and release it if the enqueue fails.
//
// # The errors of Enqueue
//
// After an error lock.Err tells, for each lock, who has it now:
//
//	lock.Err            the lock                            the error of Enqueue
//	nil                 is the caller's, as before          ErrInvalid for a bad argument; or
//	                                                        the error of Park, another lock,
//	                                                        ctx or asynq, such as
//	                                                        asynq.ErrTaskIDConflict
//	ErrLost             was lost; neither caller nor job    ErrLost
//	                    has it
//	ErrAlreadyReleased  had been released by the caller     ErrAlreadyReleased
//	ErrNotOwner         had been handed over by the caller  ErrNotOwner
//	ErrNotOwner         is parked for a job that may or     ErrUnavailable: it could not be
//	                    may not exist                       found out whether the task
//	                                                        exists, or whether the lock was
//	                                                        taken back
//	ErrNotOwner         is, or was, a job's: the enqueue    ErrBusy, ErrAlreadyReleased
//	                    had succeeded although asynq
//	                    reported an error
//
// asynq turns an error of Redis into text, which matches nothing. The error of ctx is
// joined to it.
//
// While it is unknown whether the task exists, the lock stays reserved and nobody runs
// under it. It is settled as soon as Redis answers within five minutes: the job has the
// lock if the task exists, and otherwise it is released. After that, after Close, or with
// more than 256 such enqueues at a time, it is free when the reservation ends.
//
// # One job per key
//
// EnqueueUnique takes the lock itself and hands it over in the same call, so that a key has
// one job from its enqueue on. If the key has a job already, the policy Unique.OnConflict
// decides:
//
//	the job that has the key       Reject    Skip      Replace   KeepLast
//	none                           enqueued  enqueued  enqueued  enqueued
//	pending, scheduled,            ErrHeld   that one  replaced  replaced
//	aggregating
//	between two attempts           ErrHeld   that one  replaced  enqueued; it waits
//	running                        ErrHeld   that one  ErrHeld   enqueued; it waits
//	has started (UntilStarted)     enqueued  enqueued  enqueued  –
//	timed out, its handler still   ErrHeld   that one  ErrHeld   enqueued; it waits
//	running
//	archived or completed, its     the key is freed and the job enqueued
//	key left behind
//	being enqueued by another call ErrHeld   in a moment: that one, replaced, replaced
//	deleted                        ErrHeld until the keeper has freed the key: within half
//	                               a minute, or a minute more if it was just enqueued
//	none: a request holds the lock ErrHeld   ErrHeld   ErrHeld   enqueued; it waits
//
// A task is the job that has the key if it carries the key's token. Sometimes the lock only
// names a task, because an enqueue under its TaskID is about to be refused. That counts as
// "being enqueued by another call": ErrHeld if it takes longer than a moment.
//
// Three ways in which asynq.Unique fails do not exist here. The key does not lapse under a
// job that waits for long. A job that has finally failed does not keep it. A refused
// enqueue, as for a TaskID that exists, leaves nothing behind.
//
// With UntilStarted the worker releases the lock just before it calls the handler for the
// first time. Later attempts run without it, whoever has the key by then. With KeepLast the
// worker first takes the lock on Key, which the job then carries to its end like any other.
// The task's header tells the worker both.
//
// A replacement never loses both jobs. The new task is in its queue before the old one is
// deleted. Until then the lock is bound to the old one, which cannot start meanwhile. If
// the old one has started already it is left alone, and the call returns ErrHeld. Of two
// calls at once the later one replaces the other's job. A new task that a worker takes from
// its queue too early is snoozed for a second or two.
//
// If the process dies in between, or Redis is away, both tasks may be left: the older one
// has the key, and the new one waits until the older one is done. Or only the new one is
// left, and waits until the keeper has found that the older one does not exist. Then the
// worker's Config.Gone decides whether it takes its lock anew; with UntilStarted and
// KeepLast it always runs. A task cannot be replaced by one with the same asynq.TaskID:
// asynq.ErrTaskIDConflict.
//
// # When the enqueue fails
//
// An error from asynq does not say that the task was not enqueued. go-redis repeats a
// command whose reply was lost, and asynq answers the repetition of a successful enqueue
// with asynq.ErrTaskIDConflict or ErrDuplicateTask. So Enqueue asks the Inspector for the
// task and compares its header:
//
//   - The task is there and ours: success.
//   - It is not there, or another task has its ID: the locks are taken back and the error is
//     returned. An error other than those two is no answer of Redis, and the command may
//     still be on its way. Then the Inspector is asked again after a moment.
//   - Nobody answers: the locks stay parked, and the error matches joblock.ErrUnavailable.
//     They belong to a job that may not exist. The Client goes on asking in the background;
//     see "The errors of Enqueue". Do not Reclaim such a lock: its job may be about to
//     start.
//
// This goes on after the end of the request's context. It takes three seconds at most, from
// asynq's error or the end of the context, whichever is first. asynq may still be waiting
// for Redis then. In that case it is unknown whether the task exists, and the Inspector is
// not asked before asynq has returned.
//
// One case is left: a command that is delayed for longer, and is applied after all. The
// task that then appears finds that its token was taken back. While the request holds the
// lock the task is snoozed. When the lock was released, the worker's Config.Gone decides.
// There are never two holders, but with Gone set to Reacquire a job may run that the client
// was told had failed. If your application cannot have this, give its tasks a TaskID of
// your own, and make their effect idempotent under it.
//
// # Groups
//
// A task enqueued with asynq.Group carries its locks as far as its group. Aggregation
// deletes the members without running any middleware. On a server whose Config went through
// Worker.Configure of package worker, the aggregated task has the locks of all members.
package handoff
