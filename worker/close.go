package worker

import "context"

// Close waits until every attempt of this Worker is settled: its locks are parked for the
// next attempt, or released. It also ends Run. Call it between the server's Shutdown and
// the Locker's Close:
//
//	server.Shutdown()
//	w.Close(ctx)
//	locks.Close(ctx)
//
// Shutdown alone is not enough. After ShutdownTimeout asynq puts the tasks of its running
// handlers back into the queue, cancels their contexts, and returns without waiting for
// the handlers. If the process exits at that moment its locks are left to lapse, and the
// next attempts wait for a whole lease.
//
// ctx bounds the wait for handlers that ignore their context. Close then returns ctx's
// cause, and their attempts are still settled if they end before the Locker is closed. An
// attempt whose handler has ended is settled in seconds. Close may be called again, and
// waits for what is left.
//
// Tasks with locks that begin after Close are snoozed, their locks untouched. The lock of
// an ended task that another attempt still leases is left to the keeper, or to the end of
// its reservation. A nil Worker has nothing to wait for.
func (w *Worker) Close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.open.close()
	return w.open.wait(ctx)
}
