package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/crew"
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/keeper"
)

// Worker resumes, renews and settles the locks of the tasks of one asynq server. Make one Worker per server with New.
// The methods of a nil *Worker do not panic: Middleware fails tasks that carry locks, WithoutOverlapping fails all
// tasks, Run fails, and the other methods do nothing.
type Worker struct {
	locks     *joblock.Locker
	ring      *seal.Ring // the Locker's keys, which verify the headers of tasks
	inspector *asynq.Inspector
	batched   *asynqprivate.Inspector // the same, for lookups that many attempts make at the same time
	cfg       Config

	delay  atomic.Pointer[asynq.RetryDelayFunc] // the user's, or asynq's default; nil until Configure is called
	counts atomic.Pointer[func(error) bool]     // the user's IsFailure; nil if there is none

	distrusts distrusts
	told      struct{ configure, middleware, order, started atomic.Bool } // which mistakes in the set-up were logged

	places  atomic.Int64 // how many tasks may wait in place for WithoutOverlapping; -1, any number, until Configure
	waiting atomic.Int64 // how many tasks now wait in place, within places

	room          room         // the tasks that WithoutOverlapping has snoozed
	checkInterval atomic.Int64 // the server's TaskCheckInterval, in nanoseconds

	inArchive  atomic.Int64 // how many tasks this Worker is snoozing by way of the archive
	hasStarted atomic.Bool  // the method Started was called
	inLine     atomic.Bool  // WithoutOverlapping was called with InLine

	usual usualTimes // how long tasks take

	next *nextjob.Starter // of jobs whose turn in line comes with a call of this Worker

	open *inflight // counts unsettled attempts, background work, and calls of Run, for which Close waits

	keeper  *keeper.Keeper
	running atomic.Bool // a call of Run has not returned yet
}

// New returns a Worker. The Worker resumes locks with the Locker in the parameter locks, and looks up tasks with
// inspector. The Worker closes neither of these two parameters. A nil cfg has all defaults. The error is
// joblock.ErrInvalid if locks or inspector is nil, joblock.New has not made locks, or a field of cfg is out of bounds.
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
	inspectors := append([]*asynq.Inspector{inspector}, full.Inspectors...)
	batched := asynqprivate.All(inspectors)
	w.batched = batched[0]
	w.next = &nextjob.Starter{Locks: locks, Inspectors: batched, Logger: full.Logger, Go: w.open.background}
	w.keeper = keeper.New(keeper.Config{
		Locks: locks, Ring: ring, Inspectors: inspectors,
		Every: full.Every, Reserve: full.Reserve, Share: full.Share, Keepers: full.Keepers, Snoozed: snoozedInArchive, Next: w.next, DryRun: full.DryRun, Logger: full.Logger,
	})
	w.places.Store(-1)
	w.usual.next = time.Now().Add(usualPeriod)
	return w, nil
}

// Middleware is an asynq.MiddlewareFunc that runs tasks under the locks that the tasks carry: mux.Use(w.Middleware).
// The package comment says what Middleware does at the beginning and end of an attempt. A Middleware inside of another
// one, of any Worker, does nothing: the outer one has the locks. With a nil next, each task
// fails with joblock.ErrInvalid. With a nil Worker, each task that carries locks fails with joblock.ErrInvalid.
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
		if _, inside := ctx.Value(envelopeKey{}).(envelope.Envelope); inside {
			return next.ProcessTask(ctx, task) // the second Middleware of two would find the locks of the first one busy
		}
		crew.Grow() // asynq calls each handler in a new goroutine
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

// Close waits until the locks of all attempts of this Worker are settled: parked for the next attempt, or released.
// Close also ends Run. Call Close after the server's Shutdown and before the Locker's Close.
//
// Shutdown is not enough. After ShutdownTimeout asynq puts the tasks of its running handlers back into the queue,
// cancels the handlers' contexts, and does not wait for the handlers. If the process exits at that moment, nobody parks
// the locks, and each next attempt waits until the old lease has ended.
//
// ctx bounds the wait for handlers that ignore their contexts: when ctx ends, Close returns the cause of ctx. The locks
// of an attempt that ends later are still settled, until the Locker is closed. Close may be called again.
//
// If an attempt begins after Close, the task is snoozed, and its locks do not change. If an earlier attempt in another
// process still holds the lock of a task that has ended, Close does not wait for the end of that lease: the keeper
// frees the lock, or the reservation ends. A nil Worker has nothing to close.
func (w *Worker) Close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.open.close()
	return w.open.wait(ctx)
}

// retryDelay returns how long the server waits before the next attempt after an attempt that has failed with err.
func (w *Worker) retryDelay(retried int, err error, task *asynq.Task) time.Duration {
	f := asynq.DefaultRetryDelayFunc
	if p := w.delay.Load(); p != nil {
		f = *p
	}
	return max(0, f(retried, err, task))
}

// The method reservation returns how long to reserve the lock of a task that is due after the time in delay.
func (w *Worker) reservation(delay time.Duration) time.Duration {
	return min(delay, driver.MaxPeriod/2) + w.cfg.Reserve
}
