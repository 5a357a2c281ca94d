// Package client is a client of the lock server, package server: locks over HTTP for Go programs that do not reach the
// store of the locks, and for tools of operators.
//
//	c, err := client.New(client.Config{URLs: []string{"https://locks.internal:7420"}, Token: client.FromFile("token")})
//	...
//	h, err := c.Hold(ctx, client.HoldRequest{Key: "export:acct-7"})
//	if err != nil {
//		return err // errors.Is(err, joblock.ErrHeld), for example
//	}
//	defer h.Release(context.Background(), "")
//	ctx, stop := h.Context(ctx)
//	defer stop()
//	work(ctx, h.Fence())
//
// A program that reaches the store uses package joblock, which needs no server and reports a loss sooner.
//
// # Which call for what
//
//	a lock while this process works          Hold: the server renews the lock as long as the stream is open
//	a lock that outlives this process        Acquire, Renew, Park, Resume and Release, by token
//	a job that runs under the lock           Enqueue
//	what people on call see, and may do      Lock, Explain, Locks, …, ForceRelease, CronPause, …
//
// # Several servers
//
// Replicas have one store, so each serves every call. The Client sends a call to the replica that has answered last. If
// that one does not answer, or is closing, the Client tries the others in the order of Config.URLs. A call that may have
// taken effect is repeated only if a repetition is harmless: reads, Renew, Release, Park, and Acquire, Resume and Enqueue,
// for which the Client makes an Idempotency-Key. A forced release and the actions on cron jobs and tasks are not repeated.
//
// # Objects
//
// The fields of the objects that calls return, Lock.Locked and CronJob.Runs are stable. Other methods are for the toolkit's
// command and pages, and may change.
//
// # For how long a lock can be trusted
//
// Grant.ExpiresAt and Hold.ExpiresAt are instants of this process's monotonic clock: the sending of the request, plus the
// server's elapsed_ms and valid_ms, less a ten-thousandth of elapsed_ms for clocks that drift. So a late answer grants no
// extra time. Stop what the lock protects before that instant.
//
// # Errors
//
// Every error of a server is a *Problem. It matches the sentinel of package joblock that has its code: joblock.ErrHeld,
// joblock.ErrTimeout, joblock.ErrLost, joblock.ErrNotOwner and so on. Errors about tasks and cron jobs match ErrTaskExists
// and the other sentinels of this package. A call without an answer, whose outcome is unknown, matches
// joblock.ErrUnavailable. A call whose own context has ended returns that context's cause.
package client
