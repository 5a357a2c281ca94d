package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/life"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/keeper"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// Worker resumes, renews and settles the locks of the tasks of one asynq server. Make one Worker per server with New.
// The methods of a nil *Worker do not panic: Middleware fails tasks that carry locks, WithoutOverlapping fails all
// tasks, RunKeeper fails, and the other methods do nothing.
type Worker struct {
	*tools

	room          room         // the tasks that WithoutOverlapping has snoozed
	places        atomic.Int64 // how many tasks may wait in place for WithoutOverlapping; -1, any number, until Configure
	waiting       atomic.Int64 // how many tasks now wait in place, within places
	checkInterval atomic.Int64 // the server's TaskCheckInterval, in nanoseconds
	hasStarted    atomic.Bool  // Started was called
	inLine        atomic.Bool  // WithoutOverlapping was called with InLine

	keeper  *keeper.Keeper
	running atomic.Bool // a call of RunKeeper has not returned yet
}

// New returns a Worker that resumes locks with locks, and looks up tasks with inspector. It closes neither. A nil cfg
// has all defaults. The error is joblock.ErrInvalid if locks or inspector is nil, if locks was not made by joblock.New,
// or if a field of cfg is out of bounds.
func New(locks *joblock.Locker, inspector *asynq.Inspector, cfg *Config) (*Worker, error) {
	if locks == nil {
		return nil, verdict.Invalid("locks is nil")
	}
	ring := (*core.Locker)(locks).Ring()
	if ring == nil {
		return nil, verdict.Invalid("locks must come from joblock.New")
	}
	if inspector == nil {
		return nil, verdict.Invalid("inspector is nil")
	}
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Worker{tools: &tools{locks: locks, ring: ring, inspector: inspector, cfg: full, life: life.New()}}
	inspectors := append([]*asynq.Inspector{inspector}, full.Inspectors...)
	batched := asynqprivate.All(inspectors)
	w.batched = batched[0]
	w.next = &jobline.Starter{Locks: locks, Inspectors: batched, Logger: full.Logger, Go: w.life.Go}
	w.keeper = keeper.New(keeper.Config{
		Locks: locks, Ring: ring, Inspectors: inspectors,
		Interval: full.Keeper.Interval, Reserve: full.Reserve, MaxLoad: full.Keeper.MaxLoad, MaxKeepers: full.Keeper.MaxKeepers,
		Snoozed: jobline.InArchive, Next: w.next, DryRun: full.Keeper.DryRun, Logger: full.Logger,
	})
	w.places.Store(-1)
	w.durations.next = time.Now().Add(durationsPeriod)
	return w, nil
}

// Close waits until the locks of all attempts of this Worker are settled: parked for the next attempt, or released.
// Close also ends RunKeeper. Call Close after the server's Shutdown and before the Locker's Close.
//
// Shutdown is not enough. After ShutdownTimeout asynq puts the tasks of its running handlers back into the queue,
// cancels the handlers' contexts, and does not wait for the handlers. If the process exits at that moment, the locks
// are not parked, and each next attempt waits until the old lease has ended.
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
	return w.life.Close(ctx)
}
