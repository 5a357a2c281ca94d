// Package server serves locks over HTTP, so that programs in every language can take, renew and release locks, and can
// hand a lock to a job that runs in Go. A [Server] is an http.Handler: mount it in a program, or run "joblock serve".
//
//	s, err := server.New(server.Config{Locks: locks, Authorize: accounts})
//	...
//	mux.Handle("/", s)
//
// # What is promised
//
// All promises of package joblock hold for a client: one holder at a time, growing fences, waiters served in order of
// arrival. A server keeps no state about locks. Every replica with the same store serves every call: a lock that one
// replica granted can be renewed, parked and released through any other. If a server dies, no lock is lost except those
// of its streams, which are free one TTL later.
//
// # Trust
//
// A client must stop working under its lock in time. Every answer that grants or prolongs a lock has elapsed_ms, the time
// from the arrival of the request to the answer, and valid_ms. The client may rely on the lock until
//
//	(its own time when it sent the request) + elapsed_ms + valid_ms
//
// by a monotonic clock. The sum counts from the sending of the request, so a late answer grants no extra time.
// joblock.Config.Margin is already deducted. The field expires_at is the same instant by the server's clock, for people.
// Send fence along to the resource that the lock protects.
//
// # Tokens
//
// A token is a capability: any client that has it can renew, park, resume and release its lock. A token names one
// holding. After a park only the new token is valid: a client that releases the old token frees nothing. Tokens travel
// only in bodies, never in a path or a query, and never appear in an error or a log.
//
// # Routes
//
//	method and path                      scope    what it does
//	POST /v1/acquire                     lock     takes a lock, or waits for the lock up to wait_ms
//	POST /v1/renew                       lock     begins a new lease
//	POST /v1/release                     lock     gives the lock back
//	POST /v1/park                        lock     reserves the key for the token that park returns
//	POST /v1/resume                      lock     takes the lock of a token
//	POST /v1/hold                        lock     a stream that holds a lock as long as the client reads
//	POST /v1/enqueue                     enqueue  takes a lock and enqueues an asynq task that carries the lock
//	GET  /v1/lock                        read     one key, with its line, its permits and its job
//	GET  /v1/explain                     read     what happens to a key, and what frees it
//	GET  /v1/line                        read     who waits for a key, in order
//	GET  /v1/permits                     read     who has the permits of a limit, or the slots of a sequence
//	GET  /v1/locks                       read     the locks that are taken, by pages
//	POST /v1/status                      read     up to 1,000 keys at once
//	POST /v1/force-release               operate  frees a key regardless of its holder; see Operators
//	GET  /v1/jobs                        read     the jobs that have locks or wait for locks; /v1/jobs/{queue}/{id} is one
//	GET  /v1/sequences                   read     the lines of jobs: which have halted, why, and how many wait
//	POST /v1/jobs/{queue}/{id}/run       operate  runs a task again, or now; also …/cancel, …/drop, …/archive, …/annotate. See Operators
//	GET  /v1/controls                    read     the pauses of keys, and the values of named limits
//	POST /v1/pause                       operate  holds back the jobs of a key and of the keys below it
//	POST /v1/resume-key                  operate  ends the pause of a key
//	POST /v1/limits/{limit}/set          operate  sets a named limit; also …/clear
//	POST /v1/skip                        operate  moves a sequence on past the job that halts it
//	GET  /v1/cron                        read     the cron jobs of a scope; /v1/cron/{name} is one, /next its next ticks
//	GET  /v1/cron-nodes                  read     the nodes of a scope that are up
//	GET  /v1/cron-scopes                 read     the scopes of cron jobs: Config.CronScopes
//	GET  /v1/cron-preview                read     the ticks of a spec, without a cron job
//	POST /v1/cron/{name}/pause           cron     pauses a cron job; also …/resume, …/trigger, …/forget
//	POST /v1/cron/{name}/backfill        cron     executes the ticks of a range of the past; …/stop-backfill ends that
//	GET  /v1/cron/{name}/backfill        read     how many ticks a backfill would execute
//	POST /v1/cron-pause                  cron     pauses all cron jobs of a scope
//	POST /v1/cron-resume                 cron     ends that pause
//	GET  /v1/keeper                      read     what the keepers report of themselves
//	GET  /v1/outboxes                    read     how far behind the relays of outboxes are, and their errors
//	GET  /v1/doctor                      read     whether locks are safe, and what endangers locks, jobs and cron jobs
//	GET  /v1/audit                       admin    what operators have done
//	GET  /v1/events                      read     what has happened to locks and cron jobs; see Events
//	GET  /v1/history                     read     what is known of the past of one key
//	GET  /v1/me                          any      the rights of the caller
//	GET  /healthz                        none     200 while the process serves; asks no store
//	GET  /readyz                         none     200 if the store answers and the server is not closing
//	GET  /metrics                        read     the metrics for Prometheus, if there are some: see Config.Metrics
//	GET  /openapi.json                   none     the description of all routes, OpenAPI 3.1
//
// Acquire, renew, release, park, resume, hold, force-release, skip, explain, line, permits and history exist as
// /v1/locks/{key}/acquire and so on, too, and /v1/lock as /v1/locks/{key}. In a path, encode the key: '/' is %2F and '%' is
// %25. Behind proxies that decode or clean paths, and for the key "/", put the key into the body.
//
// # Requests
//
// A body is one JSON object of at most 65,536 bytes, in UTF-8, with Content-Type application/json. Unknown and repeated
// fields are refused. Durations are whole milliseconds, in fields whose names end in _ms. Times are RFC 3339 with
// milliseconds. Fences are numbers below 2^53. A body that takes longer than [Config.BodyTimeout] is refused.
//
// # Errors
//
// Every error is an RFC 9457 object of type application/problem+json. Its code is stable, its detail names the wrong value
// and the bound, and its retryable says whether the same request may succeed later.
//
//	status  code                         remarks
//	400     LOCK_INVALID                 a bad key, token or value
//	400     REQUEST_INVALID              no JSON, an unknown field, a path that is not clean
//	401     AUTH_REQUIRED                with WWW-Authenticate
//	403     FORBIDDEN                    the caller lacks the scope, or may not use the key
//	404     LOCK_NOT_FOUND               the store does not know the lock
//	404     CRON_NOT_FOUND               no node has seen a cron job of this name
//	404     JOURNAL_NOT_FOUND            the server reads no journal: see Events
//	404     NOT_FOUND                    no such route
//	405     METHOD_NOT_ALLOWED           with Allow
//	406     NOT_ACCEPTABLE               hold: neither application/x-ndjson nor text/event-stream is accepted
//	408     REQUEST_TIMEOUT              the body came too slowly
//	409     LOCK_ACQUISITION_FAILED      another holder has the lock; Retry-After is as of handoff.Guard.MaxRetryAfter
//	409     LOCK_TIMEOUT                 the same, after a wait
//	409     LOCK_BUSY                    another holder of the token has the lock
//	409     LOCK_OWNERSHIP_MISMATCH      the token does not name the present holding
//	404     TASK_NOT_FOUND               asynq has no such task, or no job has the key
//	409     TASK_STATE                   the state of the task does not allow the action
//	412     TASK_STATE                   the task has moved on since the step in If-Match
//	409     CRON_BACKFILLING             the cron job has a backfill that has not ended
//	409     TASK_EXISTS                  enqueue: a task with this ID exists
//	410     LOCK_LOST                    the lease had ended
//	410     LOCK_ALREADY_RELEASED        the lock was released
//	412     LOCK_OWNERSHIP_MISMATCH      force-release: the present holding of the key is not the one in If-Match
//	413     BODY_TOO_LARGE               the body has more than 65,536 bytes
//	415     UNSUPPORTED_MEDIA_TYPE       the body is not application/json
//	421     HOST_UNKNOWN                 the server is not reached under the name in Host; see Config.Hosts
//	422     IDEMPOTENCY_MISMATCH         the Idempotency-Key came before, with other parameters
//	428     PRECONDITION_REQUIRED        force-release without If-Match
//	429     RATE_LIMITED                 too many requests of the caller, or of unknown callers at its address; with Retry-After
//	429     TOO_MANY_LOCKS               the caller has too many locks
//	429     TOO_MANY_WAITS               the caller, or the server, waits for too many locks
//	500     INTERNAL                     a fault of the server, which is in its log
//	503     LOCK_UNAVAILABLE             the store did not answer, and it is unknown whether the call took effect; or the
//	                                     store refused the call, as for lack of memory: the detail says which
//	503     LOCK_CLOSED                  the server is closing; another replica serves
//	503     ACTION_NOT_RECORDED          the audit did not answer, and the action was not begun
//	503     AUTH_UNAVAILABLE             the rights of the caller could not be looked up
//
// A lock that is held is answered with 409 and not 429: a client that backs off because of a rate must not confuse the
// two. The middleware of package handoff answers 429, because its clients know nothing of locks.
//
// # Repeated requests
//
// Renew, release and park can be repeated: the token says which holding is meant. Acquire and resume can be repeated
// with the header Idempotency-Key, of 1 to 128 printable ASCII characters. A repeated acquire returns the lock of the
// first one, with the same token and the same fence, even through another replica. No server keeps a table of answers:
// the owner and the nonce of a call are derived from the caller, the Idempotency-Key, the key of the lock and a secret
// that the replicas share through the store (joblock.Config.Secrets). So
//
//	the repeated request comes while                   the answer
//	the first one's lock is held                       200, the same lock
//	the first one waits                                waits in the same place
//	the first one's lock was released                  410 LOCK_ALREADY_RELEASED, while the store remembers
//	the first one's lock was parked                    409 LOCK_BUSY
//	the first one's lease has run out                  as a first request
//	the first one's lock is held, other parameters     422 IDEMPOTENCY_MISMATCH; wait_ms may differ
//
// Without an Idempotency-Key, a request that ends without an answer is cleaned up: a lock that it took is released when
// the client disconnects before the answer, or when the store answers again. If the answer is lost in transit, the lock
// is free one TTL later. With an Idempotency-Key, the lock stays for the repeated request, for one TTL at most.
//
// Enqueue with an Idempotency-Key and without task_id derives the ID of the task from the request. A repeated request
// returns the first one's task as long as that task exists. If the first request took the key and ended before its task
// was enqueued, the repeated request enqueues the task. Until then the key is reserved for the task: for two minutes at
// most if a keeper runs, otherwise for Config.Reserve of the Locker.
//
// # Operators
//
// The routes for operators show what package joblock's Status, asynq and the scheduler report. GET changes nothing. No
// answer has an owner token: owner is a digest. A caller with prefixes sees only keys that begin with one of them, and
// must name one of them to list keys. For such a caller /v1/doctor checks only the servers and the events of its keys.
// A caller with queues sees only the name of a task in another queue, and a caller with prefixes only the name of a
// task that carries none of its keys.
//
// Every action has a reason, is recorded before it begins, and is refused if it cannot be recorded: see Config.Redis. A
// forced release names the holding that the caller has seen, by an If-Match with the lock's ETag or with its fence in
// quotes. If the key has another holding by then, nothing changes. A forced release does not stop a live holder, which
// detects the release at its next renewal; until then the fences protect the resource.
//
// An action on a task names the step that the caller has seen, by an If-Match with the job's ETag, or with * for any
// step. A cancel with {"then": "drop"} or {"then": "archive"} answers when the handler has returned, after ten seconds at
// most; outcome is what happened to the task.
//
// # Pages
//
// [Server.Pages] returns pages for people: they show in a browser, live, what the routes for operators return, and offer
// what an operator may do. They work under any path and without JavaScript. Every action has a page that says what will
// happen, and names the holding by the fence that the page has shown.
//
//	p, err := s.Pages(server.PagesConfig{})
//	...
//	mux.Handle("/locks/", p)            // the pages alone
//	http.Serve(l, p.Root())             // or the API at its paths, and the pages everywhere else
//
// # Events
//
// GET /v1/events shows the journal that programs write with package joblock/journal; without one, the list is empty. By
// default the answer is a page of the latest events. A client that accepts text/event-stream gets the events from now on,
// or from the time "since", or after the event "after". The ID of each event is a place in the journal: an EventSource
// that reconnects sends the last ID as Last-Event-ID, and gets the events that it missed, from any replica. If Redis no
// longer has some of them, an event of the type "gap" comes first. The stream has a line at least every 15 seconds, and
// counts as a wait (Config.MaxWaiting). A caller with prefixes sees only events of its own keys.
//
// # Streams
//
// POST /v1/hold answers with a stream that holds a lock: the server renews the lock while it can write. The lines are
// JSON objects (application/x-ndjson, the default) or server-sent events (text/event-stream):
//
//	{"type":"waiting","ahead":3}                       the place in line: when it has changed, after a second, and then
//	                                                   at least every third of the TTL and every 10 s
//	{"type":"lock-acquired","key","token","fence",…}   as the answer of acquire
//	{"type":"ping","elapsed_ms","valid_ms",…}          at least every third of the TTL
//	{"type":"lock-lost","code","error"}                the end: the lock is lost
//	{"type":"error","code","error"}                    the end: the lock was not taken
//	{"type":"released"}                                the end: the hold was as long as max_hold_ms
//	{"type":"draining","token","resume_within_ms"}     the end: the server closes; see below
//
// The rule of Trust holds for each line, with the line's own elapsed_ms and valid_ms. Clocks drift apart over hours, so
// deduct a ten-thousandth of elapsed_ms. A client that reads no line for valid_ms has lost the lock.
//
// Later servers may write lines of other types. A client must ignore them: none of them ends a lock.
//
// A stream ends, and its lock is released, when the client closes the connection. The request's on_disconnect can change
// that: "lapse" leaves the lock until its lease ends, "park" reserves the key for the token. A proxy may close the
// server's side of a stream before the client's. Then only "lapse", or "park" with a reserve_ms beyond the TTL, ensures
// that no other holder gets the lock while the client relies on its last line.
//
// A write that takes longer than a third of the TTL, or than 10 s, counts as a closed connection. So an unreachable
// client is noticed within a TTL. A client that hangs while its kernel still accepts bytes is noticed only when the
// buffers in between are full: limit such a hold with max_hold_ms, or use acquire and renew. An HTTP/1.1 connection is
// closed at the end of its stream.
//
// The rights of the caller are looked up again every ten seconds, as are those of a request that waits. If the account
// was removed, has expired, or may no longer use the key, the last line has the code AUTH_REQUIRED. The server then
// stops renewing the lock, which is free when its lease ends; until then the client may rely on it. If the rights
// cannot be looked up for a minute, the code is AUTH_UNAVAILABLE.
//
// Close parks the locks of all streams and sends each client its token. The client sends the token to POST /v1/hold or
// POST /v1/resume of another replica, and gets the lock under a new fence, so a rolling deploy loses no lock.
//
// # Other lock APIs
//
// Package compat, a module of its own, has handlers for other lock APIs that a program mounts next to the Server, so that
// their clients need no change.
//
// # Who may do what
//
// [Config.Authorize] returns the [Principal] of each request: [Accounts] reads tokens and names of certificates from a
// file, [AuthorizeFunc] calls your own function, and [Anyone] admits every caller. A principal has scopes, and the
// prefixes of the keys that it can use, or AllKeys. Without AllQueues it can enqueue only into its own queues, cannot
// bind locks to a job in another queue, cannot replace or supersede such a job, and sees none in /v1/jobs. Empty lists
// grant nothing, except that in the file of accounts an absent list grants everything. [Server.Listen] listens beyond the
// loopback interface only with TLS and with an Authorize other than Anyone.
//
// With AllKeys a caller may act on every task of its queues. Without it, a caller may act on a task that carries locks in
// a genuine header, as package handoff writes it, if the caller may use all of their keys. Locks that are bound to a task
// neither give nor take rights over it, because the holder of a lock chooses the job to which park binds it. Without
// AllKeys a lock can be bound only to a task that carries its key, so only a caller with AllKeys can park a lock before
// the task exists.
//
// # Hostile clients
//
//	what is bounded                          by
//	the body, even if no route reads it      65,536 bytes, Config.BodyTimeout
//	the time to read an answer or a line     10 s; one second for a line while the Server closes
//	the headers                              16 KiB, 10 s; see HTTPServer
//	requests of a principal                  Config.Rate and Config.Burst
//	actions of a principal                   5 a second, 1,000 at once; refused actions are recorded separately
//	lists, jobs, events and the doctor       20 a second of a principal, 40 at once; beyond that they wait, up to 10 s
//	requests of a principal under way        Config.MaxWaitingEach and 256
//	failed attempts to authenticate          10 a second for one address, 100 at once; known callers do not count
//	answers and forms of unknown callers     512 at a time, 64 of one address; the oldest is cut off, with its connection
//	connections, see HTTPServer              10,000; 500 over which no caller was admitted, of which the oldest is closed
//	requests at a time over one connection   25
//	HTTP/2 requests of unknown callers       1,024 over all connections; beyond that, a connection with more than 8 is closed
//	a walk over jobs, waiters or the audit   2 s a page of jobs, 10 s otherwise; the answer says that there is more
//	pages of web sites                       Config.Hosts, Origin and Sec-Fetch-Site: see below
//	waits and streams                        Config.MaxWaiting, Config.MaxWaitingEach
//	the locks of a principal                 Config.MaxLocksEach, in each process
//	the time of a wait                       Config.MaxWait
//	the TTL and the reservation of a lock    joblock.Config.MaxTTL; the reservation by Config.Reserve if that is longer
//
// FAULTS.md, next to this file, has a row for each fault of a client, a replica and the store, and its test.
//
// A page of a web site can have its visitor's browser send requests to the visitor's own machine. With the Authorizer
// Anyone, the server answers only requests for localhost and for loopback addresses, so a page whose name resolves to
// 127.0.0.1 gets nothing. Without a bearer token, changing requests from another site's page are refused, because the
// browser sends a Basic password by itself. docs/security-pages.md in the repository lists the attacks that were tried,
// with the answers.
//
// An embedding program that does not use [HTTPServer] sets ReadHeaderTimeout and MaxHeaderBytes itself.
package server
