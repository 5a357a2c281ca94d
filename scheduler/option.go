package scheduler

import (
	"context"
	"math"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler/internal/inside"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	maxJitter, maxRetries = 24 * time.Hour, 100
	maxPauseAfter         = 1000

	// minDeadline is longer than the spread between nodes and a usual round trip, so that a tick can begin in time.
	minDeadline = time.Second
)

// Option changes how a job is executed. Of options that contradict each other the last one counts. All nodes should
// give a job the same options: the node that executes or skips a tick uses its own options.
type Option func(*options)

// The type options has the settings with which a job was registered.
type options struct {
	ledger.Job
	zone                                   *time.Location
	timeout, retryFirst, retryMost, jitter time.Duration
	retries                                int
	task, catchUpAll, hasTimeout           bool
	cancel                                 bool // the option OverlapCancel
	queues, hasDeadline                    bool // the options OverlapQueue and StartDeadline
	replace                                bool
	pauseAfter                             int
	hasPauseAfter                          bool

	taskEnd func(ctx context.Context, id string) (inside.TaskEnd, error) // see inside.TaskEnds; nil: the ends of tasks are not known
}

// In sets the time zone of the spec. In overrides Config.Zone. A zone within the spec (CRON_TZ=) overrides In. The zone
// must not be nil.
func In(zone *time.Location) Option { return func(o *options) { o.zone = zone } }

// CatchUpNone skips missed ticks. The package documentation says which ticks are missed.
func CatchUpNone() Option { return setCatchUp(false, ledger.CatchUp{}) }

// CatchUpOne executes the newest missed tick as soon as a node is up. CatchUpOne is the default.
func CatchUpOne() Option { return setCatchUp(false, ledger.CatchUp{Most: 1, Window: math.MaxInt64}) }

// CatchUpAll executes the missed ticks whose age is at most the parameter window, one after the other, the oldest
// first. If more ticks wait than the parameter limit, from this outage and from earlier outages, the oldest ticks are
// skipped. The window must be positive, the limit from 1 to 1000.
func CatchUpAll(window time.Duration, limit int) Option {
	return setCatchUp(true, ledger.CatchUp{Most: limit, Window: window})
}

func setCatchUp(all bool, c ledger.CatchUp) Option {
	return func(o *options) { o.catchUpAll, o.CatchUp = all, c }
}

// AtMostOnce counts a tick as lost if its execution was broken off. Without AtMostOnce, another node executes the tick
// again. Retry still repeats failed attempts.
func AtMostOnce() Option { return func(o *options) { o.AtMostOnce = true } }

// Timeout ends the context of each attempt after d, which must be positive. Timeout does not end a function that ignores its
// context: the job keeps its lock until the function returns. See EventOverrun.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout, o.hasTimeout = d, true } }

// Retry repeats the call of a function that has failed, up to n times (0 to 100), for the same tick and under the same
// lock. The first pause is the parameter first. Each pause is twice as long as the one before, up to the parameter
// most. The default is no retry for Func, and Retry(5, time.Second, 30*time.Second) for Task.
func Retry(n int, first, most time.Duration) Option {
	return func(o *options) { o.retries, o.retryFirst, o.retryMost = n, first, most }
}

// Jitter delays all ticks of the job by the same time, from 0 up to the parameter most (0 to 24 h), so that jobs with
// equal specs begin apart. The delay depends on the job's name. Tick.At does not include the delay.
func Jitter(most time.Duration) Option { return func(o *options) { o.jitter = most } }

// RunAtStart executes the job once in the whole cluster, when the first node with this id starts. If id is the name of
// your release, the job is executed once per deploy. If id is "", the job is executed once ever. An id has at most 128
// bytes. The ledger remembers the latest eight ids.
func RunAtStart(id string) Option { return func(o *options) { o.AtStart, o.StartID = true, id } }

