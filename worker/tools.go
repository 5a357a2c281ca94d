package worker

import (
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/life"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// tools are what all attempts of a Worker work with.
type tools struct {
	locks     *joblock.Locker
	ring      *seal.Ring // the Locker's keys, which verify the headers of tasks
	inspector *asynq.Inspector
	batched   *asynqprivate.Inspector // the same Redis, with fewer commands
	cfg       Config
	next      *jobline.Starter // starts the jobs to which a call of this Worker has given their turn in line
	life      *life.Life       // counts unsettled attempts, background work, and calls of RunKeeper, for which Close waits

	delay  atomic.Pointer[asynq.RetryDelayFunc] // the user's, or asynq's default; nil until Configure is called
	counts atomic.Pointer[func(error) bool]     // the user's IsFailure; nil if there is none

	limits    namedLimits
	rates     rateStarts // the tasks that RateLimit has snoozed
	notices   notices
	distrusts distrusts
	logged    struct{ configure, middleware, order, started atomic.Bool } // which mistakes in the set-up were logged
	inArchive atomic.Int64                                                // how many tasks are in the archive for a snooze
	durations durations                                                   // how long tasks take
}

// retryDelay returns how long the server waits before the next attempt after an attempt that has failed with err.
func (w *tools) retryDelay(retried int, err error, task *asynq.Task) time.Duration {
	f := asynq.DefaultRetryDelayFunc
	if p := w.delay.Load(); p != nil {
		f = *p
	}
	return max(0, f(retried, err, task))
}

// reservation returns how long to reserve the lock of a task that is due after delay.
func (w *tools) reservation(delay time.Duration) time.Duration {
	return min(delay, driver.MaxPeriod/2) + w.cfg.Reserve
}
