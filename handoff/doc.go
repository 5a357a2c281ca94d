// Package handoff is the web side of a lock that travels: an HTTP middleware that
// serves a request while holding a lock, and a client that enqueues an asynq task
// which carries the lock on.
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
// While the request runs, and then while its job waits, runs, is retried or is
// recovered from a crash, a second request for the same key is answered 429. The
// other end is package worker, without which the task is an ordinary task.
//
// # Clients and Redis
//
// An application that only has asynq's options can make all of it on one connection
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
// Web side and workers must agree on where the locks are: the same Redis, database
// number and redisstore.Config.Prefix. A task's header is sealed with a key that lives
// there, so a worker that looks elsewhere says so with the first job; see Trust in the
// documentation of package worker.
//
// # Routers
//
// The claim function sees the *http.Request as it is when the middleware runs. With
// net/http the middleware is within the mux, as above, and r.PathValue has the route's
// parameters. Routers that run their middlewares before they have matched the route, or
// that keep its parameters elsewhere (Use of gin, echo and chi), leave r.PathValue
// empty. Then the key is empty, or has an empty part, and every request is refused: it
// is neither served without its lock, nor under one lock for everybody. There, wrap the
// handlers of single routes (chi's With), or have the parameters copied, with
// r.SetPathValue, from where the router has them.
//
// What adapts this middleware to another kind of handler must not go on after a
// refusal. It knows of one by the next handler not having been called; with gin it then
// has to call Abort. And it must pass on the request that the next handler is given:
// its context has the lock (with gin: of c.Request, not c itself).
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
// Make the key of the parameter as the handler uses it. Some routers give a parameter as
// it was sent, so that "7" and "%37" are two: decode it, or refuse what is not of the
// form that your names have, before it gets into a key.
//
// A request that needs no lock says so: Claim.NoLock. A Claim that says nothing is an
// error.
//
// # Hostile clients
//
// A request holds its lock from before its body is read. A client that sends slowly
// must not keep others out: Claim.MaxHold bounds how long the lock is renewed, and
// ReadTimeout of http.Server, which has no default, how long a client may send. Set
// both. MaxWaiting bounds how many requests wait.
//
// Put authentication, and whatever limits the rate of clients, before this middleware,
// not behind it. What asks for a lock costs Redis a record, and whoever may name any
// key can keep others out of theirs. A key that is made from what the client sends
// should have the account in it that was authenticated.
//
// A client that is refused learns a code, and when to come again: neither the key nor
// who has it. Tell it no more in OnRefusal: the text of an error has host, process and
// job in it.
//
// # Roll-out and shutdown
//
// Deploy the workers first, everywhere, and the enqueuing side when no worker
// without package worker's middleware is left. Such a worker, an old build during
// a rolling deploy, runs the task as an ordinary task: without the lock, while the
// key stays reserved until the job's reservation ends (Config.Reserve beyond its
// delay), and every request for it is answered 429 until then. Taking the
// middleware out again goes the other way round: first the enqueuing side, then,
// when the queues are empty of tasks that carry locks, the workers.
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
// The lock is bound to "queue/taskID" before the task exists, so that a worker
// that is faster than the reply of Redis finds it waiting, and so that the token
// is of no use to any other task.
//
// Enqueue before the handler returns. A goroutine that does so later finds the lock
// released with the response, and the client has been told 202 already: wait for it,
// or take the lock out of the middleware's hands with Keep, and release it if the
// enqueue fails.
//
// # One job per key
//
// EnqueueUnique takes the lock itself and hands it over in the same call, so that a
// key has one job from its enqueue on. What happens when it has one already is the
// policy, Unique.OnConflict:
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
//	deleted                        ErrHeld until the keeper has freed the key, half a
//	                               minute, or a minute more if it was just enqueued
//	none: a request holds the lock ErrHeld   ErrHeld   ErrHeld   enqueued; it waits
//
// A task is the job that has the key if it carries the key's token. One that the lock
// merely names, because an enqueue under its TaskID is about to be refused, counts as
// "being enqueued by another call": ErrHeld if that takes longer than a moment.
//
// Three ways in which asynq.Unique fails do not exist here: the key does not lapse
// under a job that waits for long, a job that has finally failed does not keep it,
// and an enqueue that is refused, as for a TaskID that exists, leaves nothing behind.
//
// With UntilStarted the worker releases the lock just before the first call of the
// handler; attempts after that run without it, whoever has the key by then. With
// KeepLast it takes, before that, the lock on Key, which is then carried to the end
// of the job like any other. Both are told to the worker in the task's header.
//
// Replacing never loses both jobs: the new task is in its queue before the old one is
// deleted, and until then the lock is the old one's. That cannot start meanwhile; if
// it has started already, it is left alone and the call is answered ErrHeld. Of two
// calls at once the later one replaces the other's job. A new task that a worker takes
// from its queue before all that is done is snoozed without charge, for a second or
// two. If the process dies midway, or Redis is away, both tasks may be left: the older
// has the key, and the new one waits until that is done; or the new one alone, which
// then waits until the keeper has found that the older does not exist. It is the
// worker's Config.Gone that decides whether, after that, it takes its lock anew; with
// UntilStarted and KeepLast it always runs. A task cannot be replaced by one of the
// same asynq.TaskID: asynq.ErrTaskIDConflict.
//
// # When the enqueue fails
//
// An error from asynq does not say that the task was not enqueued. go-redis
// repeats a command whose reply was lost, and the repetition of an enqueue that had
// worked is answered by asynq.ErrTaskIDConflict, or ErrDuplicateTask. So Enqueue
// asks the Inspector for the task and compares the token it carries:
//
//   - The task is there and ours: success.
//   - It is not there, or a task of somebody else has its ID: the locks are taken
//     back and the error is returned. Unless the error was one of the two above it is
//     no answer of Redis, and the command may still be on its way; the look is then
//     repeated after a moment.
//   - Nobody answers: the locks stay parked, and the error matches
//     joblock.ErrUnavailable. They belong to a job that may not exist: neither the
//     caller nor anybody else has them. The Client goes on looking in the
//     background and leaves them to the job if it exists, or releases them: as soon
//     as Redis answers, if that is within five minutes; otherwise they end with their
//     reservation. Do not Reclaim such a lock: its job may be about to start.
//
// All of it happens whether or not the request's context has been cancelled, and
// takes three seconds at the longest, counted from asynq's error or from the end of the
// context, whichever is first. asynq may still be waiting for Redis then: the task
// counts as unknown, and it is not looked for before asynq has returned.
//
// What is left: a command that is delayed by more than that moment, and is applied
// after all. The task that then appears finds its token taken back. While the
// request holds the lock it is busy, and the task is snoozed without charge; when
// the lock has been released, the worker finds it ended and does what its
// Config.Gone says. Either way two holders never exist, but with Gone set to
// reacquire a job may run that the client was told had failed. An application
// that cannot have this gives its tasks a TaskID of its own and makes their effect
// idempotent under it.
//
// # Groups
//
// A task enqueued with asynq.Group carries its locks as far as its group. Aggregation
// deletes the members without running any middleware; on a server whose Config went
// through Worker.Configure of package worker, the task that comes out has the locks of
// all members.
package handoff
