package worker

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// OverlapOption is an option of WithoutOverlapping.
type OverlapOption func(*overlap)

// MaxConcurrent lets up to n tasks with the same key run at a time, in the whole cluster. Give all servers the same n,
// from 1 to limit.Max.
func MaxConcurrent(n int) OverlapOption {
	return MaxConcurrentOf(func(context.Context, *asynq.Task) int { return n })
}

// MaxConcurrentOf is MaxConcurrent with an n that depends on the task, such as on the plan of a tenant. All tasks of a key
// should get the same n at a time. While n changes or servers disagree, as many run as the largest n allows, and explain
// shows the numbers that were used. For an n below 1 or above limit.Max the attempt fails with joblock.ErrInvalid.
func MaxConcurrentOf(n func(ctx context.Context, task *asynq.Task) int) OverlapOption {
	if n == nil {
		n = func(context.Context, *asynq.Task) int { return 0 } // each attempt fails
	}
	return func(o *overlap) { o.size = n }
}

// LimitName names the limit of MaxConcurrent or MaxConcurrentOf, so that an operator can set it at run time, with "joblock limits set"; n is the
// value until then. The name is that of a resource, like "provider-acme", and any number of limits may have it. A change
// reaches all servers within a second. With a smaller value the tasks that run go on, and until they have ended more may
// run than the value says. Name has 1 to 128 bytes. LimitName without MaxConcurrent is joblock.ErrInvalid for each attempt.
func LimitName(name string) OverlapOption {
	return func(o *overlap) { o.limitName = &name }
}

// MaxWait sets the longest wait in place for a busy key; with 0 a task does not wait. A wait also ends when a tenth of
// the time that was left until the task's deadline has passed, or half of it if the task should be snoozed but cannot
// be. A waiting task occupies one worker of the server's Concurrency. Without DropIfBusy and FailIfBusy, MaxWait does
// not bound the wait of a task that cannot be snoozed. The default is:
//
//	with DropIfBusy or FailIfBusy                                         0
//	if fewer than a quarter of Concurrency, rounded up, wait in place     3 s
//	otherwise, if locks are held for short times                          half a second, or 1.5 s for a task that was
//	                                                                      snoozed and is run because the key was released
//	otherwise                                                             0
//
// The second line is not for a Concurrency of 1.
func MaxWait(d time.Duration) OverlapOption {
	return func(o *overlap) { o.maxWait = &d }
}

// DropIfBusy lets a task succeed without a call of the handler if the key is still busy after the wait in place. With
// DropIfBusy, the default of MaxWait is 0.
func DropIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = verdict.DropIfBusy } }

// FailIfBusy makes an attempt fail if the key is still busy after the wait in place. With FailIfBusy, the default of
// MaxWait is 0. As after any error, asynq charges a retry, or archives the task after the last attempt. The error
// matches joblock.ErrHeld, or joblock.ErrTimeout after a wait.
func FailIfBusy() OverlapOption { return func(o *overlap) { o.ifBusy = verdict.FailIfBusy } }

// InLine lets a task whose key is busy wait in the line of the key, as the jobs of a sequence do. Such a task occupies
// no worker: the task is snoozed for a day, and the process that releases the key runs the task. The tasks run in the
// order in which they first found the key busy. Tasks of handoff.Sequence wait in the same line, from their enqueue on.
// Where such a sequence has a Limit, a task in line counts as one of its jobs: it runs when one of the slots is free,
// next to the jobs that have the other slots.
//
// On a server whose queues are empty a task whose turn has come starts at asynq's next look: see
// asynq.Config.TaskCheckInterval, 1 s by default. Set a shorter interval if the tasks are short.
//
// Differences from WithoutOverlapping without InLine: no task waits in place, so MaxWait does not apply. After a crash
// the key stays with the task until asynq has recovered the task. Without a keeper, a key whose task is deleted while
// the task waits may stay with that task for Config.Reserve. A task that cannot be snoozed, because no retry is left,
// asks for its turn every Config.Snooze, and keeps its place.
//
// InLine excludes MaxConcurrent, DropIfBusy and FailIfBusy: each attempt then fails with joblock.ErrInvalid.
func InLine() OverlapOption { return func(o *overlap) { o.inLine = true } }

// overlap has the arguments and the state of one call of WithoutOverlapping.
type overlap struct {
	w         *Worker
	key       func(*asynq.Task) string
	size      func(context.Context, *asynq.Task) int // nil without the options MaxConcurrent and MaxConcurrentOf
	limitName *string                                // nil without the option LimitName
	maxWait   *time.Duration                         // nil without the option MaxWait
	ifBusy    verdict.IfBusy
	inLine    bool
	err       error // the result of each attempt, because an argument of WithoutOverlapping is invalid; or nil
	pace      pace
}

// check says what is wrong with the options, or returns nil.
func (o *overlap) check() error {
	switch {
	case o.maxWait != nil && *o.maxWait < 0:
		return verdict.Invalid("MaxWait is %s, must not be negative", *o.maxWait)
	case o.limitName != nil && o.size == nil:
		return verdict.Invalid("LimitName was given without MaxConcurrent")
	case o.limitName != nil && (*o.limitName == "" || len(*o.limitName) > controls.MaxName):
		return verdict.Invalid("LimitName has %d bytes, must be from 1 to %d", len(*o.limitName), controls.MaxName)
	case o.inLine && (o.size != nil || o.ifBusy != verdict.SnoozeIfBusy):
		return verdict.Invalid("InLine was combined with MaxConcurrent, DropIfBusy or FailIfBusy")
	}
	return nil
}

// concurrent returns how many tasks with the key of the attempt's task may run at a time. o.size must not be nil.
func (o *overlap) concurrent(a *attempt) int {
	n := o.size(a.ctx, a.task)
	if o.limitName == nil {
		return n
	}
	return (*core.Locker)(o.w.locks).Controls().Limit(a.ctx, *o.limitName, n, limit.Max)
}
