package scheduler

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

const (
	maxJitter, maxRetries = 24 * time.Hour, 100
	maxPauseAfter         = 1000

	// minDeadline is longer than the spread between nodes and a usual round trip, so that a tick can begin in time.
	minDeadline = time.Second
)

// Option changes how a job is executed. Of contradictory options the last one counts. All nodes should give a job the
// same options, because the node that executes or skips a tick uses its own.
type Option func(*options)

// options has the settings with which a job was registered.
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

	taskEnd func(ctx context.Context, id string) (ended bool, failure, err error) // see TaskEnds; nil: the ends of tasks are not known
}

// CatchUpNone skips missed ticks. The package documentation says which ticks are missed.
func CatchUpNone() Option { return setCatchUp(false, ledger.CatchUp{}) }

// CatchUpOne executes the newest missed tick as soon as a node is up. It is the default.
func CatchUpOne() Option { return setCatchUp(false, ledger.CatchUp{Most: 1, Window: math.MaxInt64}) }

// CatchUpAll executes the missed ticks whose age is at most window, one after the other, the oldest first. If more than
// limit ticks wait, from this and earlier outages, the oldest ones are skipped. window must be positive, limit from 1
// to 1000.
func CatchUpAll(window time.Duration, limit int) Option {
	return setCatchUp(true, ledger.CatchUp{Most: limit, Window: window})
}

func setCatchUp(all bool, c ledger.CatchUp) Option {
	return func(o *options) { o.catchUpAll, o.CatchUp = all, c }
}

// OverlapSkip skips ticks that come while the job is running. It is the default.
func OverlapSkip() Option { return setOverlap(false, false, ledger.Overlap{}) }

// OverlapQueue keeps the ticks that come while the job is running; admin.Entry.Waiting counts them. When the running
// execution has ended, the waiting ticks are executed, one after the other, the oldest first. At most limit ticks wait
// (1 to 1000); a tick that comes while limit ticks wait is skipped. So OverlapQueue(1) keeps the first of the ticks,
// and OverlapNewest the newest.
func OverlapQueue(limit int) Option {
	return setOverlap(true, false, ledger.Overlap{Queue: limit})
}

// OverlapNewest keeps the newest of the ticks that come while the job is running, executes it when the running
// execution has ended, and skips the others.
func OverlapNewest() Option { return setOverlap(false, false, ledger.Overlap{Newest: true}) }

// OverlapCancel ends the context of the running function, with cause ErrOverlapped, when the next tick comes. The next
// tick is executed when the function has returned. A paused tick cancels nothing. Task refuses OverlapCancel: to let a
// tick end the previous tick's task, enqueue with asynqtick under a handoff.Unique with CancelInProgress.
func OverlapCancel() Option { return setOverlap(false, true, ledger.Overlap{Newest: true}) }

// setOverlap returns the Option for an overlap policy: OverlapQueue if queues is true, OverlapCancel if cancel is.
func setOverlap(queues, cancel bool, overlap ledger.Overlap) Option {
	return func(o *options) { o.queues, o.cancel, o.Overlap = queues, cancel, overlap }
}

// MaxConcurrent executes up to n ticks of the job at the same time, on any nodes: 1 to 20. The overlap policy decides
// about a tick that comes while n executions run. Triggers and starts count as well. A backfill still executes one tick
// at a time. An n above 1 is refused for a Task, and together with OverlapCancel. The default is MaxConcurrent(1).
//
// The functions run under locks of their own, not under the job's lock. With an n above 1, admin.Execution.Node is cut
// to about 100 bytes while the execution runs.
func MaxConcurrent(n int) Option { return func(o *options) { o.MaxConcurrent = n } }

// StartDeadline skips a tick as missed if its first execution has not begun within d after the tick was due: 1 s to 366
// days. This includes missed ticks that are executed late, and ticks that wait for the end of an execution. Triggers
// and starts have no deadline. An execution that has begun in time is taken over at any time. The default is no
// deadline.
func StartDeadline(d time.Duration) Option {
	return func(o *options) { o.Deadline, o.hasDeadline = d, true }
}

// KeepHistory sets how many executions admin.Entry.History has in addition to admin.Entry.Latest: at most the number
// failures with the state Failed, Died or Lost, and at most the number others with any other state, so that frequent
// successes do not push failures out. Both numbers are from 0 to 50. If errors are long, the history ends earlier, at
// 12 KiB. The default is KeepHistory(10, 10).
func KeepHistory(failures, others int) Option {
	return func(o *options) { o.KeepFailures, o.KeepOthers = failures, others }
}

