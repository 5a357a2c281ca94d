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
//	what people on call see, and may do      Lock, Explain, Locks, …; Act with a ForceRelease, a PauseCron, …
//
// # Several servers
//
// All replicas have the same store, so each serves every call. The Client sends a call to the replica that answered last.
// If that replica does not answer, or is closing, the Client tries the others in the order of Config.URLs. A call that
// may have taken effect is repeated only if that is harmless: reads, Renew, Release, Park, and also Acquire, Resume and
// Enqueue, because the Client sends an Idempotency-Key with them. A forced release and the actions on cron jobs and tasks
// are not repeated.
//
// # Objects
//
// Of the objects that calls return, the fields and the methods Lock.Locked and CronJob.Runs are stable. The other
// methods are for the toolkit's own command and pages, and may change.
//
// # For how long a lock can be trusted
//
// Grant.ExpiresAt and Hold.ExpiresAt are instants by this process's monotonic clock: when the request was sent, plus the
// server's elapsed_ms and valid_ms, minus a ten-thousandth of elapsed_ms because clocks drift. So a late answer grants no
// extra time. Stop the work that the lock protects before that instant.
//
// # Errors
//
// Every error of a server is a *Problem. It matches the sentinel of package joblock with the same code: joblock.ErrHeld,
// joblock.ErrTimeout, joblock.ErrLost, joblock.ErrNotOwner and so on. Errors about tasks and cron jobs match
// ErrTaskExists and the other sentinels of this package. If a call gets no answer, its outcome is unknown, and the error
// matches joblock.ErrUnavailable. If a call's context ends, the error is the context's cause.
package client
