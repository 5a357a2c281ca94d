package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/keeper"
)

// Worker resumes, renews and settles the locks of the tasks of one asynq server. Make one Worker per server with New.
// The methods of a nil *Worker do not panic: Middleware fails tasks that carry locks, and Configure changes nothing.
type Worker struct {
	locks     *joblock.Locker
	ring      *seal.Ring // of the field locks
	inspector *asynq.Inspector
	cfg       Config

	delay  atomic.Pointer[asynq.RetryDelayFunc] // the server's own; nil until Configure is called
	counts atomic.Pointer[func(error) bool]     // the server's own IsFailure; nil if the server has none

	distrusts distrusts
	told      struct{ configure, middleware, order, started atomic.Bool } // logged mistakes in the server's set-up

	places  atomic.Int64 // how many tasks of the server may wait in place; -1 until Configure is called
	waiting atomic.Int64 // how many tasks wait in place

	inArchive  atomic.Int64 // how many tasks this Worker now has in asynq's archive for a snooze
	hasStarted atomic.Bool  // the method Started was called

	open *inflight // unsettled attempts, background work, and Run

	keeper  *keeper.Keeper
	running atomic.Bool // Run has not returned
}

// New returns a Worker. The Worker resumes locks with the Locker in the parameter locks, and looks up tasks with
// inspector. The Worker closes neither locks nor inspector. A nil cfg has all defaults. New fails with
// joblock.ErrInvalid if locks or inspector is nil, if locks was not made by joblock.New, or if a field of cfg is out of
// bounds.
func New(locks *joblock.Locker, inspector *asynq.Inspector, cfg *Config) (*Worker, error) {
	if locks == nil {
		return nil, invalid("locks is nil")
	}
	ring := door.Of(locks).Ring()
	if ring == nil {
		return nil, invalid("locks was not made by joblock.New")
	}
	if inspector == nil {
		return nil, invalid("inspector is nil")
	}
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Worker{locks: locks, ring: ring, inspector: inspector, cfg: full, open: newInflight()}
	w.distrusts.last, w.distrusts.more = make(map[envelope.Cause]time.Time), make(map[envelope.Cause]int)
	w.keeper = keeper.New(keeper.Config{
		Locks: locks, Ring: ring, Inspectors: append([]*asynq.Inspector{inspector}, full.Inspectors...),
		Every: full.Every, Reserve: full.Reserve, Snoozed: snoozedInArchive, DryRun: full.DryRun, Logger: full.Logger,
	})
	w.places.Store(-1)
	return w, nil
}

// Middleware is an asynq.MiddlewareFunc: mux.Use(w.Middleware). The package comment says what Middleware does at the
// beginning and end of an attempt. With a nil next, each task fails with joblock.ErrInvalid. With a nil Worker, each
// task that carries locks fails with joblock.ErrInvalid.
func (w *Worker) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if next == nil {
			return invalid("Middleware was given a nil handler")
		}
		if !carries(task) {
			return next.ProcessTask(ctx, task)
		}
		if w == nil {
			return invalid("the Worker is nil, and the task carries locks")
		}
		a, err := w.newAttempt(ctx, task)
		if err != nil {
			return err
		}
		env, ok, err := a.envelope()
		if err != nil {
			return err
		}
		if !ok {
			return next.ProcessTask(withEnvelope(ctx, envelope.Envelope{}), task)
		}
		if err := a.carry(env.Envelope); err != nil {
			return err
		}
		if !w.open.begin() {
			return a.refuse()
		}
		defer w.open.end()
		a.startsAt = w.startsAt(next)
		return a.run(next)
	})
}

// Close waits until every attempt of this Worker is settled: the locks are parked for the next attempt, or released.
// Close also ends Run. Call Close after the server's Shutdown and before the Locker's Close.
//
// Shutdown is not enough. After ShutdownTimeout asynq puts the tasks of its running handlers back into the queue,
// cancels their contexts, and returns without waiting for the handlers. If the process exits at that moment, the locks
// lapse, and each next attempt waits for a whole lease.
//
// ctx bounds the wait for handlers that ignore their context: when ctx ends, Close returns the cause of ctx. An attempt
// that ends later is still settled, until the Locker is closed. Close may be called again.
//
// A task with locks that begins after Close is snoozed, and the locks do not change. If a task has ended while an
// old attempt still has the lease of the task's lock, Close does not wait to free that lock: the keeper frees the lock,
// or the end of the reservation does. A nil Worker has nothing to close.
func (w *Worker) Close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.open.close()
	return w.open.wait(ctx)
}

// retryDelay returns how long the server will wait before the next attempt.
func (w *Worker) retryDelay(retried int, err error, task *asynq.Task) time.Duration {
	f := asynq.DefaultRetryDelayFunc
	if p := w.delay.Load(); p != nil {
		f = *p
	}
	return max(0, f(retried, err, task))
}

// reservation returns the reservation of a lock whose task is due after delay.
func (w *Worker) reservation(delay time.Duration) time.Duration {
	return min(delay, driver.MaxPeriod/2) + w.cfg.Reserve
}
