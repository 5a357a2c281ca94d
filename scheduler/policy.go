package scheduler

import (
	"fmt"
	"strings"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// OverlapSkip skips ticks that come while the job is running. OverlapSkip is the default.
func OverlapSkip() Option { return setOverlap(false, false, ledger.Overlap{}) }

// OverlapQueue keeps the ticks that come while the job is running: Entry.Waiting. When the running execution has ended, the waiting
// ticks are executed, one after the other, the oldest first. At most limit ticks wait (1 to 1000). A tick that comes
// while limit ticks wait is skipped. So OverlapQueue(1) keeps the first of the ticks, and OverlapNewest the newest.
func OverlapQueue(limit int) Option {
	return setOverlap(true, false, ledger.Overlap{Queue: limit})
}

// OverlapNewest keeps the newest of the ticks that come while the job is running, and executes that tick when the
// running execution has ended. The other ticks are skipped.
func OverlapNewest() Option { return setOverlap(false, false, ledger.Overlap{Newest: true}) }

// OverlapCancel ends the context of the running function, with cause ErrOverlapped, when the next tick comes. The next
// tick is executed when the function has returned. A paused tick cancels nothing. Task refuses OverlapCancel: asynq's
// Inspector can cancel a task.
func OverlapCancel() Option { return setOverlap(false, true, ledger.Overlap{Newest: true}) }

// setOverlap returns an Option. The parameter queues stands for OverlapQueue, and cancel for OverlapCancel.
func setOverlap(queues, cancel bool, overlap ledger.Overlap) Option {
	return func(o *options) { o.queues, o.cancel, o.Overlap = queues, cancel, overlap }
}

// words returns in English what the options are, those first that a job always has.
func (o *options) words() string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if o.AtOnce > 1 {
		add("up to %d runs at once", o.AtOnce)
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
		add("missed ticks of the last %s are caught up with, %d at most", o.CatchUp.Window, o.CatchUp.Most)
	default:
		add("of missed ticks the newest is caught up with")
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

// StartDeadline skips a tick as missed if the tick's first execution has not begun within d after the tick was due: 1 s
// to 366 days. The deadline counts for ticks that are caught up with, and for ticks that wait for the end of an
// execution. A trigger and a start have no deadline. An execution that has begun in time is taken over at any time. The
// default is no deadline.
func StartDeadline(d time.Duration) Option {
	return func(o *options) { o.Deadline, o.hasDeadline = d, true }
}

// KeepHistory sets how many executions Entry.History has besides Entry.Latest: at most the parameter failures
// executions with StateFailed, StateDied or StateLost, and at most the parameter others executions with another state.
// So frequent successes do not push failures out. Both numbers are from 0 to 50. If errors are long, the history ends
// earlier, at 12 KiB. The default is KeepHistory(10, 10).
func KeepHistory(failures, others int) Option {
	return func(o *options) { o.KeepFailures, o.KeepOthers = failures, others }
}
