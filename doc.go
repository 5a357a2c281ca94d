// Package toolkit sets up everything that a process of an asynq application needs for its locks. It takes asynq's own
// Redis options:
//
//	p, err := toolkit.New(redisOpt, nil) // redisOpt: an asynq.RedisConnOpt
//	defer p.Close(ctx)
//	_, err = p.Jobs.Enqueue(ctx, handoff.Unique{Key: joblock.Key("invoice", id)}, task)
//
//	p.Locks      the Locker, for handoff.Middleware, handoff.Guard and scheduler.New
//	p.Jobs       the handoff.Client, which enqueues tasks with locks
//	p.Client     the asynq.Client, for tasks without locks
//	p.Inspector  the asynq.Inspector
//	p.Redis      the go-redis client of all of these
//
// An application that gives asynq a go-redis client of its own uses NewFromRedisClient.
//
// A worker process makes its asynq server with NewServer. The result embeds an asynq.Server. Its Start and Run wrap the
// handler in worker.Middleware and start a keeper, which looks after the locks of tasks that no worker runs:
//
//	server, err := p.NewServer(asynq.Config{Concurrency: 10})
//	err = server.Run(tasks) // an asynq.ServeMux or any other asynq.Handler, without worker.Middleware
//
// You can also make these parts yourself with packages joblock, joblock/redisstore, handoff and worker, whose
// documentation says what each part does. Cron jobs are in package scheduler. This package is for the usual case: one
// Redis, one place for the locks, one Close.
//
// # Errors
//
// New and NewServer do not connect to Redis. Their errors are about arguments: each matches joblock.ErrInvalid and
// names the value and its bound. If Redis is unreachable or the password is wrong, Ping and every call that takes a
// lock return joblock.ErrUnavailable. A server starts even so, logs errors, and recovers when Redis is back. A process
// that should not start without Redis calls Ping first. Ping also serves as a readiness probe.
//
// # What Close does
//
// Close ends the parts in an order in which no part needs one that has already ended:
//
//	1  functions run by Go   their contexts end, and Close waits for them; schedulers start no more cron jobs
//	2  the asynq servers     Shutdown; asynq waits for handlers for its ShutdownTimeout
//	3  their Workers         handlers that Shutdown cancelled park or release their locks; the keepers end
//	4  Jobs                  enqueues of unknown outcome are settled
//	5  Locks                 renewals and clean-ups end
//	6  Redis                 the connections are closed, unless the client is yours
//
// Close the HTTP or gRPC server first: a request that still runs would find its Locker closed. The ctx of Close bounds
// steps 1, 3, 4 and 5. A step that fails does not prevent the next steps. The error joins the errors of all steps.
//
// A server's Run and Shutdown do steps 2 and 3 for that server. So a worker process that exits after Run has returned
// leaves no lock of a job behind, even without Close.
//
// Without Close, or if the process dies, locks are left as after any crash: those of requests expire with their leases,
// and those of jobs stay reserved for their jobs.
package toolkit
