package worker

import "context"

// Close waits until every attempt of this Worker has been settled, its locks
// parked for the next attempt or released, and ends the looks at locks that were
// to be repeated. Call it between the server's Shutdown and the Locker's Close:
//
//	server.Shutdown()
//	w.Close(ctx)
//	locks.Close(ctx)
//
// Shutdown alone is not enough. After ShutdownTimeout asynq puts the tasks of its
// running handlers back into the queue, cancels their contexts, and returns
// without waiting for them. A process that exits at that moment leaves its locks
// to lapse, and the next attempts wait for a whole lease.
//
// ctx bounds the wait for handlers that do not heed their context; its error is
// returned then, and their attempts are settled if they end before the Locker is
// closed. An attempt whose handler has ended is settled in seconds. Close may be
// called again, and waits for what is left.
//
// Tasks with locks that begin after Close was called are snoozed without charge,
// their locks untouched. Locks that were still to be freed for a task that had
// ended, because the lease of an attempt elsewhere was in the way, are left to the
// end of their reservation. A nil Worker has nothing to wait for.
func (w *Worker) Close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.open.close()
	return w.open.wait(ctx)
}
