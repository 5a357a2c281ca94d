package scheduler

import (
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

const (
	maxJitter  = 24 * time.Hour
	maxRetries = 100
)

// Option says something of a job, in Func and Task. Of options that contradict each
// other the last one counts. All nodes should say the same of a job; where they do
// not, that of the node counts which runs, or writes off, the tick.
type Option func(*options)

type options struct {
	zone       *time.Location
	hasZone    bool
	catchUp    catchUp
	overlap    overlap
	atMostOnce bool
	timeout    time.Duration
	hasTimeout bool
	retries    int
	retryFirst time.Duration
	retryMost  time.Duration
	jitter     time.Duration
	atStart    bool
	startID    string
	task       bool
}

// catchUp says which of the missed ticks are run: the newest most, of those that are
// not older than window.
type catchUp struct {
	all    bool // CatchUpAll
	most   int
	window time.Duration
}

type overlap uint8

const (
	overlapSkip overlap = iota
	overlapQueue
	overlapCancel
)

// In sets the time zone of the spec, in place of Config.Zone. A zone within the spec
// (CRON_TZ=) goes before it.
func In(zone *time.Location) Option {
	return func(o *options) { o.zone, o.hasZone = zone, true }
}

// CatchUpNone skips missed ticks: those that nobody claimed within a minute, or before
// the next one was due.
func CatchUpNone() Option { return func(o *options) { o.catchUp = catchUp{} } }

// CatchUpOne runs the newest of the missed ticks, whenever somebody is there again.
// It is the default.
func CatchUpOne() Option { return func(o *options) { o.catchUp = catchUp{most: 1, window: forever} } }

// CatchUpAll runs all missed ticks that are not older than window, one after the other,
// the oldest first; at most the newest limit of them, which is from 1 to MaxCatchUp, with
// those that still wait from an outage before.
func CatchUpAll(window time.Duration, limit int) Option {
	return func(o *options) { o.catchUp = catchUp{all: true, most: limit, window: window} }
}

// forever is longer than anything is caught up with.
const forever = 1<<63 - 1

// OverlapSkip skips ticks that come while the job is running. It is the default.
func OverlapSkip() Option { return func(o *options) { o.overlap = overlapSkip } }

// OverlapQueue runs the newest of the ticks that come while the job is running, when
// it is done. The others are skipped: the run after a long one is about what is due now, and
// its Tick.At is the latest instant that came.
func OverlapQueue() Option { return func(o *options) { o.overlap = overlapQueue } }

// OverlapCancel ends the context of the running function, with cause ErrOverlapped, when
// the next tick comes; that tick is run once the function has returned. A tick that is
// paused ends nothing. Task refuses it: a task is cancelled with the asynq Inspector.
func OverlapCancel() Option { return func(o *options) { o.overlap = overlapCancel } }

// AtMostOnce writes off as lost a tick whose run was broken off, in place of running
// it again on another node.
func AtMostOnce() Option { return func(o *options) { o.atMostOnce = true } }

// Timeout ends the function's context after d, in each attempt anew. The function is
// waited for all the same, and the job's lock is kept until it returns.
func Timeout(d time.Duration) Option {
	return func(o *options) { o.timeout, o.hasTimeout = d, true }
}

// Retry calls a function that failed up to n more times, 0 to maxRetries, under the same
// lock and for the same tick. Pauses begin at first and double up to most. Default: 0 for
// Func; for Task 5 more times, after 1 s to 30 s.
func Retry(n int, first, most time.Duration) Option {
	return func(o *options) { o.retries, o.retryFirst, o.retryMost = n, first, most }
}

// Jitter makes every tick come later by the same part of most, which depends on the
// job's name, so that jobs with equal specs do not all begin at once. Tick.At is the
// instant of the spec, without it. At most maxJitter.
func Jitter(most time.Duration) Option { return func(o *options) { o.jitter = most } }

// RunAtStart runs the job once in the whole cluster when the first node comes up that
// has it with this id. Pass the name of your release to have it run once per deploy,
// "" to have it run once ever. At most 128 bytes; the latest eight are remembered.
func RunAtStart(id string) Option {
	return func(o *options) { o.atStart, o.startID = true, id }
}

func (o *options) validate(op, name string) error {
	switch {
	case o.hasZone && o.zone == nil:
		return invalid(op, name, "the zone of In is nil")
	case o.catchUp.all && (o.catchUp.most < 1 || o.catchUp.most > ledger.MaxBacklog):
		return invalid(op, name, "the limit of CatchUpAll is %d, must be from 1 to %d", o.catchUp.most, ledger.MaxBacklog)
	case o.catchUp.all && o.catchUp.window <= 0:
		return invalid(op, name, "the window of CatchUpAll is %s, must be positive", o.catchUp.window)
	case o.hasTimeout && o.timeout <= 0:
		return invalid(op, name, "Timeout is %s, must be positive", o.timeout)
	case o.retries < 0 || o.retries > maxRetries:
		return invalid(op, name, "Retry is %d, must be from 0 to %d", o.retries, maxRetries)
	case o.retries > 0 && (o.retryFirst <= 0 || o.retryMost < o.retryFirst):
		return invalid(op, name, "the pauses of Retry are %s to %s, must be positive and in order", o.retryFirst, o.retryMost)
	case o.task && o.overlap == overlapCancel:
		return invalid(op, name, "OverlapCancel is not for tasks")
	case o.jitter < 0 || o.jitter > maxJitter:
		return invalid(op, name, "Jitter is %s, must be from 0 to %s", o.jitter, maxJitter)
	case len(o.startID) > ledger.MaxStartIDBytes:
		return invalid(op, name, "the id of RunAtStart has %d bytes, at most %d are allowed", len(o.startID), ledger.MaxStartIDBytes)
	}
	return nil
}
