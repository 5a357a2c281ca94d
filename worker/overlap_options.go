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

// OverlapConfig configures a WithoutOverlapping. A zero field means the field's default.
type OverlapConfig struct {
	// MaxConcurrent is how many tasks with the same key may run at a time, in the whole cluster. Give all servers the
	// same number, up to limit.Max. Default: one task, under an ordinary lock.
	MaxConcurrent int

	// MaxConcurrentOf replaces MaxConcurrent if the number depends on the task, for example on the plan of its tenant.
	// All tasks of a key should get the same number at any one time. While the number changes or servers disagree, as
	// many run as the largest number allows, and "joblock explain" shows the numbers that were used. If it returns a
	// number below 1 or above limit.Max, the attempt fails with joblock.ErrInvalid.
	MaxConcurrentOf func(ctx context.Context, task *asynq.Task) int

	// LimitName names the limit of MaxConcurrent or MaxConcurrentOf, so that an operator can set it at run time, with
	// "joblock limits set"; the number in the code is the value until then. Name a resource, such as "provider-acme";
	// any number of limits may share the name. A change reaches all servers within a second. A smaller value does not
	// stop running tasks, so until enough of them have ended, more tasks run than the value allows. At most 128 bytes.
	LimitName string

	// MaxWait is the longest wait in place for a busy key; with a negative MaxWait a task does not wait. A wait also ends
	// when a tenth of the time that was left until the task's deadline has passed, or half of it if the task should be
	// snoozed but cannot be. A waiting task occupies one worker of the server's Concurrency. Without DropIfBusy and
	// FailIfBusy, MaxWait does not bound the wait of a task that cannot be snoozed. The default is:
	//
	//	with DropIfBusy or FailIfBusy                                         no wait
	//	if fewer than a quarter of Concurrency, rounded up, wait in place     3 s
	//	otherwise, if locks are held for short times                          half a second, or 1.5 s for a task that was
	//	                                                                      snoozed and is run because the key was released
	//	otherwise                                                             no wait
	//
	// With a Concurrency of 1, the second line does not apply.
	MaxWait time.Duration

	// DropIfBusy makes a task succeed without a call of the handler if the key is still busy after the wait in place.
	DropIfBusy bool

	// FailIfBusy makes an attempt fail if the key is still busy after the wait in place. As after any error, asynq charges a
	// retry, or archives the task after the last attempt. The error matches joblock.ErrHeld, or joblock.ErrTimeout after a
	// wait.
	FailIfBusy bool

	// InLine lets a task whose key is busy wait in the line of the key, as the jobs of a sequence do. Such a task occupies
	// no worker: the task is snoozed for a day, and the process that releases the key runs the task. The tasks run in the
	// order in which they first found the key busy. Tasks of handoff.Sequence wait in the same line, from their enqueue on.
	// Where such a sequence has a Limit, a task in line counts as one of its jobs: it runs when one of the slots is free,
	// next to the jobs that have the other slots.
	//
	// On an idle server a task whose turn has come starts when asynq next looks for tasks: see
	// asynq.Config.TaskCheckInterval, 1 s by default. Set a shorter interval if the tasks are short.
	//
	// Differences from WithoutOverlapping without InLine: no task waits in place, so MaxWait does not apply. After a crash
	// the key stays with the task until asynq has recovered the task. Without a keeper, a key whose task is deleted while
	// the task waits may stay with that task for Config.Reserve. A task that cannot be snoozed, because no retry is left,
	// asks for its turn every Config.Snooze, and keeps its place.
	//
	// InLine excludes MaxConcurrent, MaxConcurrentOf, DropIfBusy and FailIfBusy.
	InLine bool
}

// overlap has the arguments and the state of one call of WithoutOverlapping.
type overlap struct {
	OverlapConfig
	w      *Worker
	key    func(*asynq.Task) string
	ifBusy verdict.IfBusy
	err    error // the result of each attempt, because an argument of WithoutOverlapping is invalid; or nil
	pace   pace
}

// check returns a joblock.ErrInvalid that says what is wrong with c, or nil.
func (c *OverlapConfig) check() error {
	switch {
	case c.MaxConcurrent < 0 || c.MaxConcurrent > limit.Max:
		return verdict.Invalid("OverlapConfig.MaxConcurrent is %d, must be from 1 to %d, or 0 for an ordinary lock", c.MaxConcurrent, limit.Max)
	case c.MaxConcurrent != 0 && c.MaxConcurrentOf != nil:
		return verdict.Invalid("OverlapConfig has both MaxConcurrent and MaxConcurrentOf, must have one of them")
	case c.LimitName != "" && !c.several():
		return verdict.Invalid("OverlapConfig has a LimitName without MaxConcurrent")
	case len(c.LimitName) > controls.MaxName:
		return verdict.Invalid("OverlapConfig.LimitName has %d bytes, must be at most %d", len(c.LimitName), controls.MaxName)
	case c.DropIfBusy && c.FailIfBusy:
		return verdict.Invalid("OverlapConfig has both DropIfBusy and FailIfBusy, must have one of them")
	case c.InLine && (c.several() || c.DropIfBusy || c.FailIfBusy):
		return verdict.Invalid("OverlapConfig has InLine together with MaxConcurrent, DropIfBusy or FailIfBusy")
	}
	return nil
}

// several reports whether several tasks with the same key may run at a time.
func (c *OverlapConfig) several() bool { return c.MaxConcurrent != 0 || c.MaxConcurrentOf != nil }

// concurrent returns how many tasks with the key of the attempt's task may run at a time.
func (o *overlap) concurrent(a *attempt) int {
	n := o.MaxConcurrent
	if o.MaxConcurrentOf != nil {
		n = o.MaxConcurrentOf(a.ctx, a.task)
	}
	if o.LimitName == "" {
		return n
	}
	return (*core.Locker)(o.w.locks).Controls().Limit(a.ctx, o.LimitName, n, limit.Max)
}
