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

// Worker resumes, renews and settles the locks of the tasks of one asynq server.
// Make one per server with New. When the process stops, Close it after the server's
// Shutdown and before the Locker's Close. The methods of a nil *Worker do not panic:
// Middleware fails tasks that carry locks, Configure changes nothing.
type Worker struct {
	locks     *joblock.Locker
	ring      *seal.Ring // of locks
	inspector *asynq.Inspector
	cfg       Config

	// The server's RetryDelayFunc. nil until Configure was called: without it asynq cannot
	// tell a snooze from a failure.
	delay atomic.Pointer[asynq.RetryDelayFunc]
	told  wiring

	// How many tasks of the server may wait in place, and how many do.
	places  atomic.Int64 // -1 where it is not known
	waiting atomic.Int64

	inArchive atomic.Int64 // tasks of this process snoozed by way of asynq's archive

	hasStarted atomic.Bool // Started is in use

	// The server's own IsFailure; nil if it has none.
	counts atomic.Pointer[func(error) bool]

	distrusts distrusts

	open *inflight // attempts not settled yet, checks of locks to be repeated, and Run

	keeper  *keeper.Keeper
	running atomic.Bool // Run has not returned
}

// New returns a Worker that resumes locks with locks and asks inspector about tasks. It
// closes neither of them. cfg may be nil. Errors match joblock.ErrInvalid: locks or
// inspector is nil, locks was not made by joblock.New, or a field of cfg is out of bounds.
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
	w.keeper = w.newKeeper()
	w.places.Store(-1)
	return w, nil
}

// Middleware is an asynq.MiddlewareFunc: mux.Use(w.Middleware). The package comment says
// what it does at each end of an attempt. With a nil next every task fails with
// joblock.ErrInvalid. With a nil Worker every task that carries locks does: its handler
// counts on the lock.
func (w *Worker) Middleware(next asynq.Handler) asynq.Handler {
	if next == nil {
		return asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			return invalid("Middleware was given a nil handler")
		})
	}
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if _, carries := task.Headers()[envelope.Header]; !carries {
			return next.ProcessTask(ctx, task)
		}
		if w == nil {
			return invalid("the Worker is nil, and the task carries locks")
		}
		a, err := w.newAttempt(ctx, task)
		if err != nil {
			return err
		}
		env, ok, err := a.w.envelopeOf(a)
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

// retryDelay returns what the server will wait before the next attempt.
func (w *Worker) retryDelay(retried int, err error, task *asynq.Task) time.Duration {
	f := asynq.DefaultRetryDelayFunc
	if p := w.delay.Load(); p != nil {
		f = *p
	}
	return max(0, f(retried, err, task))
}

// reservation returns how long to reserve a lock whose task is due after delay.
func (w *Worker) reservation(delay time.Duration) time.Duration {
	return min(delay, driver.MaxPeriod/2) + w.cfg.Reserve
}