// AtMostOnce counts a tick as lost if its execution was broken off, instead of having another node execute the tick
// again. Retry still repeats failed attempts.
func AtMostOnce() Option { return func(o *options) { o.AtMostOnce = true } }

// Timeout ends the context of each attempt after d, which must be positive. A function that ignores its context goes
// on: the job keeps its lock until the function returns. See Overrun.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout, o.hasTimeout = d, true } }

// Retry repeats the call of a function that has failed, up to n times (0 to 100), for the same tick and under the same
// lock. The first pause is first; each further pause is twice as long as the one before, up to most. The default is no
// retry for Func, and Retry(5, time.Second, 30*time.Second) for Task.
func Retry(n int, first, most time.Duration) Option {
	return func(o *options) { o.retries, o.retryFirst, o.retryMost = n, first, most }
}

// Jitter delays all ticks of the job by the same time, from 0 up to most (0 to 24 h), so that jobs with equal specs
// begin at different times. The delay depends on the job's name. Tick.At does not include the delay.
func Jitter(most time.Duration) Option { return func(o *options) { o.jitter = most } }

// RunAtStart executes the job once in the whole cluster, when the first node with this id starts: once per deploy if id
// is the name of your release, or once ever if id is "". An id has at most 128 bytes. The ledger remembers the latest
// eight ids.
func RunAtStart(id string) Option { return func(o *options) { o.AtStart, o.StartID = true, id } }

// PauseAfter pauses the job after n executions in a row that have failed or were lost (n from 1 to 1000), until
// admin.Admin.Resume. The note of the pause has the last error. A success resets the count, and so does the pause.
//
// For a Task, a tick that enqueues is a success, however the task ends. This includes asynqtick.Enqueue and
// EnqueueWith. With TaskEnds, and so for jobs of asynqtick.Tasks, Scheduler and PeriodicTaskManager, the ends of the
// tasks count instead: a task that asynq has archived has failed. At each tick, a node looks up how the tasks of
// earlier ticks have ended: at most the latest ten.
func PauseAfter(n int) Option { return func(o *options) { o.pauseAfter, o.hasPauseAfter = n, true } }

// TaskEnds makes PauseAfter count how the tasks of a Task end, and not that they are enqueued. end reports whether the
// task with an ID has ended, and how: a nil failure is a success. After an error, the next tick asks again.
// asynqtick.Tasks, Scheduler and PeriodicTaskManager set this option for their jobs.
func TaskEnds(end func(ctx context.Context, id string) (ended bool, failure, err error)) Option {
	return func(o *options) { o.taskEnd = end }
}

// Replace replaces a job of the same name that is registered with this Scheduler; without it such a name is refused. If
// this node executes the old job, the new job begins after that execution. With MaxConcurrent above 1, executions of
// the old job count among the n of the new one.
func Replace() Option { return func(o *options) { o.replace = true } }