// PauseAfter pauses the job after n executions in a row that have failed or were lost (n from 1 to 1000), until Resume. The
// note of the pause has the last error. A success resets the count, and so does the pause.
//
// For a Task, a tick that enqueues is a success, however the task ends. But for jobs of asynqtick.Tasks, asynqtick.Scheduler and
// asynqtick.PeriodicTaskManager the ends of the tasks count instead: a task that asynq has archived has failed. A node looks at
// the tasks of the earlier ticks at the next tick, at the latest ten.
func PauseAfter(n int) Option { return func(o *options) { o.pauseAfter, o.hasPauseAfter = n, true } }

// Replace replaces a job of the same name that is registered with this Scheduler. Without Replace the name of such a job
// is refused. If this node executes the old job, the new job begins after that execution. With AtOnce above 1, executions
// of the old job count among the n of the new one.
func Replace() Option { return func(o *options) { o.replace = true } }

func (o *options) validate(op, name string) error {
	switch {
	case o.zone == nil:
		return invalid(op, name, "the zone of In is nil")
	case o.catchUpAll && (o.CatchUp.Most < 1 || o.CatchUp.Most > ledger.MaxBacklog):
		return invalid(op, name, "the limit of CatchUpAll is %d, must be from 1 to %d", o.CatchUp.Most, ledger.MaxBacklog)
	case o.catchUpAll && o.CatchUp.Window <= 0:
		return invalid(op, name, "the window of CatchUpAll is %s, must be positive", o.CatchUp.Window)
	case o.hasTimeout && o.timeout <= 0:
		return invalid(op, name, "Timeout is %s, must be positive", o.timeout)
	case o.hasPauseAfter && (o.pauseAfter < 1 || o.pauseAfter > maxPauseAfter):
		return invalid(op, name, "PauseAfter is %d, must be from 1 to %d", o.pauseAfter, maxPauseAfter)
	case o.retries < 0 || o.retries > maxRetries:
		return invalid(op, name, "Retry is %d, must be from 0 to %d", o.retries, maxRetries)
	case o.retries > 0 && (o.retryFirst <= 0 || o.retryMost < o.retryFirst):
		return invalid(op, name, "the pauses of Retry are %s to %s, must be positive and in order", o.retryFirst, o.retryMost)
	case o.task && o.cancel:
		return invalid(op, name, "OverlapCancel is not for tasks")
	case o.AtOnce < 1 || o.AtOnce > ledger.MaxLanes:
		return invalid(op, name, "AtOnce is %d, must be from 1 to %d", o.AtOnce, ledger.MaxLanes)
	case o.AtOnce > 1 && o.task:
		return invalid(op, name, "AtOnce is not for tasks: the job's function only enqueues")
	case o.AtOnce > 1 && o.cancel:
		return invalid(op, name, "AtOnce is %d, must be 1 with OverlapCancel", o.AtOnce)
	case o.queues && (o.Overlap.Queue < 1 || o.Overlap.Queue > ledger.MaxBacklog):
		return invalid(op, name, "the limit of OverlapQueue is %d, must be from 1 to %d", o.Overlap.Queue, ledger.MaxBacklog)
	case o.hasDeadline && (o.Deadline < minDeadline || o.Deadline > driver.MaxPeriod):
		return invalid(op, name, "StartDeadline is %s, must be from %s to %s", o.Deadline, minDeadline, driver.MaxPeriod)
	case min(o.KeepOthers, o.KeepFailures) < 0 || max(o.KeepOthers, o.KeepFailures) > ledger.MaxHistory:
		return invalid(op, name, "KeepHistory is %d and %d, must be from 0 to %d", o.KeepOthers, o.KeepFailures, ledger.MaxHistory)
	case o.jitter < 0 || o.jitter > maxJitter:
		return invalid(op, name, "Jitter is %s, must be from 0 to %s", o.jitter, maxJitter)
	case len(o.StartID) > ledger.MaxStartIDBytes:
		return invalid(op, name, "the id of RunAtStart has %d bytes, at most %d are allowed", len(o.StartID), ledger.MaxStartIDBytes)
	}
	return nil
}