func (o *options) validate(op, name string) error {
	switch {
	case o.catchUpAll && (o.CatchUp.Most < 1 || o.CatchUp.Most > ledger.MaxBacklog):
		return records.Invalid(op, name, "the limit of CatchUpAll is %d, must be from 1 to %d", o.CatchUp.Most, ledger.MaxBacklog)
	case o.catchUpAll && o.CatchUp.Window <= 0:
		return records.Invalid(op, name, "the window of CatchUpAll is %s, must be positive", o.CatchUp.Window)
	case o.hasTimeout && o.timeout <= 0:
		return records.Invalid(op, name, "Timeout is %s, must be positive", o.timeout)
	case o.hasPauseAfter && (o.pauseAfter < 1 || o.pauseAfter > maxPauseAfter):
		return records.Invalid(op, name, "PauseAfter is %d, must be from 1 to %d", o.pauseAfter, maxPauseAfter)
	case o.retries < 0 || o.retries > maxRetries:
		return records.Invalid(op, name, "Retry is %d, must be from 0 to %d", o.retries, maxRetries)
	case o.retries > 0 && (o.retryFirst <= 0 || o.retryMost < o.retryFirst):
		return records.Invalid(op, name, "the pauses of Retry are %s to %s, must be positive and in order", o.retryFirst, o.retryMost)
	case o.task && o.cancel:
		return records.Invalid(op, name, "OverlapCancel is not for tasks: enqueue them with asynqtick.EnqueueWith or With, and a handoff.Unique with CancelInProgress")
	case o.MaxConcurrent < 1 || o.MaxConcurrent > ledger.MaxLanes:
		return records.Invalid(op, name, "MaxConcurrent is %d, must be from 1 to %d", o.MaxConcurrent, ledger.MaxLanes)
	case o.MaxConcurrent > 1 && o.task:
		return records.Invalid(op, name, "MaxConcurrent is not for tasks: the job's function only enqueues")
	case o.MaxConcurrent > 1 && o.cancel:
		return records.Invalid(op, name, "MaxConcurrent is %d, must be 1 with OverlapCancel", o.MaxConcurrent)
	case o.queues && (o.Overlap.Queue < 1 || o.Overlap.Queue > ledger.MaxBacklog):
		return records.Invalid(op, name, "the limit of OverlapQueue is %d, must be from 1 to %d", o.Overlap.Queue, ledger.MaxBacklog)
	case o.hasDeadline && (o.Deadline < minDeadline || o.Deadline > driver.MaxPeriod):
		return records.Invalid(op, name, "StartDeadline is %s, must be from %s to %s", o.Deadline, minDeadline, driver.MaxPeriod)
	case min(o.KeepOthers, o.KeepFailures) < 0 || max(o.KeepOthers, o.KeepFailures) > ledger.MaxHistory:
		return records.Invalid(op, name, "KeepHistory is %d and %d, must be from 0 to %d", o.KeepOthers, o.KeepFailures, ledger.MaxHistory)
	case o.jitter < 0 || o.jitter > maxJitter:
		return records.Invalid(op, name, "Jitter is %s, must be from 0 to %s", o.jitter, maxJitter)
	case len(o.StartID) > ledger.MaxStartIDBytes:
		return records.Invalid(op, name, "the id of RunAtStart has %d bytes, at most %d are allowed", len(o.StartID), ledger.MaxStartIDBytes)
	}
	return nil
}

// words describes the options in English, beginning with those that a job always has.
func (o *options) words() string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if o.MaxConcurrent > 1 {
		add("up to %d runs at once", o.MaxConcurrent)
	}
	switch {
	case o.Overlap.Queue > 0:
		add("ticks that come during a run wait, %d at most", o.Overlap.Queue)
	case o.cancel:
		add("a tick that comes during a run cancels the run")
	case o.Overlap.Newest:
		add("of the ticks that come during a run the newest waits")
	default:
		add("ticks that come during a run are skipped")
	}
	switch {
	case o.CatchUp.Most == 0:
		add("missed ticks are skipped")
	case o.catchUpAll:
		add("missed ticks of the last %s are executed late, %d at most", o.CatchUp.Window, o.CatchUp.Most)
	default:
		add("of missed ticks only the newest is executed late")
	}
	if o.Deadline > 0 {
		add("a tick that cannot begin within %s is missed", o.Deadline)
	}
	if o.AtMostOnce {
		add("a run that is broken off is lost")
	}
	if o.timeout > 0 {
		add("an attempt may take %s", o.timeout)
	}
	if o.retries > 0 {
		add("an attempt that fails is repeated up to %d times, after %s to %s", o.retries, o.retryFirst, o.retryMost)
	}
	if o.jitter > 0 {
		add("jitter up to %s", o.jitter)
	}
	if o.AtStart {
		add("runs once at start, in the whole cluster")
	}
	if o.pauseAfter > 0 {
		add("paused after %d failures in a row", o.pauseAfter)
	}
	if o.task {
		add("a run enqueues a task")
	}
	return ledger.ShortenPolicies(strings.Join(all, "; "))
}

// fingerprint returns a hash of the spec, the options and the program of a job, without the ID of RunAtStart, which
// changes with every release.
func (o *options) fingerprint() string {
	h := fnv.New64a()
	fmt.Fprint(h, o.Program, "\n", o.SpecText, "\n", o.task, o.CatchUp, o.MaxConcurrent, o.Overlap, o.cancel, o.AtMostOnce, o.timeout,
		o.retries, o.retryFirst, o.retryMost, o.jitter, o.Deadline, o.AtStart, o.KeepFailures, o.KeepOthers, o.pauseAfter)
	return fmt.Sprintf("%016x", h.Sum64())
}
